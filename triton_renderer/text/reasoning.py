"""Whether a prompt leaves the model in the middle of its reasoning: read from its tokens, not from the request."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from triton_renderer.settings import SettingsError
from triton_renderer.text.formats import REASONING_FORMATS

ReasoningState = Literal["open", "closed"] | None
"""What a prompt says of the reasoning: it is left open, there is none to come, or it may come or not."""


@dataclass(frozen=True)
class ReasoningMarks:
    """The ids of the tokens around reasoning, and of those that begin and end turns.

    Without the former it is a format whose reasoning no prompt opens.
    """

    start: int | None
    end: int | None
    turns: frozenset[int]

    @classmethod
    def load(cls, parser: str | None, tokenizer: PreTrainedTokenizerFast) -> Self | None:
        """None without a reasoning parser. Raises SettingsError where its marks are not tokens of the model."""
        if parser is None:
            return None
        marks = REASONING_FORMATS[parser].marks
        if marks is None:
            return cls(None, None, frozenset())
        backend = tokenizer.backend_tokenizer
        start, end = (backend.token_to_id(mark) for mark in marks)
        if start is None or end is None:
            raise SettingsError(f"REASONING_PARSER={parser}: the model has no tokens {' and '.join(marks)}")
        added = backend.get_added_tokens_decoder()
        special = frozenset(token_id for token_id, token in added.items() if token.special)
        return cls(start, end, special - {start, end})

    def state(self, token_ids: npt.NDArray[np.int64] | list[int]) -> ReasoningState:
        """What the last mark says in the turn that the model is to write; None where it has none.

        token_ids: [tokens], the whole prompt. Only that turn counts: marks that somebody typed in an earlier one say
        nothing.
        """
        if self.start is None:
            return "closed"
        backwards: Iterable[int] = token_ids[::-1]
        for token in backwards:
            if token == self.start:
                return "open"
            if token == self.end:
                return "closed"
            if token in self.turns:
                break
        return None
