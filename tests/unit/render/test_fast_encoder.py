"""The fast tokenizer is used where it proves equal to the model's own, and never elsewhere."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from triton_renderer.render.fast_encoder import FastEncoder, samples
from triton_renderer.render.tokenizer import PromptTokenizer
from triton_renderer.settings import BUNDLED_MODEL

BUNDLED: Tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL).backend_tokenizer
FAST = FastEncoder.proven_equal(BUNDLED)
ADDED = [token.content for token in BUNDLED.get_added_tokens_decoder().values()]


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -2.0)] + [(chr(code), -3.0) for code in range(33, 127)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def byte_level(normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    merges = [("a", "b"), ("Ġ", "a"), ("Ã", "¤")]
    pieces = [*sorted(alphabet), *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def test_the_bundled_tokenizer_is_encoded_fast() -> None:
    assert FAST is not None


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.text(), st.sampled_from(ADDED), st.from_regex(r"\s{0,5}\w{0,9}\s{0,3}")), max_size=8), st.booleans()
)
def test_any_text_gives_the_same_ids(pieces: list[str], add_special_tokens: bool) -> None:
    text = "".join(pieces)
    assert FAST is not None
    expected = BUNDLED.encode(text, add_special_tokens=add_special_tokens).ids
    assert FAST.encode(text, add_special_tokens).tolist() == expected


def test_samples_are_the_same_in_every_process() -> None:
    assert samples(["<s>"]) == samples(["<s>"])
    assert any("<s>" in text for text in samples(["<s>"]))


@pytest.mark.parametrize("make", [unigram, byte_level, lambda: byte_level(normalizers.Lowercase())])
def test_whatever_a_tokenizer_is_made_of_prompts_have_its_ids(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    prompts = PromptTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    for text in ("ab Äab ä<|end|> x", "A B", "  ab\n"):
        assert prompts.encode(text).token_ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids


def test_one_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = FastEncoder.encode
    monkeypatch.setattr(FastEncoder, "encode", lambda self, text, special=False: right(self, text.replace("\r", ""), special))
    assert FastEncoder.proven_equal(BUNDLED) is None
