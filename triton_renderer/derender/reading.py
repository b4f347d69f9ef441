"""How the outputs of one request are read: made once, and shared by its choices and by the calls of its stream."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import orjson
from blake3 import blake3

from triton_renderer.derender.asked import chat_context, completion_context, messages_context, responses_context
from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.parsers.base import ReasoningParser, ToolParser
from triton_renderer.derender.parsers.message import MessageParser
from triton_renderer.errors import BadBody
from triton_renderer.protocol.forms import JsonObject
from triton_renderer.protocol.stages import DerenderContext

MAX_READINGS = 512
MAX_REQUEST_BYTES = 2**18
"""A larger request is read anew each time: it holds pictures, and its next call costs far more than that anyway."""


@dataclass(frozen=True)
class Reading:
    """What all choices of a request have in common. Of `context` it uses only what the client asked for."""

    model: OutputModel
    context: DerenderContext
    reasoning_parser: type[ReasoningParser] | None
    tool_parser: type[ToolParser] | None
    marker_ids: frozenset[int]
    """The parsers' markers: special tokens that are text for them."""
    ending_ids: frozenset[int]
    """The tokens that end an output, and have no text then."""

    @classmethod
    def of(cls, model: OutputModel, context: DerenderContext) -> Self:
        """No parser reads a completion. No calls are looked for where none may be made, unless it is for the content."""
        is_chat = context.kind == "chat"
        reasoning_parser = model.reasoning_parser if is_chat else None
        tool_parser = model.tool_parser if is_chat else None
        if context.tool_choice == "none" and tool_parser and (reasoning_parser or not tool_parser.frames_content):
            tool_parser = None
        return cls(
            model=model,
            context=context,
            reasoning_parser=reasoning_parser,
            tool_parser=tool_parser,
            marker_ids=model.marker_ids((reasoning_parser, tool_parser)),
            ending_ids=model.eos_token_ids.union(context.stop_token_ids),
        )

    def new_parser(self, reasoning_open: bool) -> MessageParser:
        """A parser for one choice."""
        reasoning, tools = self.reasoning_parser, self.tool_parser
        return MessageParser(
            reasoning(reasoning_open, tools.call_markers if tools else ()) if reasoning else None,
            tools(parameter_types=self.context.parameter_types) if tools else None,
            self.context.parallel_tool_calls,
            may_call=self.context.tool_choice != "none",
        )

    @property
    def has_parsers(self) -> bool:
        """Something is looked for in the text."""
        return self.reasoning_parser is not None or self.tool_parser is not None

    @property
    def hides_tokens(self) -> bool:
        """Tokens and logprobs are left out: they would show the reasoning that is not wanted."""
        return self.reasoning_parser is not None and not self.context.include_reasoning


class Readings:
    """The readings of the newest requests: every call of a stream brings its request along, and it is always the same.

    Bounded in number; the keys are digests. Not safe for use by several threads.
    """

    def __init__(self, model: OutputModel) -> None:
        self._model = model
        self._readings: OrderedDict[bytes, Reading] = OrderedDict()

    def chat(self, chat_request: Any) -> Reading:
        """For `chat_request` as it came in the body, None where it is absent. Raises BadBody where it is no chat request."""
        return self._get(b"chat", chat_request, chat_context)

    def completion(self, completion_request: Any) -> Reading:
        """For `completion_request`, likewise."""
        return self._get(b"completion", completion_request, completion_context)

    def responses(self, body: JsonObject) -> Reading:
        """For the fields `responses_request` and `sampling_params` of `body`. Raises InvalidRequest where they are no such."""
        asked = {name: body.get(name) for name in ("responses_request", "sampling_params")}
        return self._get(b"responses", asked, responses_context)

    def messages(self, body: JsonObject) -> Reading:
        """For the field `messages_request` of `body`. Raises InvalidRequest where it is no Messages request."""
        return self._get(b"messages", {"messages_request": body.get("messages_request")}, messages_context)

    def _get(self, kind: bytes, request: Any, context_of: Callable[[Any], DerenderContext]) -> Reading:
        try:
            document = orjson.dumps(request)
        except orjson.JSONEncodeError as error:
            raise BadBody(f"{kind.decode()}_request is nested too deeply", f"{kind.decode()}_request") from error
        if len(document) > MAX_REQUEST_BYTES:
            return Reading.of(self._model, context_of(request))
        key = blake3(kind + document).digest()
        reading = self._readings.get(key)
        if reading is None:
            reading = self._readings[key] = Reading.of(self._model, context_of(request))
            if len(self._readings) > MAX_READINGS:
                self._readings.popitem(last=False)
        else:
            self._readings.move_to_end(key)
        return reading
