"""Tokens in, tokens out over HTTP: how much is generated, where it stops, and what is told of the prompt."""

from typing import Any

import httpx
import pytest

from tests.e2e.asking import MODEL, image_part, noise, sse, user

CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"
CONTEXT_TOKENS = 8192
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


def rendered(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post(f"{CHAT}/render", json={"model": MODEL, "messages": user("Count to ten."), "temperature": 0} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def generate(http: httpx.Client, body: dict[str, Any], stream: bool = False) -> dict[str, Any]:
    """The answer, put together from its chunks where it is streamed: one choice."""
    if not stream:
        answer = http.post(GENERATE, json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())
    with http.stream("POST", GENERATE, json=body | {"stream": True, "stream_options": {"include_usage": True}}) as response:
        *chunks, last = list(sse(response))
    parts = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    whole = parts[-1] | {
        "token_ids": [token for part in parts for token in part["token_ids"]],
        "text": "".join(part.get("text") or "" for part in parts),
    }
    return {"choices": [whole], "usage": last["usage"]}


def prompt(length: int) -> list[int]:
    return [5 + place % 200 for place in range(length)]


@STREAMED
def test_without_a_limit_as_much_is_generated_as_the_context_leaves(http: httpx.Client, stream: bool) -> None:
    body: dict[str, Any] = {"token_ids": prompt(CONTEXT_TOKENS - 40), "sampling_params": {"temperature": 0, "ignore_eos": True}}
    for limit, length in ((None, 40), (16, 16)):
        params = body["sampling_params"] | ({"max_tokens": limit} if limit else {})
        answer = generate(http, body | {"sampling_params": params}, stream)
        assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"] == length
        assert answer["choices"][0]["finish_reason"] == "length"


def test_a_limit_and_no_limit_are_told_apart_behind_render(http: httpx.Client) -> None:
    long = "word " * 8050
    free = rendered(http, messages=user(long), ignore_eos=True)
    room = CONTEXT_TOKENS - len(free["token_ids"])
    assert 16 < room < 1000
    assert len(generate(http, free)["choices"][0]["token_ids"]) == room
    limited = rendered(http, messages=user(long), ignore_eos=True, max_tokens=16)
    assert len(generate(http, limited)["choices"][0]["token_ids"]) == 16


def test_a_prompt_that_fills_the_context_is_400_with_both_numbers(http: httpx.Client) -> None:
    for length in (CONTEXT_TOKENS, CONTEXT_TOKENS + 5):
        for route, body in (
            (GENERATE, {"token_ids": prompt(length), "sampling_params": {}}),
            ("/v1/completions", {"model": MODEL, "prompt": prompt(length)}),
        ):
            answer = http.post(route, json=body)
            assert answer.status_code == 400, answer.text
            message = answer.json()["error"]["message"]
            assert str(length) in message
            assert str(CONTEXT_TOKENS) in message


@STREAMED
def test_the_prompt_and_its_places_are_told_where_asked_for(http: httpx.Client, stream: bool) -> None:
    """Once, with the first chunk of a stream; and nothing of the picture's content comes back, asked for or not."""
    body = rendered(http, messages=user("a", image_part(noise(31)), "b", image_part(noise(32, 150, 90))), max_tokens=5)
    once = ("prompt_token_ids", "mm_placeholders")

    def documents(**fields: Any) -> tuple[list[dict[str, Any]], str]:
        if not stream:
            answer = http.post(GENERATE, json=body | fields)
            return [answer.json()], answer.text
        with http.stream("POST", GENERATE, json=body | fields | {"stream": True}) as response:
            found = list(sse(response))
        return found, repr(found)

    (first, *others), text = documents(return_token_ids=True)
    assert first["prompt_token_ids"] == body["token_ids"]
    spans = first["mm_placeholders"]["image"]
    asked = body["features"]["mm_placeholders"]["image"]
    assert [(span["offset"], span["length"]) for span in spans] == [(span["offset"], span["length"]) for span in asked]
    for span in spans:
        inside = first["prompt_token_ids"][span["offset"] : span["offset"] + span["length"]]
        assert len(set(inside)) == 1
    assert not any(chunk.get(name) for chunk in others for name in once)
    without, other_text = documents()
    assert not any(chunk.get(name) for chunk in without for name in once)
    # The same document otherwise: fields that a plain answer has in any case are null there.
    assert without[0].keys() | set(once) == first.keys() | set(once)
    for answer in (text, other_text):
        assert "pixel" not in answer
        assert all(data[:40] not in answer and data[-80:-40] not in answer for data in body["features"]["kwargs_data"]["image"])


@STREAMED
@pytest.mark.parametrize("mode", ["text", "tokens"])
def test_a_stop_string_ends_the_generation_and_not_only_the_text(http: httpx.Client, mode: str, stream: bool) -> None:
    body = rendered(http) | {"output_mode": "text"}
    (whole,) = generate(http, body)["choices"]
    text, token_ids = whole["text"], whole["token_ids"]
    stop = text[len(text) // 2 - 2 : len(text) // 2 + 3]  # it begins and ends inside of words
    before = text[: text.index(stop)]

    def stopped(**params: Any) -> dict[str, Any]:
        answer = generate(http, body | {"output_mode": mode, "sampling_params": body["sampling_params"] | params}, stream)
        (choice,) = answer["choices"]
        assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])
        assert choice["token_ids"] == token_ids[: len(choice["token_ids"])]
        return dict(choice)

    cut = stopped(stop=["never said", stop])
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    assert 0 < len(cut["token_ids"]) < len(token_ids)
    included = stopped(stop=[stop], include_stop_str_in_output=True)
    assert included["token_ids"] == cut["token_ids"]
    missed = stopped(stop=[stop + "X"])
    assert (missed["token_ids"], missed["stop_reason"]) == (token_ids, None)
    if mode == "text":
        assert (cut["text"], included["text"], missed["text"]) == (before, before + stop, text)
    by_token = stopped(stop_token_ids=[token_ids[3]])
    assert by_token["token_ids"] == token_ids[: token_ids.index(token_ids[3]) + 1]
    assert (by_token["finish_reason"], by_token["stop_reason"]) == ("stop", token_ids[3])


@STREAMED
def test_a_stop_string_ends_a_chat_alike(http: httpx.Client, stream: bool) -> None:
    body = {"model": MODEL, "messages": user("Count to ten."), "temperature": 0, "return_token_ids": True}
    whole = http.post(CHAT, json=body).json()
    text = whole["choices"][0]["message"]["content"]
    stop = text[len(text) // 2 - 2 : len(text) // 2 + 3]
    cut = body | {"stop": stop}
    if stream:
        with http.stream("POST", CHAT, json=cut | {"stream": True, "stream_options": {"include_usage": True}}) as response:
            *chunks, last = list(sse(response))
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        content = "".join(choice["delta"].get("content") or "" for choice in choices)
        end, usage = choices[-1], last["usage"]
    else:
        answer = http.post(CHAT, json=cut).json()
        (end,), usage = answer["choices"], answer["usage"]
        content = end["message"]["content"]
    assert (content, end["finish_reason"], end["stop_reason"]) == (text[: text.index(stop)], "stop", stop)
    assert usage["completion_tokens"] < whole["usage"]["completion_tokens"]
