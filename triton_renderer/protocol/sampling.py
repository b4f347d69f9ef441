"""How the next token is chosen, and when generation ends."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from triton_renderer.protocol.base import INT64_MAX, Int64, TokenId, Wire

MAX_STOP_STRINGS = 64
MAX_LOGPROBS = 20
"""How many candidates a token this server's own engine gives; one that a request is only rendered for may give more."""
SAMPLING_EPSILON = 1e-5
"""Temperatures below this are greedy, as in the reference."""
MIN_TEMPERATURE = 1e-2
"""Temperatures between greedy and this become this: smaller ones overflow."""


def _as_list(value: Any) -> Any:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list), Field(max_length=MAX_STOP_STRINGS)
]
TokenIdList = Annotated[list[TokenId], BeforeValidator(_as_list)]
ThinkingBudget = Annotated[
    Annotated[int, Field(ge=0, le=INT64_MAX)] | None, BeforeValidator(lambda value: None if value == -1 else value)
]
"""Tokens that the model may think for; -1 is another way to say that there is no limit."""
LogprobCount = Annotated[int, Field(ge=-1, le=INT64_MAX)]
"""A number of candidates; -1 stands for the whole vocabulary."""


class SamplingParams(Wire):
    """Sampling parameters as they travel in a GenerateRequest; defaults are the reference's.

    `max_tokens: null` means: as many as fit behind the prompt. `max_tokens` absent means the same, where the reference
    falls back to 16: a render answer always writes it, so nothing is lost on the way to generate.
    """

    n: int = Field(1, ge=1, le=128)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=1000)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: Int64 | None = None
    stop: StopStrings = []
    stop_token_ids: TokenIdList = []
    ignore_eos: bool = False
    max_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    min_tokens: int = Field(0, ge=0, le=INT64_MAX)
    logprobs: LogprobCount | None = None
    prompt_logprobs: LogprobCount | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: dict[str, Any] | None = None
    logit_bias: dict[TokenId, float] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    bad_words: list[str] | None = None
    thinking_token_budget: ThinkingBudget = None
    """For whoever generates; this server's own engine does not count what is thought."""

    @field_validator("temperature")
    @classmethod
    def _not_too_cold(cls, value: float) -> float:
        return MIN_TEMPERATURE if SAMPLING_EPSILON <= value < MIN_TEMPERATURE else value

    @field_validator("logit_bias")
    @classmethod
    def _clamped(cls, value: dict[int, float] | None) -> dict[int, float] | None:
        return value and {token: min(100.0, max(-100.0, bias)) for token, bias in value.items()}

    @model_validator(mode="after")
    def _min_not_over_max(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) must not be greater than max_tokens ({self.max_tokens})")
        return self

    @property
    def is_greedy(self) -> bool:
        """The most likely token is taken, nothing is drawn."""
        return self.temperature < SAMPLING_EPSILON
