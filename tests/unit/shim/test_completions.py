"""One answer for several prompts."""

from collections.abc import AsyncGenerator

import orjson

from client.shim.completions import merged_document, merged_events


def document(*indices: int, usage: object) -> bytes:
    return orjson.dumps({"id": "x", "choices": [{"index": index} for index in indices], "usage": usage})


async def stream(*documents: bytes) -> AsyncGenerator[bytes, None]:
    for each in documents:
        yield each


def test_choices_are_in_the_order_of_their_indices() -> None:
    merged = orjson.loads(merged_document([document(1, 0, usage={}), document(3, 2, usage={})]))
    assert [choice["index"] for choice in merged["choices"]] == [0, 1, 2, 3]


def test_usage_adds_up_also_inside_and_null_stays_null() -> None:
    usages = [
        {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": None},
        {"prompt_tokens": 3, "prompt_tokens_details": None, "completion_tokens_details": None},
        {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": None},
    ]
    merged = orjson.loads(merged_document([document(i, usage=usage) for i, usage in enumerate(usages)]))
    assert merged["usage"] == {
        "prompt_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 6},
        "completion_tokens_details": None,
    }


def test_the_answer_to_a_single_prompt_is_not_touched() -> None:
    untouched = b'{"choices": [],   "usage": 1}'
    assert merged_document([untouched]) == untouched


async def test_usage_on_chunks_with_choices_stays_on_them() -> None:
    running = document(0, usage={"prompt_tokens": 1})
    closing = document(usage={"prompt_tokens": 1})
    events = [event async for event in merged_events([stream(running, closing), stream(closing)], 2)]
    assert events[0] == running
    assert [orjson.loads(event)["usage"] for event in events] == [{"prompt_tokens": 1}, {"prompt_tokens": 2}]
