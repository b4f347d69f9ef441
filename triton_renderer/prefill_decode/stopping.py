"""When a sequence ends: end-of-sequence and stop tokens, stop strings, the token limit."""

from collections.abc import Collection

from transformers import PreTrainedTokenizerFast

from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.protocol.stages import FinishReason
from triton_renderer.text.detokenizer import Detokenizer
from triton_renderer.text.stop import StopMatcher


class StopChecker:
    """Follows one sequence token by token. Detokenizes only where stop strings or text are asked for."""

    def __init__(
        self,
        params: SamplingParams,
        max_tokens: int,
        *,
        eos_token_ids: Collection[int],
        tokenizer: PreTrainedTokenizerFast,
        prompt_tail: list[int],
        want_text: bool,
    ) -> None:
        self._params = params
        self._max_tokens = max_tokens
        self._eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._num_tokens = 0
        self._text: list[str] = []
        wants_detokenizer = bool(params.stop) or want_text
        self._detokenizer = (
            Detokenizer(tokenizer, prompt_tail, params.skip_special_tokens, params.spaces_between_special_tokens)
            if wants_detokenizer
            else None
        )
        self._matcher = StopMatcher(params.stop, params.include_stop_str_in_output)

    @property
    def ending_ids(self) -> frozenset[int]:
        """Tokens that would end the sequence; `min_tokens` keeps them from being sampled."""
        return self._eos_token_ids | self._stop_token_ids

    def push(self, token_id: int) -> tuple[FinishReason | None, int | str | None]:
        """Notes the newest token; returns the finish reason and stop reason, (None, None) to go on."""
        self._num_tokens += 1
        reason = self._reason(token_id)
        if reason[0] is not None and self._detokenizer is not None and not isinstance(reason[1], str):
            self.finish()
        return reason

    def finish(self) -> None:
        """Nothing follows: lets text go that was held back because it might have become a character or a stop string."""
        if self._detokenizer is not None:
            self._emit(self._detokenizer.finish())
            self._text.append(self._matcher.flush())

    def _reason(self, token_id: int) -> tuple[FinishReason | None, int | str | None]:
        if self._num_tokens > self._params.min_tokens:
            if token_id in self._eos_token_ids:
                return "stop", None
            if token_id in self._stop_token_ids:
                return "stop", token_id
        if self._detokenizer is not None:
            matched = self._emit(self._detokenizer.push([token_id]), armed=self._num_tokens > self._params.min_tokens)
            if matched is not None:
                return "stop", matched
        return ("length", None) if self._num_tokens >= self._max_tokens else (None, None)

    def _emit(self, text: str, armed: bool = False) -> str | None:
        emitted, matched = self._matcher.push(text, armed)
        self._text.append(emitted)
        return matched

    def take_text(self) -> str:
        """The text since the last call, without the stop string unless it is to be included."""
        text = "".join(self._text)
        self._text.clear()
        return text
