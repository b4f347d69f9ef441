"""POST /v1/responses, its render and its derender route, as the official client sees them."""

import json
from typing import Any

import openai
import pytest

from tests.unit.render.helpers import data_url, png
from triton_renderer.errors import InvalidRequest, StageUnavailable

from .clients import KEY, MODEL, Clients, clients
from .in_process import Says

TOOL: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
SAYS = Says('<think>hm</think>a red circle<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>')
PATHS = ("/v1/responses", "/v1/responses/render")


async def test_text_reasoning_and_a_call(api: Clients) -> None:
    api.stages.says = SAYS
    response = await api.openai.responses.create(model=MODEL, input="look", tools=[TOOL], metadata={"a": "b"})
    reasoning, message, call = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content
    assert reasoning.content[0].text == "hm"
    assert message.type == "message"
    assert response.output_text == "a red circle"
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("look", {"at": 1})
    assert (response.status, response.metadata, response.model) == ("completed", {"a": "b"}, MODEL)
    assert response.usage
    assert response.usage.output_tokens == len(SAYS.token_ids)
    assert response.usage.input_tokens == len(api.stages.rendered[-1].token_ids)


@pytest.mark.parametrize("tokens_a_chunk", [1, 3, 100])
async def test_a_stream_adds_up_to_the_same(api: Clients, tokens_a_chunk: int) -> None:
    api.stages.says = Says(SAYS.text, tokens_a_chunk=tokens_a_chunk)
    plain = await api.openai.responses.create(model=MODEL, input="look", tools=[TOOL])
    async with api.openai.responses.stream(model=MODEL, input="look", tools=[TOOL]) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"

    def without_ids(items: Any) -> Any:
        return [item.model_dump(exclude={"id", "call_id", "parsed_arguments"}) for item in items]

    assert without_ids(streamed.output)[0] == without_ids(plain.output)[0]
    assert without_ids(streamed.output)[2] == without_ids(plain.output)[2]
    assert streamed.output_text == plain.output_text
    assert streamed.usage == plain.usage


async def test_the_answer_of_a_call_goes_back(api: Clients) -> None:
    api.stages.says = SAYS
    asked = [{"role": "user", "content": "look"}]
    first = await api.openai.responses.create(model=MODEL, input=asked, tools=[TOOL])  # type: ignore[arg-type]
    call = first.output[-1]
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "two squares"}
    history: list[Any] = [*asked, *[item.model_dump(exclude_none=True) for item in first.output], result]
    api.stages.says = Says("two squares")
    second = await api.openai.responses.create(model=MODEL, input=history, tools=[TOOL])
    assert second.output_text == "two squares"
    messages = [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": "a red circle",
            "tool_calls": [{"id": call.call_id, "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "two squares"},
    ]
    function = {name: value for name, value in TOOL.items() if name != "type"}
    await api.openai.chat.completions.create(
        model=MODEL,
        messages=messages,  # type: ignore[arg-type]
        tools=[{"type": "function", "function": function}],  # type: ignore[list-item]
    )
    by_responses, by_chat = api.stages.rendered[-2:]
    assert by_responses.token_ids.tolist() == by_chat.token_ids.tolist()


async def test_a_picture_travels_beside_the_document(api: Clients) -> None:
    parts = [
        {"type": "input_text", "text": "what is it?"},
        {"type": "input_image", "image_url": data_url(png()), "detail": "auto"},
    ]
    response = await api.openai.responses.create(model=MODEL, input=[{"role": "user", "content": parts}])  # type: ignore[list-item, misc]
    assert response.output_text == "hello"
    (feature,) = api.stages.rendered[-1].context.features
    assert feature.modality == "image"


async def test_a_bad_picture_is_told_by_its_place(api: Clients) -> None:
    parts = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
    with pytest.raises(openai.BadRequestError) as caught:
        await api.openai.responses.create(model=MODEL, input=[{"role": "user", "content": parts}])  # type: ignore[list-item, misc]
    assert caught.value.param == "input.0.content.1"


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_the_text(api: Clients, stream: bool) -> None:
    api.stages.says = SAYS
    asked: dict[str, Any] = {"model": MODEL, "input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    if stream:
        async with api.openai.responses.stream(**asked) as events:
            response: Any = await events.get_final_response()
    else:
        response = await api.openai.responses.create(**asked)
    (message,) = (item for item in response.output if item.type == "message")
    (part,) = message.content
    assert "a red circle" in "".join(entry.token for entry in part.logprobs)
    assert len(part.logprobs) < len(SAYS.token_ids)


@pytest.mark.parametrize(("finish", "status"), [("stop", "completed"), ("length", "incomplete")])
async def test_an_answer_that_was_cut_says_so(api: Clients, finish: str, status: str) -> None:
    api.stages.says = Says("a red", finish_reason=finish)
    response = await api.openai.responses.create(model=MODEL, input="x", max_output_tokens=2)
    assert response.status == status
    assert (response.incomplete_details is not None) == (status == "incomplete")


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {"request_id": "mine"}, "mine"),
        ({"x-request-id": "theirs"}, {}, "resp_theirs"),
        ({"x-request-id": "theirs"}, {"request_id": "mine"}, "mine"),
    ],
)
async def test_ids(api: Clients, headers: dict[str, str], body: dict[str, str], expected: str) -> None:
    response = await api.openai.responses.create(model=MODEL, input="x", extra_headers=headers, extra_body=body)
    assert response.id == expected
    prompt = await api.http.post(
        "http://shim/v1/responses/render", json={"input": "x"} | body, headers=headers | {"authorization": f"Bearer {KEY}"}
    )
    assert prompt.json()["request_id"] == expected


async def test_without_an_id_there_is_a_new_one(api: Clients) -> None:
    ids = {(await api.openai.responses.create(model=MODEL, input="x")).id for _ in range(2)}
    assert len(ids) == 2
    assert all(id.startswith("resp_") for id in ids)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"input": "x", "previous_response_id": "resp_1"}, (400, "invalid_request_error", "previous_response_id")),
        ({"input": "x", "model": "other"}, (404, "NotFoundError", "model")),
        ({"input": "x", "temperature": "hot"}, (400, "Bad Request", "temperature")),
        ({"input": [{"type": "item_reference", "id": "x"}]}, (400, "Bad Request", "input.0.type")),
        ({}, (400, "Bad Request", "input")),
        ({"input": "x", "reasoning": {"effort": "much"}}, (400, "Bad Request", "reasoning.effort")),
        ({"input": "x", "max_output_tokens": 10**6}, (400, "BadRequestError", "max_output_tokens")),
        ({"input": "x", "chat_template": "{{ messages }}"}, (400, "BadRequestError", "chat_template")),
    ],
    ids=str,
)
async def test_errors(api: Clients, path: str, body: dict[str, Any], told: tuple[int, str, str]) -> None:
    response = await api.post(path, body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == told
    assert error["code"] == response.status_code


async def test_an_answer_in_the_background_is_refused_by_the_server_that_gives_answers(api: Clients) -> None:
    body = {"input": "x", "background": True}
    rendered, answered = [await api.post(path, body) for path in ("/v1/responses/render", "/v1/responses")]
    assert rendered.status_code == 200
    error = answered.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (400, "invalid_request_error", "background")


async def test_a_stream_that_breaks_off_raises_in_the_client(api: Clients) -> None:
    api.stages.says = Says("a red circle")
    api.stages.failure = (2, StageUnavailable("stage `prefill_decode` went down"))
    stream = await api.openai.responses.create(model=MODEL, input="x", stream=True)
    with pytest.raises(openai.APIError, match="went down"):
        async for _ in stream:
            pass


async def test_its_event_has_the_documented_form_and_the_next_number(api: Clients) -> None:
    api.stages.says = Says("a red circle")
    api.stages.failure = (2, InvalidRequest("no", "input"))
    response = await api.post("/v1/responses", {"input": "x", "stream": True})
    events = [part.split("\n") for part in response.text.strip().split("\n\n")]
    documents = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert [name.removeprefix("event: ") for name, _ in events] == [document["type"] for document in documents]
    assert [document["sequence_number"] for document in documents] == list(range(len(documents)))
    last = documents[-1]
    assert (last["type"], last["message"], last["param"], last["code"]) == ("error", "no", "input", "BadRequestError")


async def test_an_error_before_the_first_event_has_its_real_status(api: Clients) -> None:
    api.stages.failure = (0, StageUnavailable("stage `encode` is down"))
    with pytest.raises(openai.InternalServerError) as caught:
        await api.openai.responses.create(model=MODEL, input="x", stream=True)
    assert caught.value.status_code == 503


@pytest.mark.parametrize("size", [None, 4])
async def test_render_generate_derender_is_the_coupled_answer(api: Clients, size: int | None) -> None:
    api.stages.says = SAYS
    asked: dict[str, Any] = {"model": MODEL, "input": "look", "tools": [TOOL]}
    coupled = (await api.post("/v1/responses", asked)).json()
    prompt = (await api.post("/v1/responses/render", asked)).json()
    known = {
        "responses_request": asked,
        "prompt_token_ids": prompt["token_ids"],
        "sampling_params": prompt["sampling_params"],
    }
    if size is None:
        choice = {"index": 0, "token_ids": SAYS.token_ids, "finish_reason": "stop"}
        generated = {"request_id": prompt["request_id"], "choices": [choice]}
        answer = (await api.post("/v1/responses/derender", known | {"generate_response": generated})).json()
    else:
        state: Any = None
        events: list[Any] = []
        for start in range(0, len(SAYS.token_ids), size):
            ids = SAYS.token_ids[start : start + size]
            last = start + size >= len(SAYS.token_ids)
            choice = {"index": 0, "token_ids": ids, "finish_reason": "stop" if last else None}
            chunk = {"request_id": prompt["request_id"], "choices": [choice]}
            body = known | {"stream": True, "generate_chunk": chunk, "stream_state": state}
            step = (await api.post("/v1/responses/derender", body)).json()
            events, state = events + step["events"], step["stream_state"]
        answer = events[-1]["response"]
    for document in (coupled, answer):
        for item in document["output"]:
            item.pop("id")
            item.pop("call_id", None)
    apart = {"id", "created_at", "kv_transfer_params", "ec_transfer_params"}
    assert {k: v for k, v in answer.items() if k not in apart} == {k: v for k, v in coupled.items() if k not in apart}


@pytest.mark.parametrize("path", ["/v1/responses/render", "/v1/responses/derender"])
async def test_scale_out_can_be_off(path: str) -> None:
    async with clients(enable_scale_out=False) as api:
        assert (await api.post(path, {"input": "x"})).status_code == 403
        assert (await api.openai.responses.create(model=MODEL, input="x")).output_text == "hello"
