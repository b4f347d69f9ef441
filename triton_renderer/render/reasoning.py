"""Whether a prompt leaves the model in the middle of its reasoning: read from the rendered tokens, not from the request."""

from dataclasses import dataclass
from typing import Literal

from triton_renderer.render.tokenizer import PromptTokenizer, TokenIds
from triton_renderer.settings import SettingsError

MARKS = {"qwen3": ("<think>", "</think>")}
"""The tokens around reasoning, by reasoning parser."""


@dataclass(frozen=True)
class ReasoningMarks:
    """The ids of the tokens around reasoning, and of those that begin and end turns."""

    start: int
    end: int
    turns: frozenset[int]

    @classmethod
    def load(cls, parser: str | None, tokenizer: PromptTokenizer) -> "ReasoningMarks | None":
        """None without a reasoning parser. Raises SettingsError where its marks are not tokens of the model."""
        if parser is None:
            return None
        start, end = (tokenizer.token_id(mark) for mark in MARKS[parser])
        if start is None or end is None:
            raise SettingsError(f"REASONING_PARSER={parser}: the model has no tokens {' and '.join(MARKS[parser])}")
        return cls(start, end, tokenizer.control_token_ids() - {start, end})

    def state(self, token_ids: TokenIds) -> Literal["open", "closed"] | None:
        """What the last mark says in the turn that the model is to write; None where it has none.

        Only that turn counts: marks that somebody typed in an earlier one say nothing.
        """
        for token in token_ids[::-1]:
            if token == self.start:
                return "open"
            if token == self.end:
                return "closed"
            if token in self.turns:
                break
        return None
