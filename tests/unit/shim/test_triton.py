"""The gRPC side, against a server that speaks Triton's protocol."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from client.shim import triton as module
from client.shim.triton import DeadStage, Tensors, TritonStages, Unanswered, document_tensor
from triton_renderer.errors import (
    Cancelled,
    InvalidRequest,
    QueueFull,
    RendererError,
    StageUnavailable,
    to_wire,
)
from triton_renderer.settings import Settings
from triton_renderer.tensors import CHUNK, CONTEXT

from .fakes import until

CHAT_INPUTS: Tensors = {
    "request": document_tensor(b'{"kind":"chat"}'),
    "media": np.frombuffer(b"abc", np.uint8),
    "media_offsets": np.array([0, 3], np.int64),
}
RENDER_OUTPUTS: Tensors = {
    "token_ids": np.array([1, 2**40], np.int64),
    "mm_data": np.empty(0, np.uint8),
    "mm_offsets": np.array([0], np.int64),
    "context": document_tensor(b"{}"),
}
DATATYPES = {"O": "BYTES", "u": "UINT8", "i": "INT64", "f": "FP32"}


def infer_response(tensors: Tensors, final: bool | None = None) -> Any:
    response = service_pb2.ModelInferResponse()
    for name, tensor in tensors.items():
        response.outputs.add(name=name, datatype=DATATYPES[tensor.dtype.kind], shape=tensor.shape)
        is_bytes = tensor.dtype.kind == "O"
        response.raw_output_contents.append(
            (serialize_byte_tensor(tensor).item() if tensor.size else b"") if is_bytes else tensor.tobytes()
        )
    if final is not None:
        response.parameters["triton_final_response"].bool_param = final
    return response


def reply(*documents: bytes, final: bool = False) -> Any:
    tensor = np.array(documents, np.object_)
    return service_pb2.ModelStreamInferResponse(infer_response=infer_response({"response": tensor}, final))


END = service_pb2.ModelStreamInferResponse(infer_response=infer_response({}, final=True))


def failure(text: str) -> Any:
    return service_pb2.ModelStreamInferResponse(error_message=text)


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Gives the answers that it was told to give, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answer: Any = infer_response(RENDER_OUTPUTS)
        self.status: tuple[grpc.StatusCode, str] | None = None
        self.replies: list[Any] = []
        self.wait: asyncio.Event | None = None
        self.cancelled = False
        self.repository: list[tuple[str, str]] = []
        self.live = True

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        await self._pause()
        if self.status:
            await context.abort(*self.status)
        return self.answer

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            self.requests.append(request)
            for each in self.replies:
                yield each
            await self._pause()
            if self.status:
                await context.abort(*self.status)

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=self.live)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        self.repository.append(("unload", request.model_name))
        return service_pb2.RepositoryModelUnloadResponse()

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        self.repository.append(("load", request.model_name))
        if self.status:
            await context.abort(*self.status)
        return service_pb2.RepositoryModelLoadResponse()

    async def _pause(self) -> None:
        if self.wait:
            try:
                await self.wait.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise


@pytest.fixture
async def triton() -> AsyncIterator[tuple[FakeTriton, TritonStages]]:
    servicer = FakeTriton()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stages = TritonStages(Settings(triton_grpc_port=port))
    yield servicer, stages
    await stages.close()
    await server.stop(None)


Pair = tuple[FakeTriton, TritonStages]


async def call(stages: TritonStages, model: str = "render", **options: Any) -> Tensors:
    return await stages.call(model, CHAT_INPUTS, **({"timeout_s": 10.0} | options))


async def stream(stages: TritonStages, **options: Any) -> list[list[bytes]]:
    answers = stages.stream("chat", CHAT_INPUTS, **({"timeout_s": 10.0} | options))
    return [tensors["response"].tolist() async for tensors in answers]


async def test_tensors_arrive_as_they_were_sent(triton: Pair) -> None:
    servicer, stages = triton
    outputs = await call(stages)
    (request,) = servicer.requests
    assert request.model_name == "render"
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in request.inputs] == [
        ("request", "BYTES", [1]),
        ("media", "UINT8", [3]),
        ("media_offsets", "INT64", [2]),
    ]
    content = request.raw_input_contents
    assert deserialize_bytes_tensor(content[0]).tolist() == [b'{"kind":"chat"}']
    assert content[1] == b"abc"
    assert np.frombuffer(content[2], np.int64).tolist() == [0, 3]
    assert [output.name for output in request.outputs] == ["token_ids", "mm_data", "mm_offsets", "context"]
    assert outputs["token_ids"].tolist() == [1, 2**40]
    assert outputs["mm_data"].size == 0
    assert outputs["context"].tolist() == [b"{}"]


async def test_optional_inputs_may_be_left_out_and_required_ones_not(triton: Pair) -> None:
    servicer, stages = triton
    await stages.call("render", {"request": CHAT_INPUTS["request"]}, timeout_s=10.0)
    assert [tensor.name for tensor in servicer.requests[0].inputs] == ["request"]
    with pytest.raises(KeyError, match="request"):
        await stages.call("render", {}, timeout_s=10.0)


async def test_only_the_wanted_outputs_are_asked_for_and_needed(triton: Pair) -> None:
    servicer, stages = triton
    servicer.answer = infer_response({"context": document_tensor(b"{}")})
    assert set(await call(stages, outputs=(CONTEXT,))) == {"context"}
    assert [output.name for output in servicer.requests[0].outputs] == ["context"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"token_ids": None}, "model `render` answered without the tensor `token_ids`"),
        ({"context": None}, "model `render` answered without the tensor `context`"),
        ({"token_ids": np.array([1.0], np.float32)}, "FP32 \\[1\\] in the tensor `token_ids`, INT64 \\[-1\\] was expected"),
        ({"token_ids": np.zeros((1, 2), np.int64)}, "\\[1, 2\\] in the tensor `token_ids`"),
        ({"context": np.array([b"a", b"b"], np.object_)}, "\\[2\\] in the tensor `context`, BYTES \\[1\\] was expected"),
        ({"context": np.empty(0, np.object_)}, "\\[0\\] in the tensor `context`"),
    ],
)
async def test_a_reply_without_what_was_agreed_is_a_500_naming_tensor_and_model(
    triton: Pair, change: dict[str, Any], said: str
) -> None:
    servicer, stages = triton
    tensors = {name: tensor for name, tensor in (dict(RENDER_OUTPUTS) | change).items() if tensor is not None}
    servicer.answer = infer_response(tensors)
    with pytest.raises(RendererError, match=said) as caught:
        await call(stages)
    assert caught.value.status == 500


async def test_a_tensor_with_fewer_bytes_than_its_shape_says_is_a_500(triton: Pair) -> None:
    servicer, stages = triton
    servicer.answer.raw_output_contents[0] = b""
    with pytest.raises(RendererError, match="0 values for \\[2\\] in the tensor `token_ids`"):
        await call(stages)


async def test_a_stream_gives_its_answers_in_order_and_ends_with_the_final_flag(triton: Pair) -> None:
    servicer, stages = triton
    servicer.replies = [reply(b"1"), reply(), reply(b"2", b"3"), END]
    assert await stream(stages) == [[b"1"], [], [b"2", b"3"]]
    assert servicer.requests[0].parameters["triton_enable_empty_final_response"].bool_param is True


async def test_a_final_response_may_carry_the_last_answer(triton: Pair) -> None:
    servicer, stages = triton
    servicer.replies = [reply(b"1"), reply(b"2", final=True)]
    assert await stream(stages) == [[b"1"], [b"2"]]


@pytest.mark.parametrize("replies", [[], [reply(b"1")], [reply(b"1"), reply(b"2")]])
async def test_a_stream_without_its_final_flag_is_a_500(triton: Pair, replies: list[Any]) -> None:
    servicer, stages = triton
    servicer.replies = replies
    with pytest.raises(RendererError, match="`chat` broke off without its final response"):
        await stream(stages)


async def test_an_answer_behind_the_final_flag_is_a_500(triton: Pair) -> None:
    servicer, stages = triton
    servicer.replies = [END, reply(b"late")]
    with pytest.raises(RendererError, match="went on after its final response"):
        await stream(stages)


async def test_an_answer_without_its_tensor_is_a_500_also_in_a_stream(triton: Pair) -> None:
    servicer, stages = triton
    empty = service_pb2.ModelStreamInferResponse(infer_response=infer_response({}, final=False))
    servicer.replies = [empty, END]
    with pytest.raises(RendererError, match="model `chat` answered without the tensor `response`"):
        await stream(stages)


async def test_an_error_in_a_stream_is_raised_after_what_came_before(triton: Pair) -> None:
    servicer, stages = triton
    servicer.replies = [reply(b"1"), failure("in ensemble 'chat', InvalidRequest[messages.0]: bad picture"), END]
    answers = stages.stream("chat", CHAT_INPUTS, timeout_s=10.0)
    assert (await anext(answers))["response"].tolist() == [b"1"]
    with pytest.raises(InvalidRequest, match=r"^bad picture$") as caught:
        await anext(answers)
    assert caught.value.param == "messages.0"


UNLOADED = "Request for unknown model: 'encode' has no available versions"
DEAD = "in ensemble 'chat', Stub process 'render_0_0' is not healthy."


@pytest.mark.parametrize(
    ("code", "text", "expected", "message"),
    [
        ("INVALID_ARGUMENT", to_wire(InvalidRequest("too long", "messages")), InvalidRequest, "too long"),
        ("UNAVAILABLE", to_wire(QueueFull("no room")), QueueFull, "no room"),
        ("UNAVAILABLE", to_wire(StageUnavailable("engine stopped")), StageUnavailable, "engine stopped"),
        ("CANCELLED", to_wire(Cancelled("aborted")), Cancelled, "aborted"),
        ("CANCELLED", "", Cancelled, "the call of model `render` was cancelled"),
        ("INTERNAL", to_wire(RendererError("no rows")), RendererError, "no rows"),
        ("INTERNAL", DEAD, DeadStage, "stage `render` is down"),
        ("NOT_FOUND", UNLOADED, StageUnavailable, "`encode` is not available"),
        ("UNAVAILABLE", "Server exiting", StageUnavailable, "Triton cannot be reached"),
        ("INTERNAL", "ValueError: x\n\nAt:\n  /srv/model.py(58): execute", RendererError, "model `render` failed"),
        ("INVALID_ARGUMENT", "expected 4 inputs but got 1 inputs", RendererError, "model `render` failed"),
        ("UNKNOWN", "", RendererError, "model `render` failed"),
    ],
)
async def test_errors_of_triton_become_ours_and_show_nothing_of_the_inside(
    triton: Pair, code: str, text: str, expected: type[RendererError], message: str
) -> None:
    servicer, stages = triton
    servicer.status = (grpc.StatusCode[code], text)
    with pytest.raises(RendererError) as caught:
        await call(stages)
    assert type(caught.value) is expected
    assert caught.value.message == message
    with pytest.raises(expected):
        await stream(stages)


@pytest.mark.parametrize("name", ["embeddings", "encoded"])
async def test_what_one_stage_finds_wrong_in_anothers_answer_is_not_the_clients_mistake(triton: Pair, name: str) -> None:
    servicer, stages = triton
    servicer.replies = [failure(f"in ensemble 'chat', {to_wire(InvalidRequest('too few bytes', name))}")]
    with pytest.raises(RendererError) as caught:
        await stream(stages)
    assert (type(caught.value), caught.value.message) == (RendererError, "model `chat` failed")


async def test_a_dead_stage_is_named_in_a_stream_as_well(triton: Pair) -> None:
    servicer, stages = triton
    servicer.replies = [failure("Stub process 'prefill_decode_0_0' is not healthy.")]
    with pytest.raises(DeadStage) as caught:
        await stream(stages)
    assert caught.value.stage == "prefill_decode"


async def test_what_is_kept_from_the_client_is_in_the_log(triton: Pair, caplog: pytest.LogCaptureFixture) -> None:
    servicer, stages = triton
    servicer.status = (grpc.StatusCode.INTERNAL, "ValueError: secret")
    with caplog.at_level(logging.ERROR, "client.shim"), pytest.raises(RendererError):
        await call(stages)
    assert "ValueError: secret" in caplog.text


@pytest.mark.parametrize("ask", [call, stream])
async def test_no_answer_in_time_is_503(triton: Pair, ask: Callable[..., Awaitable[Any]]) -> None:
    servicer, stages = triton
    servicer.wait = asyncio.Event()
    with pytest.raises(Unanswered, match="did not answer in time"):
        await ask(stages, timeout_s=0.1)


async def test_a_triton_that_is_not_there_is_503_and_not_live() -> None:
    stages = TritonStages(Settings(triton_grpc_port=1))
    for ask in (call, stream):
        with pytest.raises(StageUnavailable, match=r"^Triton cannot be reached$"):
            await ask(stages)
    assert await stages.is_live() is False
    with pytest.raises(StageUnavailable):
        await stages.reload("encode")
    await stages.close()


async def test_closing_a_stream_cancels_its_call(triton: Pair) -> None:
    servicer, stages = triton
    servicer.replies, servicer.wait = [reply(b"1")], asyncio.Event()
    answers = stages.stream("chat", CHAT_INPUTS, timeout_s=10.0)
    await anext(answers)
    await answers.aclose()
    await until(lambda: servicer.cancelled)


@pytest.mark.parametrize("ask", [call, stream])
async def test_cancelling_a_task_cancels_its_call(triton: Pair, ask: Callable[..., Awaitable[Any]]) -> None:
    servicer, stages = triton
    servicer.wait = asyncio.Event()
    task = asyncio.ensure_future(ask(stages))
    await until(lambda: servicer.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: servicer.cancelled)


async def test_reload_unloads_and_loads_the_stage(triton: Pair) -> None:
    servicer, stages = triton
    await stages.reload("encode")
    assert servicer.repository == [("unload", "encode"), ("load", "encode")]


async def test_a_stage_that_does_not_load_is_an_error(triton: Pair) -> None:
    servicer, stages = triton
    servicer.status = (grpc.StatusCode.INTERNAL, "failed to load 'encode'")
    with pytest.raises(RendererError):
        await stages.reload("encode")


async def test_a_live_triton_says_so(triton: Pair) -> None:
    servicer, stages = triton
    assert await stages.is_live() is True
    servicer.live = False
    assert await stages.is_live() is False


@pytest.fixture
def places_of_work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """For each message that was made or read: which, and whether on the thread of the event loop."""
    places: list[tuple[str, bool]] = []

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            places.append((name, threading.current_thread() is threading.main_thread()))
            return function(*args, **kwargs)

        return call

    for name in ("_infer_request", "_tensors_of"):
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    return places


@pytest.mark.parametrize(("num_bytes", "on_the_loop"), [(1000, True), (20 * 2**20, False)])
async def test_large_tensors_pass_and_are_kept_off_the_event_loop(
    triton: Pair, places_of_work: list[tuple[str, bool]], num_bytes: int, on_the_loop: bool
) -> None:
    servicer, stages = triton
    inputs = dict(CHAT_INPUTS) | {"media": np.ones(num_bytes, np.uint8)}
    servicer.answer = infer_response(dict(RENDER_OUTPUTS) | {"mm_data": np.zeros(num_bytes, np.uint8)})
    outputs = await stages.call("render", inputs, timeout_s=10.0)
    assert outputs["mm_data"].nbytes == num_bytes
    assert servicer.requests[0].raw_input_contents[1] == b"\1" * num_bytes
    servicer.replies = [reply(b"x" * num_bytes), END]
    answers = [tensors async for tensors in stages.stream("chat", inputs, timeout_s=10.0)]
    assert answers[0]["response"].tolist() == [b"x" * num_bytes]
    assert places_of_work == [("_infer_request", on_the_loop), ("_tensors_of", on_the_loop)] * 2


async def test_a_large_document_is_kept_off_the_event_loop(triton: Pair, places_of_work: list[tuple[str, bool]]) -> None:
    _, stages = triton
    await stages.call("render", {"request": document_tensor(b" " * 300_000)}, timeout_s=10.0)
    assert places_of_work[0] == ("_infer_request", False)


@pytest.mark.parametrize(
    ("host", "target"), [("127.0.0.1", "127.0.0.1:8001"), ("0.0.0.0", "127.0.0.1:8001"), ("127.0.0.2", "127.0.0.2:8001")]
)
async def test_a_server_that_listens_everywhere_is_reached_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, host: str, target: str
) -> None:
    targets: list[str] = []
    channel = grpc.aio.insecure_channel

    def recording(address: str, **options: Any) -> Any:
        targets.append(address)
        return channel(address, **options)

    monkeypatch.setattr(grpc.aio, "insecure_channel", recording)
    await TritonStages(Settings(triton_host=host, host="192.0.2.1")).close()
    assert targets == [target]


async def test_a_decoupled_stage_can_be_asked_for_its_control_output_alone(triton: Pair) -> None:
    servicer, stages = triton
    response = infer_response({"chunk": document_tensor(b'{"ok":true}')}, final=True)
    servicer.replies = [service_pb2.ModelStreamInferResponse(infer_response=response)]
    answers = stages.stream("prefill_decode", {"context": document_tensor(b"{}")}, timeout_s=10.0, outputs=(CHUNK,))
    assert [set(tensors) async for tensors in answers] == [{"chunk"}]
