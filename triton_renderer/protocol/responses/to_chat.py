"""A Responses request as the chat request that asks for the same."""

import json
from collections.abc import Callable
from typing import Any

from triton_renderer.errors import InvalidRequest, NoHistory
from triton_renderer.protocol.places import Places
from triton_renderer.protocol.responses.request import (
    CallOutput,
    CustomToolCall,
    FunctionCall,
    InputItem,
    InputMessage,
    ReasoningItem,
    ResponsesRequest,
    ResponsesTool,
    ToolChoiceObject,
)

CUSTOM_INPUT = "input"
"""The argument that holds a custom tool's text: the model is shown a function with this one."""

_SAME_IN_CHAT = {
    "model", "user", "request_id", "parallel_tool_calls", "include_reasoning", "stream", "temperature", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "structured_outputs", "chat_template",
    "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "mm_payload", "return_mm_kwargs", "priority", "cache_salt",
    "kv_transfer_params", "ec_transfer_params",
}  # fmt: skip

_PLACES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "truncate_prompt_tokens": "truncation",
    "logprobs": "include",
}

Message = dict[str, Any]


def chat_request(request: ResponsesRequest) -> tuple[dict[str, Any], Places]:
    """The body of the chat request, and where its parts came from.

    Raises InvalidRequest for `previous_response_id`, which needs a server that keeps responses, and for what has no
    counterpart.
    """
    _check(request)
    conversation = _Conversation(request)
    body = request.model_dump(include=_SAME_IN_CHAT, exclude_unset=True)
    body |= {"messages": conversation.messages, "max_completion_tokens": request.max_output_tokens}
    if conversation.is_unfinished:
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    if request.reasoning is not None and request.reasoning.effort is not None:
        body["reasoning_effort"] = request.reasoning.effort
    if request.wants_logprobs:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.truncation != "disabled":
        body["truncate_prompt_tokens"] = -1
    if (response_format := _response_format(request)) is not None:
        body["response_format"] = response_format
    if request.function_tools:
        body["tools"] = [_chat_tool(tool) for tool in request.function_tools]
    body["tool_choice"] = _tool_choice(request)
    return body, Places(_PLACES | conversation.origins)


def _check(request: ResponsesRequest) -> None:
    if request.previous_response_id is not None:
        raise NoHistory(
            "previous_response_id: this server keeps no responses; send the whole conversation as input", "previous_response_id"
        )
    if request.prompt is not None:
        raise InvalidRequest("prompt: prompt templates are not supported", "prompt")


class _Conversation:
    """The messages that instructions and input items amount to.

    What the model said in one go is several items: reasoning, a text and calls become one message of the assistant, as long
    as no two of them claim the same field.
    """

    def __init__(self, request: ResponsesRequest) -> None:
        self.messages: list[Message] = []
        self.origins: dict[str, str] = {}
        if request.instructions:
            self._add({"role": "system", "content": request.instructions}, "instructions")
        if isinstance(request.input, str):
            self._add({"role": "user", "content": request.input}, "input")
            self.is_unfinished = False
            return
        for index, item in enumerate(request.input):
            self._add_item(item, f"input.{index}")
        last = request.input[-1] if request.input else None
        self.is_unfinished = isinstance(last, InputMessage | ReasoningItem) and last.status in ("in_progress", "incomplete")

    def _add(self, message: Message, origin: str) -> None:
        self.origins[f"messages.{len(self.messages)}"] = origin
        self.messages.append(message)

    def _add_item(self, item: InputItem, origin: str) -> None:
        match item:
            case InputMessage(role="assistant"):
                self._say("content", item.content, f"{origin}.content")
            case InputMessage():
                self._add({"role": item.role, "content": item.content}, origin)
            case FunctionCall():
                self._call(item.call_id, item.name, item.arguments, origin)
            case CustomToolCall():
                arguments = json.dumps({CUSTOM_INPUT: item.input}, ensure_ascii=False)
                self._call(item.call_id, item.name, arguments, origin)
            case CallOutput():
                self._add({"role": "tool", "tool_call_id": item.call_id, "content": item.output}, origin)
                self.origins[f"messages.{len(self.messages) - 1}.content"] = f"{origin}.output"
            case ReasoningItem():
                self._say("reasoning", _reasoning_text(item, origin), origin)

    def _say(self, field: str, value: Any, origin: str) -> None:
        """Adds a field of the assistant's message: to the last one, where that has none yet."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or field in last:
            self._add({"role": "assistant"}, origin)
            last = self.messages[-1]
        last[field] = value
        self.origins[f"messages.{len(self.messages) - 1}.{field}"] = origin

    def _call(self, call_id: str, name: str, arguments: str, origin: str) -> None:
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant":
            self._add({"role": "assistant"}, origin)
            last = self.messages[-1]
        calls = last.setdefault("tool_calls", [])
        self.origins[f"messages.{len(self.messages) - 1}.tool_calls.{len(calls)}"] = origin
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})


def _reasoning_text(item: ReasoningItem, origin: str) -> str:
    if item.encrypted_content:
        where = f"{origin}.encrypted_content"
        raise InvalidRequest(f"{where}: encrypted reasoning is not supported", where)
    texts = [part.get("text") for part in item.content or item.summary]
    return "".join(text for text in texts if isinstance(text, str))


def _response_format(request: ResponsesRequest) -> dict[str, Any] | None:
    given = request.text.format if request.text is not None else None
    if given is None:
        return None
    if request.structured_outputs is not None:
        raise InvalidRequest("structured_outputs: not together with text.format", "structured_outputs")
    if given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}


def _chat_tool(tool: ResponsesTool) -> dict[str, Any]:
    if tool.type == "custom":
        function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": _CUSTOM_PARAMETERS}
    else:
        function = tool.model_dump(exclude={"type", "format"}, exclude_unset=True)
    return {"type": "function", "function": function}


_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "What the tool is given, as free text."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


def _tool_choice(request: ResponsesRequest) -> Any:
    choice = request.tool_choice or "auto"
    if isinstance(choice, ToolChoiceObject):
        return _TOOL_CHOICES.get(choice.type, _not_ours)(choice)
    return "none" if choice == "auto" and not request.function_tools else choice


def _named(choice: ToolChoiceObject) -> Any:
    if not choice.name:
        raise InvalidRequest("tool_choice.name: the name of a tool is expected", "tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _not_ours(choice: ToolChoiceObject) -> Any:
    raise InvalidRequest(f"tool_choice.type: {choice.type!r} is not one of {', '.join(_TOOL_CHOICES)}", "tool_choice.type")


_TOOL_CHOICES: dict[str, Callable[[ToolChoiceObject], Any]] = {
    "function": _named,
    "custom": _named,
    "allowed_tools": lambda choice: choice.mode or "auto",
}
