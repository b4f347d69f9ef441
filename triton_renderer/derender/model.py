"""What derender knows of the served model: its tokenizer, its limits, its output formats."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from transformers import PreTrainedTokenizerFast

from triton_renderer import checkpoint
from triton_renderer.derender.parsers import reasoning_parser, tool_parser
from triton_renderer.derender.parsers.base import ReasoningParser, ToolParser
from triton_renderer.settings import Settings
from triton_renderer.text.reasoning import ReasoningMarks
from triton_renderer.text.tokenizer import eos_token_ids, load_tokenizer


@dataclass(frozen=True)
class OutputModel:
    """The served model as far as its output is concerned."""

    name: str
    tokenizer: PreTrainedTokenizerFast
    vocab_size: int
    """Ids from here on do not exist; the tokenizer may know fewer."""
    max_model_len: int
    eos_token_ids: frozenset[int]
    reasoning_marks: ReasoningMarks | None
    reasoning_parser: type[ReasoningParser] | None
    tool_parser: type[ToolParser] | None

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Raises SettingsError or CheckpointError where the model's files are missing or unusable."""
        config = checkpoint.load_config(settings)
        tokenizer = load_tokenizer(settings.model)
        return cls(
            name=settings.model_name,
            tokenizer=tokenizer,
            vocab_size=max(config.get_text_config().vocab_size, len(tokenizer)),
            max_model_len=checkpoint.context_length(config, settings),
            eos_token_ids=eos_token_ids(settings.model, config, tokenizer),
            reasoning_marks=ReasoningMarks.load(settings.reasoning_parser_name, tokenizer),
            reasoning_parser=reasoning_parser(settings.reasoning_parser_name) if settings.reasoning_parser_name else None,
            tool_parser=tool_parser(settings.tool_parser_name) if settings.tool_parser_name else None,
        )

    def marker_ids(self, parsers: Iterable[type[ReasoningParser] | type[ToolParser] | None]) -> frozenset[int]:
        """The ids of the parsers' markers, where they are tokens of their own."""
        ids = (
            self.tokenizer.backend_tokenizer.token_to_id(marker) for parser in parsers if parser for marker in parser.markers
        )
        return frozenset(token_id for token_id in ids if token_id is not None)

    def leaves_reasoning_open(self, prompt_token_ids: list[int]) -> bool:
        """The prompt ends within a reasoning block: by the rule that render goes by."""
        return self.reasoning_marks is not None and self.reasoning_marks.state(prompt_token_ids) == "open"

    def closes_reasoning_unopened(self, token_ids: list[int]) -> bool:
        """The output ends a reasoning block that it has not begun: so the prompt, which is not known, began it."""
        return self.reasoning_parser is not None and self.reasoning_parser.closes_unopened(self._text(token_ids))

    def _text(self, token_ids: list[int]) -> str:
        text: str = self.tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=False)
        return text
