"""A Messages request as the chat request that asks for the same."""

import json
from collections.abc import Sequence
from typing import Any

from triton_renderer.protocol.messages.request import (
    AssistantMessage,
    CountTokensRequest,
    ImageBlock,
    ImageSource,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
    SystemMessage,
    TextBlock,
    Thinking,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from triton_renderer.protocol.places import Places

_SAME_IN_CHAT = {
    "model", "max_tokens", "temperature", "top_p", "top_k", "stream", "mm_payload", "return_mm_kwargs", "cache_salt",
    "kv_transfer_params", "ec_transfer_params", "chat_template", "chat_template_kwargs",
}  # fmt: skip

_PLACES = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "thinking_token_budget": "thinking.budget_tokens",
}

_NO_CONTENT = "x-anthropic-billing-header"
"""Some clients begin their system prompt with a line of their own accounting, different each time: no prefix would be cached."""

Part = dict[str, Any]
Origins = list[str]


def chat_request(request: CountTokensRequest, *, merge_systems: bool) -> tuple[dict[str, Any], Places]:
    """The body of the chat request, and where its parts came from.

    `merge_systems`: the chat template takes a system message at the start only, so all of them become that one.
    """
    conversation = _Conversation(request, merge_systems)
    body = request.model_dump(include=_SAME_IN_CHAT, exclude_unset=True)
    body["messages"] = conversation.messages
    if not isinstance(request, MessagesRequest):
        body["mm_payload"] = "none"  # tokens are counted, and nothing else is wanted
    else:
        if request.stop_sequences is not None:
            body["stop"] = request.stop_sequences
        if request.stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if request.output_config is not None:
        if request.output_config.effort is not None:
            body["reasoning_effort"] = request.output_config.effort
        if request.output_config.format is not None and request.output_config.format.json_schema:
            schema = {"name": "json_schema", "schema": request.output_config.format.json_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.thinking is not None:
        body |= _thinking(request.thinking, request.chat_template_kwargs)
    if request.tools:
        body["tools"] = [_chat_tool(tool) for tool in request.tools]
    if request.tool_choice is not None:
        body |= _tool_choice(request.tool_choice)
    return body, Places(_PLACES | conversation.origins)


class _Conversation:
    """The chat messages that a system prompt and the turns amount to."""

    def __init__(self, request: CountTokensRequest, merge_systems: bool) -> None:
        self.messages: list[dict[str, Any]] = []
        self.origins: dict[str, str] = {}
        systems = [request.system] if request.system else []
        if merge_systems:
            systems += [message.content for message in request.messages if isinstance(message, SystemMessage)]
        if text := "".join(map(_system_text, systems)):
            self._add({"role": "system", "content": text}, "system")
        for index, message in enumerate(request.messages):
            match message:
                case UserMessage():
                    self._add_user(message, f"messages.{index}")
                case AssistantMessage():
                    self._add_assistant(message, f"messages.{index}")
                case SystemMessage() if not merge_systems:
                    if text := _system_text(message.content):
                        self._add({"role": "system", "content": text}, f"messages.{index}")

    def _add(self, message: dict[str, Any], origin: str, parts: Sequence[str] = ()) -> None:
        """`parts`: where the parts of its content came from."""
        place = f"messages.{len(self.messages)}"
        self.origins[place] = origin
        self.origins |= {f"{place}.content.{number}": part for number, part in enumerate(parts)}
        self.messages.append(message)

    def _add_user(self, message: UserMessage, origin: str) -> None:
        if isinstance(message.content, str):
            self._add({"role": "user", "content": message.content}, origin)
            return
        parts: list[Part] = []
        origins: Origins = []
        for index, block in enumerate(message.content):
            where = f"{origin}.content.{index}"
            if isinstance(block, ToolResultBlock):  # goes first: it answers the turn before
                self._add_tool_result(block, where)
            elif (part := _part(block)) is not None:
                parts.append(part)
                origins.append(where)
        if parts:
            self._add({"role": "user", "content": _content(parts)}, origin, origins)

    def _add_tool_result(self, block: ToolResultBlock, origin: str) -> None:
        """A tool's message has a text only: its pictures follow as the user's."""
        blocks = block.content if isinstance(block.content, list) else []
        text = (
            block.content if isinstance(block.content, str) else "\n".join(b.text for b in blocks if isinstance(b, TextBlock))
        )
        self._add({"role": "tool", "tool_call_id": block.tool_use_id, "content": text}, origin)
        images = [(b, f"{origin}.content.{index}") for index, b in enumerate(blocks) if isinstance(b, ImageBlock)]
        if images:
            parts = [_image(image.source) for image, _ in images]
            self._add({"role": "user", "content": parts}, origin, [where for _, where in images])

    def _add_assistant(self, message: AssistantMessage, origin: str) -> None:
        if isinstance(message.content, str):
            self._add({"role": "assistant", "content": message.content}, origin)
            return
        chat: dict[str, Any] = {"role": "assistant"}
        texts: list[Part] = []
        origins: Origins = []
        for index, block in enumerate(message.content):
            match block:
                case ThinkingBlock():
                    chat["reasoning"] = chat.get("reasoning", "") + block.thinking
                case ToolUseBlock():
                    chat.setdefault("tool_calls", []).append(_call(block))
                case TextBlock(text=text) if text:
                    texts.append({"type": "text", "text": text})
                    origins.append(f"{origin}.content.{index}")
        if texts:
            chat["content"] = _content(texts)
        self._add(chat, origin, origins)


def _system_text(content: str | list[Any]) -> str:
    """The instructions' text, blocks joined by nothing."""
    texts: list[str] = [content] if isinstance(content, str) else [block.text for block in content]
    return "".join(text for text in texts if not text.startswith(_NO_CONTENT))


def _part(block: Any) -> Part | None:
    """A block of the user's as a content part; None for an empty text."""
    if isinstance(block, ImageBlock):
        return _image(block.source)
    return {"type": "text", "text": block.text} if block.text else None


def _content(parts: list[Part]) -> str | list[Part]:
    """A single text needs no list."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        text: str = parts[0]["text"]
        return text
    return parts


def _image(source: ImageSource) -> Part:
    url = source.url if source.type == "url" else f"data:{source.media_type};base64,{source.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: ToolUseBlock) -> dict[str, Any]:
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": json.dumps(block.input)}}


def _thinking(thinking: Thinking, variables: dict[str, Any] | None) -> dict[str, Any]:
    """`adaptive` leaves it to the model. Some templates think only when they are told to."""
    if thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    if thinking.type == "enabled":
        return {
            "chat_template_kwargs": {"enable_thinking": True} | (variables or {}),
            "thinking_token_budget": thinking.budget_tokens,
        }
    return {}


def _chat_tool(tool: MessagesTool) -> dict[str, Any]:
    parameters = tool.input_schema if "type" in tool.input_schema else tool.input_schema | {"type": "object"}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function | ({} if tool.strict is None else {"strict": tool.strict})}


def _tool_choice(choice: MessagesToolChoice) -> dict[str, Any]:
    words = {"auto": "auto", "any": "required", "none": "none"}
    named = {"type": "function", "function": {"name": choice.name}}
    return {"tool_choice": words.get(choice.type, named), "parallel_tool_calls": not choice.disable_parallel_tool_use}
