import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.text.tokenizers_for_tests import TEXTS, byte_ids, byte_level, cuttings, ids, sentencepiece
from triton_renderer.protocol.generate import GenerateLogprob, GenerateLogprobs, GenerateTokenLogprob
from triton_renderer.text.detokenizer import Detokenizer
from triton_renderer.text.logprobs import LOWEST_LOGPROB, LogprobsDecoder

BOTH = pytest.mark.parametrize("tokenizer", [byte_level(), sentencepiece()], ids=["byte-level", "sentencepiece"])


def entries(token_ids: list[int], others: list[int] = [], logprob: float = -1.0) -> GenerateLogprobs:  # noqa: B006
    """One entry a token, each with the same candidates behind the sampled one."""
    return GenerateLogprobs(
        content=[
            GenerateTokenLogprob(
                token_id=token_id,
                logprob=logprob,
                rank=1,
                top_logprobs=[GenerateLogprob(token_id=other, logprob=logprob, rank=1) for other in (token_id, *others)],
            )
            for token_id in token_ids
        ]
    )


@BOTH
@settings(max_examples=100, deadline=None)
@given(data=st.data(), text=TEXTS)
def test_the_bytes_of_all_tokens_are_the_bytes_of_the_output_for_any_cutting(tokenizer, data, text):
    tail = tokenizer.encode("a", add_special_tokens=False)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    cuts = data.draw(cuttings(len(token_ids)))
    decoder = LogprobsDecoder(tokenizer, tail)
    content = []
    for start, end in itertools.pairwise(cuts):
        content += decoder.chat(entries(token_ids[start:end])).content
        decoder = LogprobsDecoder.from_state(tokenizer, decoder.state())
    assert content == LogprobsDecoder(tokenizer, tail).chat(entries(token_ids)).content
    output = Detokenizer(tokenizer, tail).push(token_ids)
    assert b"".join(bytes(entry.bytes) for entry in content) == output.encode()
    assert "".join(entry.token for entry in content) == output


@BOTH
def test_parts_of_a_character_have_their_own_bytes_and_the_last_has_its_text(tokenizer):
    token_ids = byte_ids(tokenizer, "🙂".encode())
    content = LogprobsDecoder(tokenizer, token_ids[:0]).chat(entries(token_ids)).content
    assert [(entry.token, entry.bytes) for entry in content] == [("", [0xF0]), ("", [0x9F]), ("", [0x99]), ("🙂", [0x82])]


@BOTH
def test_candidates_are_read_behind_the_sampled_tokens(tokenizer):
    first, second, third, last = byte_ids(tokenizer, "🙂".encode())
    (other,) = byte_ids(tokenizer, b"\x83")
    (letter,) = ids(tokenizer, "b")
    decoder = LogprobsDecoder(tokenizer, ids(tokenizer, "a"))
    decoder.chat(entries([first, second, third]))
    (entry,) = decoder.chat(entries([last], [other, letter])).content
    assert [(top.token, top.bytes) for top in entry.top_logprobs] == [("🙂", [0x82]), ("🙃", [0x83]), ("b", [0x62])]


@BOTH
def test_no_marks_of_the_vocabulary_are_left(tokenizer):
    token_ids = tokenizer.encode("a leading x\n", add_special_tokens=False)
    content = LogprobsDecoder(tokenizer, ids(tokenizer, "a")).chat(entries(token_ids)).content
    assert not set("Ġ▁Ċ") & set("".join(entry.token for entry in content))


def test_special_tokens_are_shown_as_they_are():
    (entry,) = LogprobsDecoder(byte_level()).chat(entries(ids(byte_level(), "<|im_end|>"))).content
    assert (entry.token, bytes(entry.bytes)) == ("<|im_end|>", b"<|im_end|>")


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e9])
def test_what_json_cannot_say_becomes_the_lowest_logprob(logprob):
    (entry,) = LogprobsDecoder(byte_level()).chat(entries(ids(byte_level(), "a"), logprob=logprob)).content
    assert entry.logprob == LOWEST_LOGPROB == entry.top_logprobs[0].logprob


@pytest.mark.parametrize(("shown", "expected"), [(0, []), (1, ["a"]), (None, ["a", "b"])])
def test_as_many_candidates_are_shown_as_were_asked_for(shown, expected):
    logprobs = entries(ids(byte_level(), "a"), ids(byte_level(), "b"))
    (entry,) = LogprobsDecoder(byte_level()).chat(logprobs, shown).content
    assert [top.token for top in entry.top_logprobs] == expected


def test_the_completion_form_counts_characters_from_call_to_call():
    decoder = LogprobsDecoder(byte_level(), text_offset=3)
    token_ids = [*ids(byte_level(), "a"), *byte_ids(byte_level(), "é".encode()), *ids(byte_level(), "b")]
    first = decoder.completion(entries(token_ids[:2], ids(byte_level(), "x")))
    second = LogprobsDecoder.from_state(byte_level(), decoder.state()).completion(entries(token_ids[2:]))
    assert first.tokens + second.tokens == ["a", "", "é", "b"]
    assert first.text_offset + second.text_offset == [3, 4, 4, 5]
    assert first.token_logprobs == [-1.0, -1.0]
    assert first.top_logprobs[0] == {"a": -1.0, "x": -1.0}


def test_of_candidates_with_the_same_text_the_likelier_counts():
    token_id, other = byte_ids(byte_level(), b"\xf0\xe2")
    logprobs = entries([token_id], [other])
    logprobs.content[0].top_logprobs[1].logprob = -5.0
    assert LogprobsDecoder(byte_level()).completion(logprobs).top_logprobs == [{"": -1.0}]
