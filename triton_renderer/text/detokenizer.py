"""Token ids to text, a few at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import ConfigDict
from transformers import PreTrainedTokenizerFast

from triton_renderer.text import utf8
from triton_renderer.text.pieces import pieces_of
from triton_renderer.text.states import Flag, PartOfCharacter

PROMPT_TAIL = 16
"""Prompt tokens that a detokenizer is given: enough to have a visible one, and all of a torn character, among them."""


@dataclass
class DetokenizerState:
    """What a detokenizer knows between two pushes."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    pending: PartOfCharacter
    """The begun character that is held back."""
    pending_of_prompt: Flag
    """… and it is the prompt's."""
    at_start: Flag
    """Nothing visible came before."""
    after_added: Flag
    """The last visible token was an added one."""


class Detokenizer:
    """The text of one output, whose tokens come in any cutting: the pieces joined are the same for every cutting.

    `prompt_tail` are the last tokens of the prompt, at least one that is visible; with it the output's first token keeps
    its leading space, and a character that the prompt began is ended. Without it the output is a text of its own.

    With `skip_special_tokens` special tokens give no text, but for those in `keep`. Ids that the tokenizer does not know
    give none either.

    The state is a few bytes, and a push costs time for its new tokens only.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        prompt_tail: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        keep: frozenset[int] = frozenset(),
    ) -> None:
        self._pieces = pieces_of(tokenizer)
        self._skipped = self._pieces.special_ids_without(keep) if skip_special_tokens else frozenset[int]()
        self._spaces_between_added = spaces_between_special_tokens
        self._pending = b""
        self._pending_of_prompt = False
        self._at_start = True
        self._after_added = False
        if len(prompt_tail):
            _, self._pending = utf8.decode(self._bytes(prompt_tail))
            self._pending_of_prompt = bool(self._pending)

    def push(self, token_ids: Sequence[int]) -> str:
        """The new text. A character of which bytes are still missing is held back."""
        new = self._bytes(token_ids)
        if not new:
            return ""
        if self._pending_of_prompt:
            if not utf8.continues(new):  # the prompt's torn character is not the output's
                self._pending = b""
            self._pending_of_prompt = False
        text, self._pending = utf8.decode(self._pending + new)
        return text

    def finish(self) -> str:
        """What is still held back: U+FFFD for a character that the output left incomplete, else nothing."""
        pending, self._pending = self._pending, b""
        return "" if self._pending_of_prompt else utf8.decode_all(pending)

    def state(self) -> DetokenizerState:
        """The state for `from_state`: a few bytes of plain JSON."""
        return DetokenizerState(list(self._pending), self._pending_of_prompt, self._at_start, self._after_added)

    @classmethod
    def from_state(
        cls,
        tokenizer: PreTrainedTokenizerFast,
        state: DetokenizerState,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        keep: frozenset[int] = frozenset(),
    ) -> Self:
        """The detokenizer that had this `state` and these options."""
        detokenizer = cls(tokenizer, (), skip_special_tokens, spaces_between_special_tokens, keep)
        detokenizer._pending = bytes(state.pending)
        detokenizer._pending_of_prompt = state.pending_of_prompt
        detokenizer._at_start = state.at_start
        detokenizer._after_added = state.after_added
        return detokenizer

    def _bytes(self, token_ids: Sequence[int]) -> bytes:
        pieces = []
        for token_id in token_ids:
            if token_id in self._skipped or not self._pieces.knows(token_id):
                continue
            is_added = self._pieces.is_added(token_id)
            if is_added and self._after_added and not self._spaces_between_added:
                piece = self._pieces.content_of(token_id)
            elif self._at_start:
                piece = self._pieces.first_bytes_of(token_id)
            else:
                piece = self._pieces.bytes_of(token_id)
            self._at_start = False
            self._after_added = is_added
            pieces.append(piece)
        return b"".join(pieces)
