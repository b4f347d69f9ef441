"""Tokens of generate through the derender routes: whole, and chunk by chunk, as the coupled routes answer."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.asking import MODEL, sse, user

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CHAT_REQUEST = {
    "model": MODEL,
    "messages": user("How many squares are there?"),
    "temperature": 0,
    "max_tokens": 12,
    "logprobs": True,
    "top_logprobs": 2,
    "stop": ["zzz"],
}
ELSEWHERE = {"cache_salt": "coupled"}
"""So that the second of two equal requests does not find the first one's keys and values."""
COMPLETION_REQUEST = {"model": MODEL, "prompt": ["a red", "two blue"], "temperature": 0, "max_tokens": 6, "logprobs": 2}


def generated(http: httpx.Client, rendered: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a generate stream, usage included."""
    body = rendered | {"stream": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", "/inference/v1/generate", json=body) as response:
        return list(sse(response))


def derendered(http: httpx.Client, route: str, chunks: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    """The chunks that the streaming derender route makes of them. `fields` go with every call."""
    state, answers = None, []
    for chunk in chunks:
        body = {"model": MODEL, "stream": True, "generate_chunk": chunk, "stream_state": state} | fields
        response = http.post(f"{route}/derender", json=body)
        assert response.status_code == 200, response.text
        state = response.json()["stream_state"]
        answers.append(response.json()["chunk"])
    return answers


def test_a_derendered_chat_stream_is_the_coupled_answer(http: httpx.Client) -> None:
    rendered = http.post(f"{CHAT}/render", json=CHAT_REQUEST).json()
    chunks = derendered(
        http, CHAT, generated(http, rendered), chat_request=CHAT_REQUEST, prompt_token_ids=rendered["token_ids"]
    )
    coupled = http.post(CHAT, json=CHAT_REQUEST | ELSEWHERE).json()
    (expected,) = coupled["choices"]
    parts = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [part["delta"]["role"] for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
    assert "".join(part["delta"]["content"] or "" for part in parts) == expected["message"]["content"]
    logprobs = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
    assert logprobs == expected["logprobs"]["content"]
    assert parts[-1]["finish_reason"] == expected["finish_reason"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == coupled["usage"]


def test_derendered_completions_are_the_coupled_answer(http: httpx.Client) -> None:
    rendered = http.post(f"{COMPLETIONS}/render", json=COMPLETION_REQUEST).json()
    responses = [http.post("/inference/v1/generate", json=request).json() for request in rendered]
    body = {
        "model": MODEL,
        "generate_responses": responses,
        "prompt_token_ids": [request["token_ids"] for request in rendered],
        "completion_request": COMPLETION_REQUEST,
    }
    whole = http.post(f"{COMPLETIONS}/derender", json=body)
    assert whole.status_code == 200, whole.text
    coupled = http.post(COMPLETIONS, json=COMPLETION_REQUEST | ELSEWHERE).json()
    for found, expected in zip(whole.json()["choices"], coupled["choices"], strict=True):
        # The coupled route decodes both prompts as one batch, which rounds differently.
        logprobs, other = found["logprobs"].pop("token_logprobs"), expected["logprobs"].pop("token_logprobs")
        assert logprobs == pytest.approx(other, abs=1e-4)
        del found["logprobs"]["top_logprobs"], expected["logprobs"]["top_logprobs"]
        assert found == expected
    assert whole.json()["usage"] == coupled["usage"]
    for request, expected in zip(rendered, coupled["choices"], strict=True):
        fields = {"completion_request": COMPLETION_REQUEST, "prompt_token_ids": request["token_ids"]}
        chunks = derendered(http, COMPLETIONS, generated(http, request), **fields)
        parts = [choice for chunk in chunks for choice in chunk["choices"]]
        assert "".join(part["text"] for part in parts) == expected["text"]
        offsets = [offset for part in parts if part["logprobs"] for offset in part["logprobs"]["text_offset"]]
        assert offsets == expected["logprobs"]["text_offset"]


def test_of_many_streams_at_once_none_waits_for_the_others(http: httpx.Client) -> None:
    """16 of 2,000 tokens each: when the first one ends, each of the others has had at least half of its answers."""
    num_streams, num_calls, size = 16, 125, 16
    words = http.post(f"{COMPLETIONS}/render", json=COMPLETION_REQUEST | {"prompt": "a red circle and 天气 🙂 "}).json()[0][
        "token_ids"
    ]
    outputs = [
        list(itertools.islice(itertools.cycle(words[index % len(words) :]), num_calls * size)) for index in range(num_streams)
    ]
    answered = [0] * num_streams
    seen_at_each_end: list[list[int]] = []

    def run(index: int) -> str:
        text, state = "", None
        for start in range(0, num_calls * size, size):
            choice = {"index": 0, "token_ids": outputs[index][start : start + size]}
            if start + size == len(outputs[index]):
                choice["finish_reason"] = "length"
            body = {"stream": True, "generate_chunk": {"request_id": "r", "choices": [choice]}, "stream_state": state}
            answer = http.post(f"{COMPLETIONS}/derender", json=body).json()
            state = answer["stream_state"]
            text += answer["chunk"]["choices"][0]["text"]
            answered[index] += 1
        seen_at_each_end.append(list(answered))
        return text

    with ThreadPoolExecutor(num_streams) as pool:
        texts = list(pool.map(run, range(num_streams)))
    assert min(seen_at_each_end[0]) >= num_calls // 2, seen_at_each_end[0]
    choices = [{"index": index, "token_ids": output, "finish_reason": "length"} for index, output in enumerate(outputs)]
    body = {"generate_responses": [{"request_id": "r", "choices": choices}]}
    whole = http.post(f"{COMPLETIONS}/derender", json=body).json()
    assert texts == [choice["text"] for choice in whole["choices"]]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_a_state_that_was_altered_is_a_400_that_names_its_place(http: httpx.Client, route: str) -> None:
    name = "chat_request" if route == CHAT else "completion_request"
    request = CHAT_REQUEST if route == CHAT else COMPLETION_REQUEST
    body = {"stream": True, name: request, "prompt_token_ids": [1]}
    body["generate_chunk"] = {"request_id": "r", "choices": [{"index": 0, "token_ids": [5]}]}
    state = http.post(f"{route}/derender", json=body).json()["stream_state"]
    state["choice"]["num_tokens"] = -1
    refused = http.post(f"{route}/derender", json=body | {"stream_state": state})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == "stream_state.choice.num_tokens"
