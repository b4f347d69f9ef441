"""The official OpenAI and Anthropic clients against the Responses and the Messages API of a whole server."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from training.conversations import Conversation
from triton_renderer.launcher.supervisor import Stack

from .asking import MODEL, chat_body, data_url, draw, png
from .conftest import TIMEOUT_S
from .test_openai import conversations

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def claude(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.shim_url, api_key="none", timeout=TIMEOUT_S, max_retries=0) as client:
        yield client


def pictures(conversation: Conversation) -> list[bytes]:
    return [png(draw(scene, 0)) for scene in conversation.scenes]


def turns(conversation: Conversation, part: Callable[[dict[str, Any]], dict[str, Any]]) -> list[Any]:
    """The messages with their parts in another form."""
    return [
        {"role": message["role"], "content": content if isinstance(content, str) else [part(given) for given in content]}
        for message in conversation.messages
        for content in [message["content"]]
    ]


def as_responses(conversation: Conversation) -> dict[str, Any]:
    """The same request as `chat_body`, for the Responses API."""
    data = iter(pictures(conversation))

    def part(given: dict[str, Any]) -> dict[str, Any]:
        if given["type"] == "image":
            return {"type": "input_image", "image_url": data_url(next(data)), "detail": "auto"}
        return {"type": "input_text", "text": given["text"]}

    body: dict[str, Any] = {"model": MODEL, "input": turns(conversation, part), "temperature": 0, "max_output_tokens": 128}
    if conversation.tools:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in conversation.tools]
    if conversation.thinking:
        body["reasoning"] = {"effort": "high"}
    return body


def as_messages(conversation: Conversation) -> dict[str, Any]:
    """The same request, for the Messages API."""
    data = iter(pictures(conversation))

    def block(given: dict[str, Any]) -> dict[str, Any]:
        if given["type"] == "image":
            encoded = data_url(next(data)).partition(",")[2]
            return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
        return {"type": "text", "text": given["text"]}

    body: dict[str, Any] = {"model": MODEL, "max_tokens": 128}  # the model decodes greedily by itself
    body["messages"] = turns(conversation, block)
    if body["messages"][0]["role"] == "system":
        body["system"] = body["messages"].pop(0)["content"]
    if conversation.tools:
        body["tools"] = [
            {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
            for function in (tool["function"] for tool in conversation.tools)
        ]
    if conversation.thinking:
        body["extra_body"] = {"chat_template_kwargs": {"enable_thinking": True}}
    return body


def chat_says(client: openai.OpenAI, conversation: Conversation) -> tuple[str, str, list[tuple[str, Any]]]:
    """Reasoning, text and calls of the chat route, which is the judge."""
    message = client.chat.completions.create(**chat_body(conversation)).choices[0].message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]  # type: ignore[union-attr]
    return getattr(message, "reasoning", None) or "", message.content or "", calls


def response_says(response: Any) -> tuple[str, str, list[tuple[str, Any]]]:
    reasoning = "".join(part.text for item in response.output if item.type == "reasoning" for part in item.content or [])
    calls = [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]
    return reasoning, response.output_text, calls


def message_says(message: Any) -> tuple[str, str, list[tuple[str, Any]]]:
    thinking = "".join(block.thinking for block in message.content if block.type == "thinking")
    text = "".join(block.text for block in message.content if block.type == "text")
    return thinking, text, [(block.name, block.input) for block in message.content if block.type == "tool_use"]


@pytest.mark.parametrize("kind", ["description", "count", "tools", "thinking"])
def test_all_three_apis_say_the_same(client: openai.OpenAI, claude: anthropic.Anthropic, kind: str) -> None:
    for conversation in conversations(kind, 4):
        expected = chat_says(client, conversation)
        assert response_says(client.responses.create(**as_responses(conversation))) == expected
        assert message_says(claude.messages.create(**as_messages(conversation))) == expected


@pytest.mark.parametrize("kind", ["description", "tools", "thinking"])
def test_streams_add_up_to_the_plain_answers(client: openai.OpenAI, claude: anthropic.Anthropic, kind: str) -> None:
    for conversation in conversations(kind, 2):
        expected = chat_says(client, conversation)
        with client.responses.stream(**as_responses(conversation)) as stream:
            numbers = [event.sequence_number for event in stream]
            assert response_says(stream.get_final_response()) == expected
        assert numbers == list(range(len(numbers)))
        with claude.messages.stream(**as_messages(conversation)) as events:
            assert message_says(events.get_final_message()) == expected


def test_a_call_and_its_result_go_round(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    conversation = next(c for c in conversations("tools", 20) if "<tool_call>" in c.answer)
    body = as_responses(conversation)
    first = client.responses.create(**body)
    (call,) = (item for item in first.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "red"}
    second = client.responses.create(**body | {"input": [*body["input"], *first.output, result]})
    asked = as_messages(conversation)
    message = claude.messages.create(**asked)
    (use,) = (block for block in message.content if block.type == "tool_use")
    answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "red"}]}
    turns = [*asked["messages"], {"role": "assistant", "content": message.content}, answer]
    continued = claude.messages.create(**asked | {"messages": turns})
    assert response_says(second)[1] == message_says(continued)[1] != ""


def test_tokens_are_counted_as_they_are_used(claude: anthropic.Anthropic) -> None:
    (conversation,) = conversations("description", 1)
    body = as_messages(conversation)
    counted = claude.messages.count_tokens(model=MODEL, messages=body["messages"])
    usage = claude.messages.create(**body).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_an_answer_cut_by_its_limit_says_so(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    response = client.responses.create(model=MODEL, input="Hello", max_output_tokens=3, extra_body={"ignore_eos": True})
    assert response.status == "incomplete"
    assert response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage
    assert response.usage.output_tokens == 3
    message = claude.messages.create(model=MODEL, max_tokens=1, messages=HELLO)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 1


def test_a_stop_sequence_is_told(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model=MODEL, max_tokens=60, messages=HELLO).content[0]
    assert whole.type == "text"
    stop = whole.text.split()[-1]
    cut = claude.messages.create(model=MODEL, max_tokens=60, messages=HELLO, stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].type == "text"
    assert cut.content[0].text == whole.text[: whole.text.index(stop)]


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_render_generate_derender_is_the_coupled_answer(http: httpx.Client, api: str) -> None:
    (conversation,) = conversations("description", 1)
    body = as_responses(conversation) if api == "responses" else as_messages(conversation)
    coupled = http.post(f"/v1/{api}", json=body).json()
    prompt = http.post(f"/v1/{api}/render", json=body).json()
    generated = http.post("/inference/v1/generate", json=prompt | {"stream": False, "stream_options": None}).json()
    known = {f"{api}_request": body, "prompt_token_ids": prompt["token_ids"]}
    whole = http.post(f"/v1/{api}/derender", json=known | {"generate_response": generated}).json()
    (choice,) = generated["choices"]
    state = None
    events = []
    for number, token_id in enumerate(choice["token_ids"]):
        last = number == len(choice["token_ids"]) - 1
        part = {"index": 0, "token_ids": [token_id], "finish_reason": choice["finish_reason"] if last else None}
        chunk = {"request_id": generated["request_id"], "choices": [part]}
        step = {"stream": True, "generate_chunk": chunk, "stream_state": state}
        answer = http.post(f"/v1/{api}/derender", json=known | step).json()
        events += answer["events"]
        state = answer["stream_state"]
    if api == "responses":
        texts = [document["output"][-1]["content"][0]["text"] for document in (coupled, whole, events[-1]["response"])]
    else:
        deltas = [event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta"]
        texts = [coupled["content"][-1]["text"], whole["content"][-1]["text"], "".join(deltas)]
    assert texts[0]
    assert texts == [texts[0]] * 3
    assert coupled["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == len(choice["token_ids"])


def test_errors_of_both(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="x")
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model=MODEL, max_tokens=10**7, messages=HELLO)
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="other", max_tokens=5, messages=HELLO)
    broken = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    turn: Any = {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": broken}]}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.1"):
        claude.messages.create(model=MODEL, max_tokens=5, messages=[turn])


def test_many_streams_at_once_stay_apart(client: openai.OpenAI) -> None:
    asked = conversations("description", 6)
    expected = [chat_says(client, conversation)[1] for conversation in asked]
    streams = [client.responses.create(**as_responses(conversation), stream=True) for conversation in asked]
    texts = ["" for _ in asked]
    open_streams = dict(enumerate(map(iter, streams)))
    while open_streams:
        for index, stream in list(open_streams.items()):
            event = next(stream, None)
            if event is None:
                del open_streams[index]
            elif event.type == "response.output_text.delta":
                texts[index] += event.delta
    assert texts == expected
