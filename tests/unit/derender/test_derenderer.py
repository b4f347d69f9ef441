"""How derender keeps its requests."""

import json
import logging

import numpy as np
import pytest

from tests.unit.derender.answers import context, model, tokens
from triton_renderer.derender.derenderer import Derenderer
from triton_renderer.derender.open_requests import OpenRequests
from triton_renderer.errors import QueueFull, RendererError
from triton_renderer.protocol.stages import ChunkChoice, GeneratedChunk
from triton_renderer.settings import BUNDLED_MODEL, Settings

TOKEN = tokens("a")


class Clock:
    """Seconds that pass when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def derenderer(limit: int = 4, clock: Clock | None = None) -> tuple[Derenderer, OpenRequests]:
    table = OpenRequests(limit, 60, clock or Clock())
    return Derenderer(model(), table), table


def chunk(number: int, request_id: str = "1", final: bool = False, **fields) -> GeneratedChunk:
    fields.setdefault("derender", context(stream=True) if number == 0 else None)
    fields.setdefault("choices", [ChunkChoice(index=0, num_tokens=1, finish_reason="stop" if final else None)])
    return GeneratedChunk(id=request_id, number=number, final=final, **fields)


def push(under_test: Derenderer, part: GeneratedChunk) -> list[dict]:
    return [json.loads(document) for document in under_test.chunk(np.array(TOKEN), part)]


def test_requests_do_not_mix():
    under_test, table = derenderer()
    for request_id in "12":
        push(under_test, chunk(0, request_id, derender=context(stream=True, echo=f"request {request_id}")))
    for request_id in "21":
        (document,) = push(under_test, chunk(1, request_id, final=True))
        assert document["choices"][0]["delta"]["content"] == "a"
    assert len(table) == 0


def test_an_unknown_request_is_an_error():
    under_test, _ = derenderer()
    with pytest.raises(RendererError, match="chunk 1 of request 1 came, which derender does not know") as caught:
        push(under_test, chunk(1))
    assert caught.value.status == 500


@pytest.mark.parametrize("number", [1, 3])
def test_a_chunk_that_is_not_the_next_one_ends_the_request(number):
    under_test, table = derenderer()
    push(under_test, chunk(0))
    push(under_test, chunk(1))
    with pytest.raises(RendererError, match=f"chunk {number} of request 1 came where 2 was due"):
        push(under_test, chunk(number))
    assert len(table) == 0
    with pytest.raises(RendererError, match="does not know"):
        push(under_test, chunk(2))


def test_a_first_chunk_that_comes_twice_is_an_error():
    under_test, _ = derenderer()
    push(under_test, chunk(0))
    with pytest.raises(RendererError, match="came twice"):
        push(under_test, chunk(0))


def test_a_first_chunk_needs_its_context():
    under_test, table = derenderer()
    with pytest.raises(RendererError, match="for_generate"):
        push(under_test, chunk(0, derender=None))
    assert len(table) == 0


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (chunk(0, choices=[ChunkChoice(index=0, num_tokens=2)]), "output_token_ids has 1 tokens, chunk announces 2"),
        (chunk(0, choices=[ChunkChoice(index=0, num_tokens=1)], final=True), "ended without a finish reason for choice 0"),
        (chunk(0, derender=context(want_logprobs=True)), "0 logprobs for 1 tokens"),
    ],
)
def test_a_chunk_that_contradicts_itself_ends_the_request(part, message):
    under_test, table = derenderer()
    with pytest.raises(RendererError, match=message):
        push(under_test, part)
    assert len(table) == 0


def test_a_choice_that_goes_on_behind_its_end_is_an_error():
    under_test, _ = derenderer()
    push(under_test, chunk(0, choices=[ChunkChoice(index=0, num_tokens=1, finish_reason="stop")]))
    with pytest.raises(RendererError, match="goes on behind its end"):
        push(under_test, chunk(1))


def test_a_last_chunk_without_tokens_brings_what_was_held_back():
    under_test, _ = derenderer()
    (half,) = model().tokenizer.encode("🙂", add_special_tokens=False)[:1]
    under_test.chunk(np.array([half]), chunk(0))
    end = chunk(1, choices=[ChunkChoice(index=0, num_tokens=0, finish_reason="length")], final=True)
    (document,) = under_test.chunk(np.array([], np.int64), end)
    assert json.loads(document)["choices"][0]["delta"]["content"] == "\ufffd"


def test_more_requests_than_the_limit_are_refused_by_name_of_the_limit():
    under_test, table = derenderer(limit=2)
    for request_id in "12":
        push(under_test, chunk(0, request_id))
    with pytest.raises(QueueFull, match="2 open requests, its limit is 2"):
        push(under_test, chunk(0, "3"))
    push(under_test, chunk(1, "1", final=True))
    push(under_test, chunk(0, "3"))
    assert len(table) == 2


def test_a_request_of_which_nothing_comes_is_dropped_and_logged(caplog):
    clock = Clock()
    under_test, table = derenderer(clock=clock)
    push(under_test, chunk(0, "1"))
    push(under_test, chunk(0, "2"))
    clock.now = 50
    push(under_test, chunk(1, "1"))
    clock.now = 70
    with caplog.at_level(logging.WARNING):
        push(under_test, chunk(2, "1"))
    assert [record.getMessage() for record in caplog.records] == ["request 2 is dropped: no chunk of it has come for 60 s"]
    assert len(table) == 1
    with pytest.raises(RendererError, match="does not know"):
        push(under_test, chunk(1, "2"))


def test_an_answer_that_is_no_stream_may_come_in_several_chunks():
    under_test, table = derenderer()
    assert push(under_test, chunk(0, derender=context())) == []
    (document,) = push(under_test, chunk(1, final=True))
    assert document["choices"][0]["message"]["content"] == "aa"
    assert len(table) == 0


def test_it_loads_from_the_settings():
    settings = Settings(model=str(BUNDLED_MODEL), reasoning_parser="none", served_model_name="m", max_model_len=99)
    under_test = Derenderer.load(settings)
    (document,) = push(under_test, chunk(0, final=True, derender=context()))
    assert document["choices"][0]["message"]["content"] == "a"


def test_a_generation_config_adds_its_end_tokens():
    assert {model().tokenizer.eos_token_id, *tokens("<|endoftext|>")} <= model().eos_token_ids
