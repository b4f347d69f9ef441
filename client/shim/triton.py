"""The one place that talks to Triton: numpy tensors in, numpy tensors out, over gRPC.

tritonclient's own asyncio client cannot ask for the empty final response that marks the end of a stream; so the gRPC
messages of that package are used directly. gRPC would turn them into bytes and back on the event loop, tens of megabytes of
a picture at a time: the calls with tensors take and give bytes, and large ones are made and read in a thread.
"""

import logging
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from client.shim.concurrency import offload
from triton_renderer.errors import Cancelled, RendererError, StageUnavailable, from_wire
from triton_renderer.settings import Settings, reachable
from triton_renderer.tensors import EMBEDDINGS, ENCODED, ENSEMBLES, MODELS, NUMPY_DTYPES, STAGES, TensorSpec

logger = logging.getLogger(__name__)

Tensor = npt.NDArray[Any]
Tensors = Mapping[str, Tensor]

SPECS = MODELS | ENSEMBLES

STAGES_OF: dict[str, frozenset[str]] = {
    **{stage: frozenset({stage}) for stage in STAGES},
    "generate": frozenset({"encode", "prefill_decode"}),
    "chat": frozenset(STAGES),
}
"""The stages that a call of each model goes through."""

LIVE_TIMEOUT_S = 2.0
RELOAD_TIMEOUT_S = 600.0
"""Loading a large model's weights takes minutes."""

_SERVICE = "/inference.GRPCInferenceService"

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # Triton stands beside the shim; the environment's proxy is not meant for it
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_MADE_BY_A_STAGE = frozenset({EMBEDDINGS.name, ENCODED.name})
"""Inputs of a stage that in an ensemble come from the stage before it, never from a client."""

_STAGE_NAME = re.compile(rf"(?<![a-z_])({'|'.join(STAGES)})(?![a-z])")
_DEAD_STUB = "is not healthy"
_UNLOADED = "has no available versions"


class DeadStage(StageUnavailable):
    """Triton says that the process of `stage` is gone. Triton itself never starts it again."""

    def __init__(self, message: str, stage: str) -> None:
        super().__init__(message)
        self.stage = stage


class Unanswered(StageUnavailable):
    """The time given to a call ran out."""


class Stages(Protocol):
    """What the shim needs of Triton. Methods raise RendererError only, and each ends within its time limit."""

    async def call(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> Tensors:
        """The answer of a model that gives exactly one. `outputs` are the tensors wanted, by default all of the model's;
        each of them is there, of its dtype and of a fitting shape."""
        ...

    def stream(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> AsyncGenerator[Tensors, None]:
        """The answers of a decoupled model, as they come. Ends normally only after Triton's final flag.

        Closing the generator cancels the call; what an ensemble has begun behind it runs on.
        """
        ...

    async def is_live(self) -> bool:
        """Triton answers at all. Says nothing about its stages."""
        ...

    async def reload(self, stage: str) -> None:
        """Replaces the process of `stage` by a new one. Only for stages: the ensembles come back with them."""
        ...

    async def close(self) -> None:
        """Ends the connection."""
        ...


def document_tensor(document: bytes) -> Tensor:
    """One JSON document as a BYTES tensor of shape [1]."""
    return np.array([document], np.object_)


class TritonStages:
    """`Stages` over gRPC. Made inside the event loop that uses it."""

    def __init__(self, settings: Settings) -> None:
        address = f"{reachable(settings.triton_host)}:{settings.triton_grpc_port}"
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._infer = self._channel.unary_unary(f"{_SERVICE}/ModelInfer")
        self._stream_infer = self._channel.stream_stream(f"{_SERVICE}/ModelStreamInfer")

    async def call(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> Tensors:
        wanted = outputs or SPECS[model].outputs
        request = await offload(_size(inputs), _infer_request, model, inputs, wanted)
        try:
            response = await self._infer(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise _rpc_failure(model, error) from error
        return await offload(len(response), _output_tensors, model, response, wanted)

    async def stream(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> AsyncGenerator[Tensors, None]:
        wanted = outputs or SPECS[model].outputs
        request = await offload(_size(inputs), _infer_request, model, inputs, wanted, is_stream=True)
        call = self._stream_infer(_only(request), timeout=timeout_s)
        ended = False
        try:
            async for message in call:
                reply = await offload(len(message), service_pb2.ModelStreamInferResponse.FromString, message)
                if reply.error_message:
                    raise _failure(model, reply.error_message)
                if ended:
                    raise RendererError(f"model `{model}` went on after its final response")
                response = reply.infer_response
                ended = (
                    "triton_final_response" in response.parameters and response.parameters["triton_final_response"].bool_param
                )
                if response.outputs or not ended:
                    yield await offload(len(message), _tensors_of, model, response, wanted)
        except grpc.aio.AioRpcError as error:
            raise _rpc_failure(model, error) from error
        finally:
            call.cancel()
        if not ended:
            raise RendererError(f"the stream of model `{model}` broke off without its final response")

    async def is_live(self) -> bool:
        try:
            response = await self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=LIVE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(response.live)

    async def reload(self, stage: str) -> None:
        # Loading alone is no repair: Triton believes that a model with a dead process is loaded already.
        try:
            await self._stub.RepositoryModelUnload(
                service_pb2.RepositoryModelUnloadRequest(model_name=stage), timeout=RELOAD_TIMEOUT_S
            )
            await self._stub.RepositoryModelLoad(
                service_pb2.RepositoryModelLoadRequest(model_name=stage), timeout=RELOAD_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise _rpc_failure(stage, error) from error

    async def close(self) -> None:
        await self._channel.close()


async def _only(request: bytes) -> AsyncIterator[bytes]:
    yield request


def _size(tensors: Tensors) -> int:
    """Bytes in all of `tensors`; those of documents are in their elements."""
    return sum(sum(map(len, tensor)) if tensor.dtype == np.object_ else tensor.nbytes for tensor in tensors.values())


def _infer_request(model: str, inputs: Tensors, outputs: Sequence[TensorSpec], is_stream: bool = False) -> bytes:
    """A serialized ModelInferRequest. Raises KeyError for a missing required input: a mistake of ours, not the client's."""
    request = service_pb2.ModelInferRequest(model_name=model)
    if is_stream:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    for spec in SPECS[model].inputs:
        if spec.optional and spec.name not in inputs:
            continue
        tensor = inputs[spec.name]
        request.inputs.add(name=spec.name, datatype=spec.dtype, shape=tensor.shape)
        request.raw_input_contents.append(_raw_content(tensor.astype(NUMPY_DTYPES[spec.dtype], copy=False)))
    for spec in outputs:
        request.outputs.add(name=spec.name)
    message: bytes = request.SerializeToString()
    return message


def _raw_content(tensor: Tensor) -> bytes:
    if tensor.dtype != np.object_:
        return tensor.tobytes()
    content: bytes = serialize_byte_tensor(tensor).item() if tensor.size else b""
    return content


def _output_tensors(model: str, message: bytes, wanted: Sequence[TensorSpec]) -> dict[str, Tensor]:
    """`_tensors_of` a serialized response."""
    return _tensors_of(model, service_pb2.ModelInferResponse.FromString(message), wanted)


def _tensors_of(model: str, response: Any, wanted: Sequence[TensorSpec]) -> dict[str, Tensor]:
    """The wanted tensors of a ModelInferResponse; RendererError where one is missing or is not what the contract says."""
    replies = {
        reply.name: (reply, content) for reply, content in zip(response.outputs, response.raw_output_contents, strict=False)
    }
    return {spec.name: _output_tensor(model, spec, *replies.get(spec.name, (None, b""))) for spec in wanted}


def _output_tensor(model: str, spec: TensorSpec, reply: Any, content: bytes) -> Tensor:
    if reply is None:
        raise RendererError(f"model `{model}` answered without the tensor `{spec.name}`")
    shape = tuple(reply.shape)
    fits = len(shape) == len(spec.dims) and all(want in (-1, size) for want, size in zip(spec.dims, shape, strict=True))
    if reply.datatype != spec.dtype or not fits:
        raise RendererError(
            f"model `{model}` answered with {reply.datatype} {list(shape)} in the tensor `{spec.name}`, "
            f"{spec.dtype} {list(spec.dims)} was expected"
        )
    flat: Tensor = (
        deserialize_bytes_tensor(content) if spec.dtype == "BYTES" else np.frombuffer(content, NUMPY_DTYPES[spec.dtype])
    )
    if flat.size != math.prod(shape):
        raise RendererError(f"model `{model}` answered with {flat.size} values for {list(shape)} in the tensor `{spec.name}`")
    return flat.reshape(shape)


def _rpc_failure(model: str, error: Any) -> RendererError:
    """A failed RPC as an error of ours."""
    text = str(error.details() or "")
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unanswered(f"model `{model}` did not answer in time")
        case grpc.StatusCode.UNAVAILABLE if from_wire(text).message == text and not _STAGE_NAME.search(text):
            logger.debug("Triton cannot be reached: %s", text)
            return StageUnavailable("Triton cannot be reached")
        case grpc.StatusCode.CANCELLED if from_wire(text).message == text:
            return Cancelled(f"the call of model `{model}` was cancelled")
    return _failure(model, text)


def _failure(model: str, text: str) -> RendererError:
    """An error message of Triton as an error of ours. What no stage meant for the client goes to the log alone."""
    error = from_wire(text)
    if error.message != text and not (model in ENSEMBLES and error.param in _MADE_BY_A_STAGE):
        return error
    found = _STAGE_NAME.search(text)
    stage = found[1] if found else model
    if _DEAD_STUB in text and stage in STAGES:
        return DeadStage(f"stage `{stage}` is down", stage)
    if _UNLOADED in text or isinstance(error, StageUnavailable):
        return StageUnavailable(f"`{stage}` is not available")
    logger.error("model `%s` failed: %s", model, text)
    return RendererError(f"model `{model}` failed")
