"""The stateless derender routes for streams: one chunk a call, and a state that the caller carries from call to call.

Nothing is kept here. The state is that of the parts of a choice, plain JSON and as small as their look-back, so that a call
costs what its new tokens cost.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter

from triton_renderer.derender.checks import check_choice, check_mode, check_prompt, finish_reason_of, logprobs_of
from triton_renderer.derender.choice import Choice, ChoiceState, Piece, Prompt
from triton_renderer.derender.documents import JsonObject, Usage, dumped
from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.one_shot import cached_tokens, require_chat_request
from triton_renderer.derender.reading import Reading, Readings
from triton_renderer.derender.stream_documents import chat_choice, chat_chunk, completion_choice, completion_chunk
from triton_renderer.errors import BadBody, InvalidRequest, RendererError
from triton_renderer.protocol.base import check_model_name, parse
from triton_renderer.protocol.derender import StreamCall
from triton_renderer.protocol.dialects import translator
from triton_renderer.protocol.forms import Translator
from triton_renderer.protocol.generate import GenerateChoice
from triton_renderer.protocol.places import within
from triton_renderer.text.states import Count, MisfittingState, checked

CHOICE = "generate_chunk.choices.0"

Kind = Literal["chat", "completion", "responses", "messages"]


@dataclass
class StreamState:
    """What the caller carries along for one choice: checked for type, range and size when it comes back, not signed."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Kind
    created: Count
    """Unix seconds that all chunks carry."""
    index: Count | None
    """The choice's; None before its first tokens."""
    choice: ChoiceState


@dataclass
class TranslatedState(StreamState):
    """The state of an answer in another form than chat's."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    prompt_tokens: Count
    translator: JsonObject


State = TypeVar("State", StreamState, TranslatedState)

_STATES = TypeAdapter(StreamState)
_TRANSLATED_STATES = TypeAdapter(TranslatedState)


@dataclass
class Step:
    """Where a call has brought its choice."""

    choice: Choice
    created: int
    index: int | None
    parts: list[tuple[GenerateChoice, Piece]]
    is_first: bool
    """Nothing of the choice came before."""


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

    def responses(self, body: JsonObject) -> bytes:
        """One call's answer, `{"events", "stream_state"}` as JSON. `body` is a DerenderResponsesStreamRequest, parsed JSON.

        Raises InvalidRequest, or NotFound for another model's name, before anything is decoded.
        """
        return self._translate(body, self._readings.responses(body), "responses")

    def messages(self, body: JsonObject) -> bytes:
        """The same for a DerenderMessagesStreamRequest."""
        return self._translate(body, self._readings.messages(body), "messages")

    def _continue(self, call: StreamCall, carried: Any, reading: Reading) -> bytes:
        kind = reading.context.kind
        state = _state(_STATES, carried, kind)
        step = self._step(call, state, reading)
        head = self._head(call, step)
        usage = _usage(call, step.choice, reading)
        choices = [self._document(part, piece, reading, step.is_first) for part, piece in step.parts]
        chunk = chat_chunk(head, choices, usage) if kind == "chat" else completion_chunk(head, choices, usage)
        new = StreamState(kind, step.created, step.index, step.choice.state())
        return dumped({"chunk": chunk, "stream_state": new})

    def _translate(self, body: JsonObject, reading: Reading, kind: Kind) -> bytes:
        call = _call(body)
        check_model_name(call.model, self._model.name)
        if reading.context.form is None:
            raise RendererError("a translated answer has a form")
        state = _state(_TRANSLATED_STATES, body.get("stream_state"), kind)
        step = self._step(call, state, reading)
        translation = translator(reading.context.form)
        prompt_tokens = len(call.prompt_token_ids or call.generate_chunk.prompt_token_ids or [])
        if state is not None:
            prompt_tokens = state.prompt_tokens
            _restore(translation, state.translator)
        if call.prompt_tokens is not None or call.generate_chunk.usage is not None:
            prompt_tokens = _prompt_tokens(call)
        usage = Usage(
            prompt_tokens,
            step.choice.num_tokens,
            step.choice.num_reasoning_tokens if reading.reasoning_parser is not None else None,
            cached_tokens(call.generate_chunk),
        ).whole()
        choices = [chat_choice(part.index, piece, None, with_role=False) for part, piece in step.parts]
        head = self._head(call, step)
        events = [event for choice in choices for event in translation.push(chat_chunk(head, [choice], usage))]
        new = TranslatedState(kind, step.created, step.index, step.choice.state(), prompt_tokens, translation.state())
        return dumped({"events": events, "stream_state": new})

    def _head(self, call: StreamCall, step: Step) -> JsonObject:
        return {"id": call.generate_chunk.request_id, "created": step.created, "model": call.model or self._model.name}

    def _step(self, call: StreamCall, state: StreamState | None, reading: Reading) -> Step:
        check_mode(call.generate_chunk, "generate_chunk")
        if len(call.generate_chunk.choices) > 1:
            raise InvalidRequest(
                f"generate_chunk.choices: a call takes one choice, not {len(call.generate_chunk.choices)}: "
                "each has a state of its own",
                "generate_chunk.choices",
            )
        if state is None:
            choice = Choice(reading, self._prompt(call, reading))
            created, index = int(self._clock()), None
        else:
            choice = _choice(reading, state)
            created, index = state.created, state.index
        step = Step(choice, created, index, [], is_first=index is None)
        for part in call.generate_chunk.choices:
            step.parts += [(part, piece) for piece in self._push(choice, part, index, reading)]
            step.index = part.index
        return step

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

    def _push(self, choice: Choice, part: GenerateChoice, index: int | None, reading: Reading) -> list[Piece]:
        """What `part` adds to the choice; `index` is that of the parts before, None for the first."""
        if index is not None and part.index != index:
            raise InvalidRequest(
                f"stream_state.index: the state belongs to choice {index}, not {part.index}", "stream_state.index"
            )
        if choice.is_finished and (part.token_ids or part.finish_reason):
            raise InvalidRequest(f"{CHOICE}: the choice has ended with an earlier chunk", CHOICE)
        check_choice(part, CHOICE, self._model, choice.num_tokens)
        said = (part.token_ids, finish_reason_of(part, CHOICE), part.stop_reason, logprobs_of(part, CHOICE))
        return [choice.push(*said)] if reading.context.form is None else choice.push_apart(*said)

    def _document(self, part: GenerateChoice, piece: Piece, reading: Reading, is_first: bool) -> JsonObject:
        """The chunk's choice that `part` becomes."""
        token_ids = part.token_ids if reading.context.return_token_ids and not reading.hides_tokens else None
        if reading.context.kind == "chat":
            return chat_choice(part.index, piece, token_ids, with_role=is_first)
        return completion_choice(part.index, piece, token_ids)


def _call(body: JsonObject) -> StreamCall:
    """The body as far as it differs from call to call. A prompt that comes along with a state is not looked at."""
    apart = {*_READ_APART, "prompt_token_ids"} if body.get("stream_state") else _READ_APART
    return parse(StreamCall, {name: value for name, value in body.items() if name not in apart})


_READ_APART = {"stream_state", "chat_request", "completion_request", "responses_request", "messages_request", "sampling_params"}


def _state(states: TypeAdapter[State], carried: Any, kind: Kind) -> State | None:
    """What the caller carried, checked; None with the first call."""
    if carried is None or carried == {}:
        return None
    try:
        state = checked(states, carried)
    except MisfittingState as error:
        raise _bad_state(error) from error
    if state.kind != kind:
        raise BadBody(f"stream_state.kind: the state is that of a {state.kind}, not of a {kind}", "stream_state.kind")
    return state


def _restore(translation: Translator, state: JsonObject) -> None:
    try:
        translation.restore(state)
    except InvalidRequest as error:
        raise within(error, "stream_state.translator") from error


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
        _prompt_tokens(call),
        completion_tokens,
        choice.num_reasoning_tokens if is_of_choice else None,
        cached_tokens(call.generate_chunk),
    ).whole()


def _prompt_tokens(call: StreamCall) -> int:
    """As the caller says, else as the engine counted, else none."""
    if call.prompt_tokens is not None:
        return call.prompt_tokens
    return call.generate_chunk.usage.prompt_tokens if call.generate_chunk.usage is not None else 0
