"""Logprobs of token ids as OpenAI shows them, with text and bytes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import ConfigDict
from transformers import PreTrainedTokenizerFast

from triton_renderer.protocol.generate import GenerateLogprob, GenerateLogprobs
from triton_renderer.protocol.openai import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from triton_renderer.text import utf8
from triton_renderer.text.pieces import pieces_of
from triton_renderer.text.states import Count, Flag, PartOfCharacter

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity and for not-a-number, which JSON does not have."""


@dataclass
class LogprobsState:
    """What a decoder knows between two calls."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    pending: PartOfCharacter
    """The begun character at the end of the sampled tokens."""
    at_start: Flag
    """Nothing visible was sampled yet."""
    text_offset: Count
    """Characters of the tokens so far."""


class LogprobsDecoder:
    """Puts the tokens of one output's logprobs into words, a few at a time.

    `bytes` are a token's own bytes, so those of all sampled tokens joined are the bytes of the output, special tokens
    included. `token` is the text that the token ends: for the last part of a character the whole character, for an
    earlier part nothing. Every candidate is read behind the tokens that were really sampled.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, prompt_tail: Sequence[int] = (), text_offset: int = 0) -> None:
        self._pieces = pieces_of(tokenizer)
        self._pending = b""
        self._at_start = True
        self._text_offset = text_offset
        for token_id in prompt_tail:
            self._advance(token_id)

    def skip(self, token_ids: Iterable[int]) -> None:
        """Goes on behind tokens whose logprobs nobody has."""
        for token_id in token_ids:
            self._text_offset += len(self._text(self._piece(token_id)))
            self._advance(token_id)

    def chat(self, logprobs: GenerateLogprobs, top_logprobs: int | None = None) -> ChatLogprobs:
        """One entry a token. Of its candidates the first `top_logprobs` are shown, all of them for None."""
        content = []
        for entry in logprobs.content or []:
            candidates = [self._candidate(candidate) for candidate in entry.top_logprobs[:top_logprobs]]
            sampled = self._candidate(entry)
            content.append(
                TokenLogprob(token=sampled.token, logprob=sampled.logprob, bytes=sampled.bytes, top_logprobs=candidates)
            )
            self._advance(entry.token_id)
        return ChatLogprobs(content=content)

    def completion(self, logprobs: GenerateLogprobs) -> CompletionLogprobs:
        """The same in the shape of the completion route; `text_offset` goes on from call to call."""
        result = CompletionLogprobs()
        for entry in logprobs.content or []:
            sampled = self._candidate(entry)
            candidates = [self._candidate(candidate) for candidate in entry.top_logprobs]
            result.tokens.append(sampled.token)
            result.token_logprobs.append(sampled.logprob)
            by_token: dict[str, float] = {}
            for candidate in candidates:
                by_token.setdefault(candidate.token, candidate.logprob)  # the more likely one comes first
            result.top_logprobs.append(by_token or None)
            result.text_offset.append(self._text_offset)
            self._text_offset += len(sampled.token)
            self._advance(entry.token_id)
        return result

    def texts(self, token_ids: Sequence[int]) -> list[str]:
        """The texts of the candidates for one place; the first is the token that is there, and the next call goes on behind."""
        texts = [self._text(self._piece(token_id)) for token_id in token_ids]
        self._advance(token_ids[0])
        return texts

    def state(self) -> LogprobsState:
        """The state for `from_state`: a few bytes of plain JSON."""
        return LogprobsState(list(self._pending), self._at_start, self._text_offset)

    @classmethod
    def from_state(cls, tokenizer: PreTrainedTokenizerFast, state: LogprobsState) -> Self:
        """The decoder that had this `state`."""
        decoder = cls(tokenizer, (), state.text_offset)
        decoder._pending = bytes(state.pending)
        decoder._at_start = state.at_start
        return decoder

    def _candidate(self, entry: GenerateLogprob) -> TopLogprob:
        piece = self._piece(entry.token_id)
        logprob = entry.logprob if entry.logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
        return TopLogprob(token=self._text(piece), logprob=logprob, bytes=list(piece))

    def _text(self, piece: bytes) -> str:
        """What `piece` ends, behind the tokens so far."""
        text, _ = utf8.decode(self._context(piece) + piece)
        return text

    def _advance(self, token_id: int) -> None:
        if token_id in self._pieces.special_ids or not self._pieces.knows(token_id):
            return
        piece = self._piece(token_id)
        _, self._pending = utf8.decode(self._context(piece) + piece)
        self._at_start = False

    def _piece(self, token_id: int) -> bytes:
        return self._pieces.first_bytes_of(token_id) if self._at_start else self._pieces.bytes_of(token_id)

    def _context(self, piece: bytes) -> bytes:
        """The begun character, unless `piece` begins another one."""
        return self._pending if not piece or utf8.continues(piece) else b""
