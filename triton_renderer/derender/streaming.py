"""The stateless derender routes for streams: one chunk a call, and a state that the caller carries from call to call.

Nothing is kept here. The state is that of the parts of a choice, plain JSON and as small as their look-back, so that a call
costs what its new tokens cost.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, TypeAdapter

from triton_renderer.derender.checks import check_choice, check_mode, check_prompt, finish_reason_of, logprobs_of
from triton_renderer.derender.choice import Choice, ChoiceState, Prompt
from triton_renderer.derender.documents import JsonObject, Usage
from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.one_shot import cached_tokens, require_chat_request
from triton_renderer.derender.reading import Reading, Readings
from triton_renderer.derender.stream_documents import chat_choice, chat_chunk, completion_choice, completion_chunk
from triton_renderer.errors import BadBody, InvalidRequest
from triton_renderer.protocol.base import check_model_name, parse
from triton_renderer.protocol.derender import StreamCall
from triton_renderer.protocol.generate import GenerateChoice
from triton_renderer.text.states import Count, MisfittingState, checked

CHOICE = "generate_chunk.choices.0"


@dataclass
class StreamState:
    """What the caller carries along for one choice: checked for type, range and size when it comes back, not signed."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["chat", "completion"]
    created: Count
    """Unix seconds that all chunks carry."""
    index: Count | None
    """The choice's; None before its first tokens."""
    choice: ChoiceState


_STATES = TypeAdapter(StreamState)


class StreamDerenderer:
    """Answers the calls of streams. Keeps nothing but what requests asked for, which comes with every call. One thread."""

    def __init__(self, model: OutputModel, clock: Callable[[], float] = time.time) -> None:
        self._model = model
        self._clock = clock
        self._readings = Readings(model)

    def chat(self, body: JsonObject) -> bytes:
        """One call's answer, `{"chunk", "stream_state"}` as JSON. `body` is a DerenderChatStreamRequest, parsed JSON.

        Raises InvalidRequest, or NotFound for another model's name, before anything is decoded.
        """
        call = _call(body)
        check_model_name(call.model, self._model.name)
        require_chat_request(body.get("chat_request") is not None, self._model)
        return self._continue(call, body.get("stream_state"), self._readings.chat(body.get("chat_request")))

    def completion(self, body: JsonObject) -> bytes:
        """The same for a DerenderCompletionStreamRequest."""
        call = _call(body)
        check_model_name(call.model, self._model.name)
        return self._continue(call, body.get("stream_state"), self._readings.completion(body.get("completion_request")))

    def _continue(self, call: StreamCall, carried: Any, reading: Reading) -> bytes:
        check_mode(call.generate_chunk, "generate_chunk")
        if len(call.generate_chunk.choices) > 1:
            raise InvalidRequest(
                f"generate_chunk.choices: a call takes one choice, not {len(call.generate_chunk.choices)}: "
                "each has a state of its own",
                "generate_chunk.choices",
            )
        kind = reading.context.kind
        if carried is None or carried == {}:
            choice = Choice(reading, self._prompt(call, reading))
            created, index = int(self._clock()), None
        else:
            state = _state(carried, kind)
            choice = _choice(reading, state)
            created, index = state.created, state.index
        choices = []
        for part in call.generate_chunk.choices:
            choices.append(self._push(choice, part, index, reading))
            index = part.index
        head = {"id": call.generate_chunk.request_id, "created": created, "model": call.model or self._model.name}
        usage = _usage(call, choice, reading)
        chunk = chat_chunk(head, choices, usage) if kind == "chat" else completion_chunk(head, choices, usage)
        return orjson.dumps({"chunk": chunk, "stream_state": StreamState(kind, created, index, choice.state())})

    def _prompt(self, call: StreamCall, reading: Reading) -> Prompt:
        """What the output goes on from, which only the first call says."""
        given = call.prompt_token_ids is not None
        token_ids = call.prompt_token_ids if given else call.generate_chunk.prompt_token_ids
        if token_ids is None:
            if reading.context.kind == "chat" and (self._model.reasoning_parser or self._model.tool_parser):
                raise InvalidRequest(
                    "prompt_token_ids is required with the first call: a reasoning or tool call parser is configured, "
                    "and the prompt decides whether reasoning is open",
                    "prompt_token_ids",
                )
            return Prompt()
        check_prompt(token_ids, "prompt_token_ids" if given else "generate_chunk.prompt_token_ids", self._model)
        return Prompt.of(token_ids, self._model.leaves_reasoning_open(token_ids))

    def _push(self, choice: Choice, part: GenerateChoice, index: int | None, reading: Reading) -> JsonObject:
        """The chunk's choice that `part` becomes; `index` is that of the parts before, None for the first."""
        if index is not None and part.index != index:
            raise InvalidRequest(
                f"stream_state.index: the state belongs to choice {index}, not {part.index}", "stream_state.index"
            )
        if choice.is_finished and (part.token_ids or part.finish_reason):
            raise InvalidRequest(f"{CHOICE}: the choice has ended with an earlier chunk", CHOICE)
        check_choice(part, CHOICE, self._model, choice.num_tokens)
        piece = choice.push(part.token_ids, finish_reason_of(part, CHOICE), part.stop_reason, logprobs_of(part, CHOICE))
        token_ids = part.token_ids if reading.context.return_token_ids and not reading.hides_tokens else None
        if reading.context.kind == "chat":
            return chat_choice(part.index, piece, token_ids, with_role=index is None)
        return completion_choice(part.index, piece, token_ids)


def _call(body: JsonObject) -> StreamCall:
    """The body as far as it differs from call to call. A prompt that comes along with a state is not looked at."""
    apart = ("stream_state", "chat_request", "completion_request", "prompt_token_ids" if body.get("stream_state") else "")
    return parse(StreamCall, {name: value for name, value in body.items() if name not in apart})


def _state(carried: Any, kind: str) -> StreamState:
    try:
        state = checked(_STATES, carried)
    except MisfittingState as error:
        raise _bad_state(error) from error
    if state.kind != kind:
        raise BadBody(f"stream_state.kind: the state is that of a {state.kind}, not of a {kind}", "stream_state.kind")
    return state


def _choice(reading: Reading, state: StreamState) -> Choice:
    try:
        return Choice.from_state(reading, state.choice)
    except MisfittingState as error:
        raise _bad_state(error.within("choice")) from error


def _bad_state(error: MisfittingState) -> BadBody:
    where = error.within("stream_state")
    return BadBody(str(where), where.path)


def _usage(call: StreamCall, choice: Choice, reading: Reading) -> JsonObject | None:
    """As the engine counted, where it says so. Its tokens are known to be reasoning only where they are this choice's."""
    counted = call.generate_chunk.usage
    if counted is None:
        return None
    completion_tokens = counted.completion_tokens or 0
    is_of_choice = reading.reasoning_parser is not None and completion_tokens == choice.num_tokens
    return Usage(
        counted.prompt_tokens if call.prompt_tokens is None else call.prompt_tokens,
        completion_tokens,
        choice.num_reasoning_tokens if is_of_choice else None,
        cached_tokens(call.generate_chunk),
    ).whole()
