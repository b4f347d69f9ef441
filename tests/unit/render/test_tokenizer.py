"""The tokenizer for prompts knows media tokens by secret names only."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.unit.render.helpers import PAD
from triton_renderer.render.tokenizer import PromptTokenizer
from triton_renderer.settings import BUNDLED_MODEL, SettingsError


@pytest.fixture(scope="module")
def bundled() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(BUNDLED_MODEL)


def unigram() -> PreTrainedTokenizerFast:
    """SentencePiece-like, with the media token among its pieces as some models have it."""
    pieces = [("<unk>", 0.0), ("<image>", -1.0), ("▁", -2.0)] + [(chr(code), -3.0) for code in range(33, 127)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("<image>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("kind", ["bundled", "unigram"])
def test_a_typed_media_token_is_text_and_a_hidden_one_is_itself(bundled: PreTrainedTokenizerFast, kind: str) -> None:
    hf, token = (bundled, PAD) if kind == "bundled" else (unigram(), "<image>")
    tokenizer = PromptTokenizer(hf, [token])
    token_id = hf.convert_tokens_to_ids(token)
    assert tokenizer.token_id(token) == token_id
    assert token_id not in tokenizer.encode(f"a {token} b").token_ids
    hidden = tokenizer.encode(tokenizer.hide(f"a{token}b{token}")).token_ids.tolist()
    assert hidden.count(token_id) == 2
    assert hidden == hf(f"a{token}b{token}", add_special_tokens=False)["input_ids"]


def test_everything_else_is_as_without_it(bundled: PreTrainedTokenizerFast) -> None:
    text = "<|im_start|>user\nHow many?  \t é 你好 <tool_call>{}</tool_call><|im_end|>\n"
    assert PromptTokenizer(bundled, [PAD]).encode(text).token_ids.tolist() == bundled(text)["input_ids"]


def test_names_differ_in_each_process_and_are_undone(bundled: PreTrainedTokenizerFast) -> None:
    first, second = PromptTokenizer(bundled, [PAD]), PromptTokenizer(bundled, [PAD])
    assert first.hide(PAD) != second.hide(PAD)
    assert len(first.hide(PAD)) > 32
    assert first.reveal(first.hide(f"x{PAD}y")) == f"x{PAD}y"


def test_special_tokens_are_added_only_on_request() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    hf: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")
    from tokenizers.processors import TemplateProcessing  # noqa: PLC0415

    hf.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    prompt = PromptTokenizer(hf)
    assert prompt.encode("a", add_special_tokens=True).token_ids.tolist() == [0, 1]
    assert prompt.encode("a").token_ids.tolist() == [1]


def test_a_media_token_that_is_no_special_token_is_refused_at_load(bundled: PreTrainedTokenizerFast) -> None:
    with pytest.raises(SettingsError, match="not a special token"):
        PromptTokenizer(bundled, ["circle"])


def test_the_state_of_the_original_is_not_touched(bundled: PreTrainedTokenizerFast) -> None:
    before = bundled(PAD)["input_ids"]
    PromptTokenizer(bundled, [PAD]).encode("x")
    assert bundled(PAD)["input_ids"] == before


def test_offsets_are_character_positions(bundled: PreTrainedTokenizerFast) -> None:
    text = "é 🙂 ab"
    encoded = PromptTokenizer(bundled).encode(text, with_offsets=True)
    assert encoded.offsets is not None
    assert encoded.offsets[0][0] == 0
    assert encoded.offsets[-1][1] == len(text)
