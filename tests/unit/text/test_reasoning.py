"""Whether the prompt leaves reasoning open, read from its tokens."""

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from tests.unit.render.helpers import edited, model_folder, settings
from triton_renderer.derender.model import OutputModel
from triton_renderer.render import Renderer
from triton_renderer.settings import BUNDLED_MODEL, SettingsError
from triton_renderer.text.reasoning import ReasoningMarks
from triton_renderer.text.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(str(BUNDLED_MODEL))


@pytest.mark.parametrize(
    ("prompt", "state"),
    [
        ("<|im_start|>assistant\n", None),
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "closed"),
        ("<|im_start|>assistant\n<think>a</think>b<think>", "open"),
        ("a</think>b", "closed"),
        ("<think> no turns at all", "open"),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", None),
        ("<|im_start|>user\n</think><|im_end|>\n<|im_start|>assistant\n<think>", "open"),
        (
            "<|im_start|>assistant\n<think>\nhm\n</think>\n\nyes<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n",
            None,
        ),
        ("<|im_start|>assistant\n<think>\nhm<|im_end|>\n", None),
        ("", None),
    ],
)
def test_only_the_turn_that_is_to_be_written_counts(tokenizer: PreTrainedTokenizerFast, prompt: str, state: str | None) -> None:
    marks = ReasoningMarks.load("qwen3", tokenizer)
    assert marks is not None
    token_ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert marks.state(token_ids) == marks.state(np.array(token_ids, np.int64)) == state


def test_without_a_parser_there_are_no_marks(tokenizer: PreTrainedTokenizerFast) -> None:
    assert ReasoningMarks.load(None, tokenizer) is None


@pytest.mark.parametrize("parser", ["granite", "openai_gptoss"])
def test_of_a_format_that_no_prompt_opens_the_reasoning_is_closed_whatever_the_prompt(
    tokenizer: PreTrainedTokenizerFast, parser: str
) -> None:
    marks = ReasoningMarks.load(parser, tokenizer)
    assert marks is not None
    assert marks.state(tokenizer.encode("<|im_start|>assistant\n<think>", add_special_tokens=False)) == "closed"


def test_marks_that_are_special_tokens_do_not_begin_a_turn() -> None:
    marks = ReasoningMarks(1, 2, frozenset({7}))
    assert marks.state(np.array([7, 1, 5, 2])) == "closed"


def test_a_model_without_the_marks_is_refused_at_load(tmp_path: Path) -> None:
    tokenizer, config = edited("tokenizer"), edited("tokenizer_config")
    for token in tokenizer["added_tokens"]:
        token["content"] = token["content"].replace("think", "thought")
    for token in config["added_tokens_decoder"].values():
        token["content"] = token["content"].replace("think", "thought")
    folder = model_folder(tmp_path / "m", tokenizer=tokenizer, tokenizer_config=config)
    with pytest.raises(SettingsError, match="REASONING_PARSER=qwen3"):
        Renderer.load(settings(model=str(folder), reasoning_parser="qwen3"))
    with pytest.raises(SettingsError, match="REASONING_PARSER=qwen3"):
        OutputModel.load(settings(model=str(folder), reasoning_parser="qwen3"))
