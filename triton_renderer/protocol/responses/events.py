"""Chat chunks as the events of a Responses stream, and as the Response that they add up to.

    response.created, response.in_progress
    for each item of the output
        response.output_item.added
        message     response.content_part.added, response.output_text.delta …, response.output_text.done,
                    response.content_part.done
        reasoning   response.content_part.added, response.reasoning_text.delta …, response.reasoning_text.done,
                    response.content_part.done
        function    response.function_call_arguments.delta …, response.function_call_arguments.done
        custom tool response.custom_tool_call_input.delta, response.custom_tool_call_input.done
        response.output_item.done
    response.completed, also where its status is another

The events that close something repeat it, and the last one repeats the whole output: so the state holds the output so far.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Literal

from blake3 import blake3

from triton_renderer.protocol.base import Wire, parse
from triton_renderer.protocol.forms import JsonObject, ResponsesForm, read_json
from triton_renderer.protocol.responses.to_chat import CUSTOM_INPUT
from triton_renderer.text.states import Count, Seed, Text

_Ended = Literal["completed", "incomplete", "cancelled"]
_STATUS: dict[str, _Ended] = {"length": "incomplete", "abort": "cancelled"}
_ID_PREFIX = {"reasoning": "rs", "message": "msg", "function": "fc", "custom": "ctc"}


class _Item(Wire):
    """The item of the output that is growing."""

    kind: Literal["reasoning", "message", "function", "custom"]
    id: str
    text: Text = ""
    """Its text, or the arguments of its call."""
    logprobs: list[JsonObject] = []
    call_index: Count | None = None
    call_id: str | None = None
    name: str | None = None


class _State(Wire):
    """All that is kept between two chunks."""

    seed: Seed = ""
    """What the items' ids are made from, so that a chunk that is sent twice with one state gives the same ones."""
    id: str = ""
    created: Count = 0
    model: str = ""
    sequence: Count = 0
    """The number of the next event."""
    output: list[JsonObject] = []
    """The items that are closed."""
    open: _Item | None = None
    spare_logprobs: list[JsonObject] = []
    """Of tokens whose text is not out yet."""
    status: Literal["in_progress", "completed", "incomplete", "cancelled"] = "in_progress"
    usage: JsonObject | None = None


class ResponseEvents:
    """The Translator of a ResponsesForm."""

    def __init__(self, form: ResponsesForm) -> None:
        self._form = form
        self._state = _State(seed=secrets.token_hex(8))
        self._events: list[JsonObject] = []

    def push(self, chunk: JsonObject) -> list[JsonObject]:
        """See Translator."""
        self._events = []
        if not self._state.id:
            self._begin(chunk)
        if chunk.get("usage"):
            self._state.usage = _usage(chunk["usage"])
        for choice in chunk["choices"]:
            self._continue(choice)
        return self._events

    def finish(self) -> list[JsonObject]:
        """See Translator."""
        self._events = []
        if self._state.status == "in_progress":
            self._finish("stop")
        return self._events

    def whole(self, events: Sequence[JsonObject], extras: JsonObject) -> JsonObject:
        """See Translator."""
        response: JsonObject = events[-1]["response"]
        return response | {name: extras.get(name) for name in ("kv_transfer_params", "ec_transfer_params")}

    def state(self) -> JsonObject:
        """See Translator."""
        return self._state.model_dump(exclude_defaults=True)

    def restore(self, state: JsonObject) -> None:
        """See Translator."""
        self._state = parse(_State, state)

    def _begin(self, chunk: JsonObject) -> None:
        self._state.id, self._state.created, self._state.model = chunk["id"], chunk["created"], chunk["model"]
        self._emit("response.created", response=self._response("in_progress"))
        self._emit("response.in_progress", response=self._response("in_progress"))

    def _continue(self, choice: JsonObject) -> None:
        delta = choice.get("delta") or {}
        entries = (choice.get("logprobs") or {}).get("content") or []
        if delta.get("reasoning") or delta.get("tool_calls"):
            self._state.spare_logprobs = []
        else:
            self._state.spare_logprobs += [_logprob(entry) for entry in entries]
        if reasoning := delta.get("reasoning"):
            self._grow(self._item("reasoning"), reasoning, "response.reasoning_text.delta", content_index=0)
        if content := delta.get("content"):
            self._say(content)
        for call in delta.get("tool_calls") or []:
            self._call(call)
        if choice.get("finish_reason") is not None:
            self._finish(choice["finish_reason"])

    def _say(self, text: str) -> None:
        item = self._item("message")
        logprobs, self._state.spare_logprobs = self._state.spare_logprobs, []
        item.logprobs += logprobs
        self._grow(item, text, "response.output_text.delta", content_index=0, logprobs=logprobs)

    def _call(self, call: JsonObject) -> None:
        function = call.get("function") or {}
        item = self._state.open
        if item is None or item.call_index != call["index"]:
            name = function.get("name") or ""
            kind: Literal["function", "custom"] = "custom" if name in self._form.custom_tools else "function"
            item = self._open(kind, call_index=call["index"], call_id=call.get("id"), name=name)
        if arguments := function.get("arguments"):
            if item.kind == "custom":
                item.text += arguments  # its input can be read when all of it is there
            else:
                self._grow(item, arguments, "response.function_call_arguments.delta")

    def _item(self, kind: Literal["reasoning", "message"]) -> _Item:
        item = self._state.open
        return item if item is not None and item.kind == kind else self._open(kind)

    def _open(self, kind: Literal["reasoning", "message", "function", "custom"], **fields: Any) -> _Item:
        if self._state.open is not None:
            self._close("completed")
        digest = blake3(f"{self._state.seed} {self._index}".encode()).hexdigest(16)
        item = _Item(kind=kind, id=f"{_ID_PREFIX[kind]}_{digest}", **fields)
        self._state.open = item
        self._emit("response.output_item.added", output_index=self._index, item=_document(item, "in_progress"))
        if kind in ("reasoning", "message"):
            self._emit_in(item, "response.content_part.added", content_index=0, part=_part(item))
        return item

    def _grow(self, item: _Item, text: str, event: str, **fields: Any) -> None:
        item.text += text
        self._emit_in(item, event, delta=text, **fields)

    def _close(self, status: str) -> None:
        item = self._state.open
        if item is None:
            return
        if item.kind == "message":
            item.logprobs += self._state.spare_logprobs
            self._state.spare_logprobs = []
            self._emit_in(item, "response.output_text.done", content_index=0, text=item.text, logprobs=list(item.logprobs))
            self._emit_in(item, "response.content_part.done", content_index=0, part=_part(item))
        elif item.kind == "reasoning":
            self._emit_in(item, "response.reasoning_text.done", content_index=0, text=item.text)
            self._emit_in(item, "response.content_part.done", content_index=0, part=_part(item))
        elif item.kind == "function":
            self._emit_in(item, "response.function_call_arguments.done", arguments=item.text, name=item.name)
        else:
            text = _custom_input(item.text)
            self._emit_in(item, "response.custom_tool_call_input.delta", delta=text)
            self._emit_in(item, "response.custom_tool_call_input.done", input=text)
        document = _document(item, status)
        self._emit("response.output_item.done", output_index=self._index, item=document)
        self._state.output.append(document)
        self._state.open = None

    def _finish(self, reason: str) -> None:
        self._state.status = _STATUS.get(reason, "completed")
        self._close("completed" if self._state.status == "completed" else "incomplete")
        self._emit("response.completed", response=self._response(self._state.status))

    @property
    def _index(self) -> int:
        """The place in the output of the item that is open."""
        return len(self._state.output)

    def _emit_in(self, item: _Item, kind: str, **fields: Any) -> None:
        self._emit(kind, item_id=item.id, output_index=self._index, **fields)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._events.append({"type": kind, "sequence_number": self._state.sequence, **fields})
        self._state.sequence += 1

    def _response(self, status: str) -> JsonObject:
        return {
            "id": self._state.id,
            "object": "response",
            "created_at": self._state.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._state.model,
            "output": list(self._state.output),
            **self._form.head,
            "usage": None if status == "in_progress" else self._state.usage,
        }


def _part(item: _Item) -> JsonObject:
    """The one content part of a message or of reasoning."""
    if item.kind == "reasoning":
        return {"type": "reasoning_text", "text": item.text}
    return {"type": "output_text", "text": item.text, "annotations": [], "logprobs": list(item.logprobs)}


def _document(item: _Item, status: str) -> JsonObject:
    """The item as clients see it; without content while it is growing."""
    is_done = status != "in_progress"
    if item.kind == "reasoning":
        content = [_part(item)] if is_done else []
        return {"type": "reasoning", "id": item.id, "summary": [], "content": content, "status": status}
    if item.kind == "message":
        content = [_part(item)] if is_done else []
        return {"type": "message", "id": item.id, "role": "assistant", "content": content, "status": status}
    call = {"id": item.id, "call_id": item.call_id, "name": item.name}
    if item.kind == "function":
        return {"type": "function_call", **call, "arguments": item.text if is_done else "", "status": status}
    return {"type": "custom_tool_call", **call, "input": _custom_input(item.text) if is_done else ""}


def _custom_input(arguments: str) -> str:
    """The text for a custom tool; what the model wrote, where that is no call with such an argument."""
    try:
        parsed = read_json(arguments)
    except ValueError:
        return arguments
    text = parsed.get(CUSTOM_INPUT) if isinstance(parsed, dict) else None
    return text if isinstance(text, str) else arguments


def _logprob(entry: JsonObject) -> JsonObject:
    """A token's logprob; chat's entries have the same form."""
    return {name: entry.get(name) for name in ("token", "logprob", "bytes", "top_logprobs")}


def _usage(chat: JsonObject) -> JsonObject:
    prompt, completion = chat.get("prompt_tokens") or 0, chat.get("completion_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": (chat.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            "cache_write_tokens": 0,
        },
        "output_tokens": completion,
        "output_tokens_details": {
            "reasoning_tokens": (chat.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
            "tool_output_tokens": 0,
        },
        "total_tokens": prompt + completion,
    }
