"""POST /v1/messages, its token count, its render and its derender route, as the official client sees them."""

from typing import Any

import anthropic
import pytest

from tests.unit.render.helpers import data_url, png
from triton_renderer.errors import QueueFull, RendererError, StageUnavailable
from triton_renderer.protocol.messages.events import message_of

from .clients import KEY, MODEL, Clients, clients
from .in_process import Says

TOOL: dict[str, Any] = {"name": "look", "input_schema": {"type": "object"}}
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
SAYS = Says('<think>hm</think>a red circle<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>')
PICTURE = {"type": "base64", "media_type": "image/png", "data": data_url(png()).partition(",")[2]}


async def test_thinking_text_and_a_call(api: Clients) -> None:
    api.stages.says = SAYS
    message = await api.anthropic.messages.create(model=MODEL, max_tokens=50, messages=HELLO, tools=[TOOL])  # type: ignore[list-item]
    thinking, text, call = message.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, bool(thinking.signature)) == ("hm", True)
    assert text.type == "text"
    assert text.text == "a red circle"
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("look", {"at": 1})
    assert (message.role, message.model, message.stop_reason) == ("assistant", MODEL, "tool_use")
    assert message.usage.output_tokens == len(SAYS.token_ids)
    assert message.usage.input_tokens == len(api.stages.rendered[-1].token_ids)


@pytest.mark.parametrize("tokens_a_chunk", [1, 3, 100])
async def test_a_stream_adds_up_to_the_same(api: Clients, tokens_a_chunk: int) -> None:
    api.stages.says = Says(SAYS.text, tokens_a_chunk=tokens_a_chunk)
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "messages": HELLO, "tools": [TOOL]}
    plain = await api.anthropic.messages.create(**asked)
    async with api.anthropic.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()

    def comparable(message: Any) -> Any:
        blocks = [block.model_dump(exclude={"id", "signature", "parsed_output"}) for block in message.content]
        return blocks, message.stop_reason, message.stop_sequence, message.usage

    assert comparable(streamed) == comparable(plain)


async def test_text_arrives_piece_by_piece(api: Clients) -> None:
    api.stages.says = Says("a red circle and two blue squares")
    async with api.anthropic.messages.stream(model=MODEL, max_tokens=50, messages=HELLO) as stream:
        pieces = [piece async for piece in stream.text_stream]
    assert len(pieces) > 3
    assert "".join(pieces) == api.stages.says.text


async def test_the_result_of_a_call_goes_back_with_a_picture(api: Clients) -> None:
    api.stages.says = SAYS
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "tools": [TOOL]}
    first = await api.anthropic.messages.create(**asked, messages=HELLO)
    call = first.content[-1]
    assert call.type == "tool_use"
    content = [{"type": "text", "text": "this"}, {"type": "image", "source": PICTURE}]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    api.stages.says = Says("two squares")
    history = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = await api.anthropic.messages.create(**asked, messages=history)
    assert second.content[0].type == "text"
    assert second.content[0].text == "two squares"
    assert second.stop_reason == "end_turn"
    assert len(api.stages.rendered[-1].context.features) == 1


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (Says("a red", finish_reason="length"), ("max_tokens", None)),
        (Says("a red END", stop_reason="END"), ("stop_sequence", "END")),
        (Says("a red"), ("end_turn", None)),
    ],
)
async def test_why_it_ended(api: Clients, says: Says, told: tuple[str, str | None]) -> None:
    api.stages.says = says
    message = await api.anthropic.messages.create(model=MODEL, max_tokens=50, messages=HELLO, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == told
    assert message.content[0].type == "text"
    assert message.content[0].text.strip() == "a red"


async def test_an_answer_without_text_has_an_empty_one(api: Clients) -> None:
    api.stages.says = Says("")
    message = await api.anthropic.messages.create(model=MODEL, max_tokens=50, messages=HELLO)
    assert message.content[0].type == "text"
    assert message.content[0].text == ""


async def test_thinking_is_asked_for(api: Clients) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": HELLO}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with_it = await api.anthropic.messages.count_tokens(**asked, thinking=thinking)
    without = await api.anthropic.messages.count_tokens(**asked, thinking={"type": "disabled"})
    plain = await api.anthropic.messages.count_tokens(**asked)
    assert with_it.input_tokens != without.input_tokens
    assert plain.input_tokens == without.input_tokens  # the bundled model thinks only where it is told to


async def test_tokens_are_counted_pictures_included(api: Clients) -> None:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": PICTURE}]}]
    count = await api.anthropic.messages.count_tokens(model=MODEL, messages=messages, system="be", tools=[TOOL])  # type: ignore[list-item]
    rendered = api.stages.rendered[-1]
    assert count.input_tokens == len(rendered.token_ids)
    message = await api.anthropic.messages.create(model=MODEL, max_tokens=9, messages=messages, system="be", tools=[TOOL])  # type: ignore[list-item]
    assert message.usage.input_tokens == count.input_tokens


@pytest.mark.parametrize(
    ("change", "error", "kind"),
    [
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": PICTURE | {"data": "AAAA"}}]}]},
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
    ],
)
async def test_errors_are_those_that_the_client_knows(api: Clients, change: Any, error: type[Exception], kind: str) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        await api.anthropic.messages.create(**{"model": MODEL, "max_tokens": 9, "messages": HELLO} | change)
    assert type(caught.value) is error
    body = caught.value.body
    assert isinstance(body, dict)
    assert (body["type"], body["error"]["type"]) == ("error", kind)


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (QueueFull("many are waiting"), 429, "rate_limit_error"),
        (StageUnavailable("stage `encode` is down"), 503, "overloaded_error"),
        (RendererError("broken"), 500, "api_error"),
    ],
)
async def test_so_are_those_of_the_server(api: Clients, failure: RendererError, status: int, kind: str) -> None:
    api.stages.failure = (0, failure)
    response = await api.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": HELLO})
    assert response.status_code == status
    assert response.json() == {"type": "error", "error": {"type": kind, "message": failure.message}}
    assert ("retry-after" in response.headers) == (status in (429, 503))


async def test_a_wrong_method_too(api: Clients) -> None:
    response = await api.http.get("http://shim/v1/messages", headers={"x-api-key": KEY})
    assert response.status_code == 405
    assert response.json()["type"] == "error"


async def test_a_wrong_key_too(api: Clients) -> None:
    stranger = anthropic.AsyncAnthropic(base_url="http://shim", api_key="other", http_client=api.http, max_retries=0)
    with pytest.raises(anthropic.AuthenticationError) as caught:
        await stranger.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "authentication_error"


async def test_a_stream_that_breaks_off_raises_in_the_client(api: Clients) -> None:
    api.stages.says = Says("a red circle")
    api.stages.failure = (2, StageUnavailable("stage `prefill_decode` went down"))
    async with api.anthropic.messages.stream(model=MODEL, max_tokens=9, messages=HELLO) as stream:
        with pytest.raises(anthropic.APIStatusError, match="went down"):
            await stream.get_final_message()


async def test_every_event_is_named(api: Clients) -> None:
    response = await api.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": HELLO, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = [part.split("\n") for part in response.text.strip().split("\n\n")]
    assert all(data.startswith(f'data: {{"type":"{name.removeprefix("event: ")}"') for name, data in parts)
    assert [parts[0][0], parts[1][0], parts[-1][0]] == ["event: message_start", "event: ping", "event: message_stop"]


@pytest.mark.parametrize("size", [None, 4])
async def test_render_generate_derender_is_the_coupled_answer(api: Clients, size: int | None) -> None:
    api.stages.says = SAYS
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "messages": HELLO, "tools": [TOOL]}
    coupled = (await api.post("/v1/messages", asked)).json()
    prompt = (await api.post("/v1/messages/render", asked)).json()
    assert prompt["request_id"].startswith("chatcmpl-")
    assert prompt["sampling_params"]["max_tokens"] == 50
    known = {"messages_request": asked, "prompt_token_ids": prompt["token_ids"]}
    if size is None:
        choice = {"index": 0, "token_ids": SAYS.token_ids, "finish_reason": "stop"}
        body = known | {"generate_response": {"request_id": "r", "choices": [choice]}}
        answer = (await api.post("/v1/messages/derender", body)).json()
    else:
        state: Any = None
        events: list[Any] = []
        for start in range(0, len(SAYS.token_ids), size):
            ids = SAYS.token_ids[start : start + size]
            last = start + size >= len(SAYS.token_ids)
            choice = {"index": 0, "token_ids": ids, "finish_reason": "stop" if last else None}
            body = known | {"stream": True, "generate_chunk": {"request_id": "r", "choices": [choice]}, "stream_state": state}
            step = (await api.post("/v1/messages/derender", body)).json()
            events, state = events + step["events"], step["stream_state"]
        answer = message_of(events)
    for document in (coupled, answer):
        document.pop("id")
        for block in document["content"]:
            block.pop("id", None)
            block.pop("signature", None)
    assert answer == coupled


@pytest.mark.parametrize("path", ["/v1/messages/render", "/v1/messages/derender"])
async def test_their_errors_are_those_of_the_other_renderer_routes(api: Clients, path: str) -> None:
    response = await api.post(path, {"stream": "maybe"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "Bad Request"


@pytest.mark.parametrize("path", ["/v1/messages/render", "/v1/messages/derender"])
async def test_scale_out_can_be_off(path: str) -> None:
    async with clients(enable_scale_out=False) as api:
        assert (await api.post(path, {})).status_code == 403
        message = await api.anthropic.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
        assert message.stop_reason == "end_turn"
