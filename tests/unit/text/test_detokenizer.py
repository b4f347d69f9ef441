import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tests.unit.text.tokenizers_for_tests import TEXTS, byte_ids, byte_level, cuttings, ids, sentencepiece, wordpiece
from triton_renderer.text.detokenizer import Detokenizer

BOTH = pytest.mark.parametrize("tokenizer", [byte_level(), sentencepiece()], ids=["byte-level", "sentencepiece"])
SMILE = "🙂".encode()


def one_shot(detokenizer: Detokenizer, token_ids: list[int]) -> str:
    return detokenizer.push(token_ids) + detokenizer.finish()


def tail_of(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    return list(tokenizer.encode("a", add_special_tokens=False))


@BOTH
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_cutting_of_any_tokens_gives_the_text_of_all_at_once(tokenizer, data):
    token_ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 3), max_size=30))
    tail = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=3))
    skip, spaces = data.draw(st.booleans()), data.draw(st.booleans())
    cuts = data.draw(cuttings(len(token_ids)))
    detokenizer = Detokenizer(tokenizer, tail, skip, spaces)
    text = ""
    for start, end in itertools.pairwise(cuts):
        text += detokenizer.push(token_ids[start:end])
        detokenizer = Detokenizer.from_state(tokenizer, detokenizer.state(), skip, spaces)
    assert text + detokenizer.finish() == one_shot(Detokenizer(tokenizer, tail, skip, spaces), token_ids)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 893), max_size=30), st.booleans())
def test_any_byte_level_tokens_read_as_the_tokenizer_reads_them(token_ids, skip):
    expected = byte_level().backend_tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert one_shot(Detokenizer(byte_level(), [], skip), token_ids) == expected


@BOTH
@settings(max_examples=150, deadline=None)
@given(prompt=TEXTS, text=TEXTS)
def test_output_goes_on_where_the_prompt_ends(tokenizer, prompt, text):
    tail = tokenizer.encode("a" + prompt, add_special_tokens=False)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    backend = tokenizer.backend_tokenizer
    expected = backend.decode(tail + token_ids).removeprefix(backend.decode(tail))
    assert one_shot(Detokenizer(tokenizer, tail), token_ids) == expected


@BOTH
def test_a_character_is_held_back_until_its_last_byte(tokenizer):
    detokenizer = Detokenizer(tokenizer, tail_of(tokenizer))
    assert [detokenizer.push([token_id]) for token_id in byte_ids(tokenizer, b"a" + SMILE + b"b")] == [
        "a",
        "",
        "",
        "",
        "🙂",
        "b",
    ]
    assert detokenizer.finish() == ""


def test_half_a_surrogate_at_the_end_is_as_ill_formed_as_anywhere():
    token_ids = byte_ids(byte_level(), b"\xed\xa1")
    assert one_shot(Detokenizer(byte_level()), token_ids) == "\ufffd\ufffd"
    assert one_shot(Detokenizer(byte_level()), [*token_ids, *byte_ids(byte_level(), b"a")]) == "\ufffd\ufffda"


@BOTH
@pytest.mark.parametrize("length", [1, 2, 3])
def test_half_a_character_at_the_end_is_one_replacement_character(tokenizer, length):
    token_ids = byte_ids(tokenizer, b"a" + SMILE[:length])
    assert one_shot(Detokenizer(tokenizer, tail_of(tokenizer)), token_ids) == "a\ufffd"
    one_by_one = Detokenizer(tokenizer, tail_of(tokenizer))
    assert "".join(one_by_one.push([token_id]) for token_id in token_ids) + one_by_one.finish() == "a\ufffd"


@BOTH
def test_half_a_character_before_other_text_is_one_replacement_character(tokenizer):
    assert one_shot(Detokenizer(tokenizer, tail_of(tokenizer)), byte_ids(tokenizer, SMILE[:3] + b"b")) == "\ufffdb"


@BOTH
def test_a_character_that_the_prompt_began_is_ended(tokenizer):
    detokenizer = Detokenizer(tokenizer, byte_ids(tokenizer, b"a" + SMILE[:2]))
    assert one_shot(detokenizer, byte_ids(tokenizer, SMILE[2:] + b"b")) == "🙂b"


@BOTH
@pytest.mark.parametrize("output", [b"", b"b"])
def test_a_torn_character_of_the_prompt_is_not_the_outputs(tokenizer, output):
    detokenizer = Detokenizer(tokenizer, byte_ids(tokenizer, b"a" + SMILE[:2]))
    assert one_shot(detokenizer, byte_ids(tokenizer, output)) == output.decode()


def test_sentencepiece_keeps_the_leading_space_behind_a_prompt():
    token_ids = ids(sentencepiece(), "▁", "▁leading", "▁x")
    assert one_shot(Detokenizer(sentencepiece(), tail_of(sentencepiece())), token_ids) == "  leading x"


def test_sentencepiece_drops_the_leading_space_of_a_text_of_its_own():
    token_ids = ids(sentencepiece(), "▁leading", "▁x")
    for tail in ([], ids(sentencepiece(), "<s>")):
        assert one_shot(Detokenizer(sentencepiece(), tail), token_ids) == "leading x"


def test_special_tokens_are_left_out_or_kept_and_markup_always_stays():
    token_ids = ids(byte_level(), "a", "<|im_start|>", "<think>", "b", "<|im_end|>")
    assert one_shot(Detokenizer(byte_level(), []), token_ids) == "a<think>b"
    assert one_shot(Detokenizer(byte_level(), [], False), token_ids) == "a<|im_start|><think>b<|im_end|>"


def test_special_tokens_that_a_parser_needs_can_be_kept_alone():
    token_ids = ids(sentencepiece(), "a", "</s>", "<s>", "x")
    assert one_shot(Detokenizer(sentencepiece(), [], keep=frozenset(ids(sentencepiece(), "</s>"))), token_ids) == "a</s>x"


def test_a_special_token_does_not_tear_the_character_around_it():
    first, *others = byte_ids(byte_level(), SMILE)
    token_ids = [first, *ids(byte_level(), "<|im_start|>"), *others]
    assert one_shot(Detokenizer(byte_level(), []), token_ids) == "🙂"


def test_ids_beyond_the_vocabulary_give_no_text():
    token_ids = [*ids(byte_level(), "a"), len(byte_level()), 2**40, *ids(byte_level(), "b")]
    assert one_shot(Detokenizer(byte_level(), []), token_ids) == "ab"


def test_an_unknown_id_is_no_beginning_of_a_text():
    token_ids = [len(sentencepiece()), *ids(sentencepiece(), "▁leading")]
    assert one_shot(Detokenizer(sentencepiece(), []), token_ids) == "leading"


@pytest.mark.parametrize(("spaces", "expected"), [(True, " b [X] [X] c"), (False, " b [X][X] c")])
def test_a_decoder_of_another_kind_is_used_as_it_is(spaces, expected):
    tokenizer = wordpiece()
    detokenizer = Detokenizer(tokenizer, ids(tokenizer, "a"), False, spaces)
    assert one_shot(detokenizer, ids(tokenizer, "b", "[X]", "[X]", "c")) == expected
    assert one_shot(Detokenizer(tokenizer, []), ids(tokenizer, "b", "##c", "[X]", "c")) == "bc c"


def test_the_state_stays_small_whatever_comes():
    detokenizer = Detokenizer(byte_level(), [])
    detokenizer.push(byte_ids(byte_level(), b"\xf0\x9f" * 1000))
    assert len(str(detokenizer.state())) < 120
