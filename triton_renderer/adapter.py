"""Between Triton's Python backend and the stages: tensors in and out, errors, logging, streams.

The stages know nothing of Triton, and this file does not import it: each model.py hands in `triton_python_backend_utils`,
so that all of it is tested without a server, with a fake of that module.
"""

import locale
import logging
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from triton_renderer.errors import InvalidRequest, RendererError, to_wire
from triton_renderer.settings import Settings, load_settings
from triton_renderer.tensors import NUMPY_DTYPES, TensorSpec

log = logging.getLogger(__name__)

INTERNAL_ERROR = "the stage failed on this request; the server's log has the reason"
Value = npt.NDArray[Any] | bytes | list[bytes] | Any  # Any: a tensor of torch


def prepare(stage: str) -> Settings:
    """The first thing that a model.py does: the locale, the log, and the settings from the environment.

    The embedded interpreter starts in the C locale, where libraries that open files without an encoding read ASCII.
    Raises SettingsError.
    """
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    settings = load_settings()
    logging.basicConfig(
        stream=sys.stderr, level=settings.log_level.upper(), format=f"%(asctime)s {stage} %(levelname)s %(message)s", force=True
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return settings


class Adapter:
    """Reads requests and builds responses with `pb_utils`, the module triton_python_backend_utils."""

    def __init__(self, pb_utils: Any) -> None:
        self._pb = pb_utils

    def array(self, request: Any, spec: TensorSpec) -> npt.NDArray[Any]:
        """An input as a numpy array of one axis; an optional one that was left out is empty.

        The array is Triton's memory: it must be copied by whoever keeps it longer than the request.
        Raises InvalidRequest for a missing input, another dtype or more than one axis.
        """
        tensor = self._pb.get_input_tensor_by_name(request, spec.name)
        if tensor is None:
            if spec.optional:
                return np.empty(0, NUMPY_DTYPES[spec.dtype])
            raise InvalidRequest(f"the input {spec.name} is missing", spec.name)
        array: npt.NDArray[Any] = tensor.as_numpy()
        if array.dtype != NUMPY_DTYPES[spec.dtype] or array.ndim != 1:
            raise InvalidRequest(
                f"the input {spec.name} must be {spec.dtype} with one axis, not {array.dtype} {array.shape}", spec.name
            )
        return array

    def bytes_tensor(self, request: Any, spec: TensorSpec) -> Any:
        """A UINT8 input as a torch tensor of its own, on the device where it lies. Empty where left out.

        By DLPack a tensor on the GPU is Triton's memory, often another process's, until the request ends: it is copied, and the
        copy has run when this returns.
        """
        import torch  # noqa: PLC0415  # only the GPU stages have it loaded

        tensor = self._pb.get_input_tensor_by_name(request, spec.name)
        if tensor is None:
            return torch.empty(0, dtype=torch.uint8)
        if not tensor.is_cpu():
            own = torch.utils.dlpack.from_dlpack(tensor.to_dlpack()).clone()
            torch.cuda.current_stream(own.device).synchronize()
            return own
        array = self.array(request, spec)
        return torch.from_numpy(array.copy()) if array.size else torch.empty(0, dtype=torch.uint8)

    def document(self, request: Any, spec: TensorSpec) -> bytes:
        """A control input: the one JSON document that it holds. Raises InvalidRequest where it does not hold just one."""
        array = self.array(request, spec)
        if array.size != 1:
            raise InvalidRequest(f"the input {spec.name} must hold one JSON document, not {array.size}", spec.name)
        return bytes(array[0])

    def response(self, outputs: Mapping[TensorSpec, Value]) -> Any:
        """A response with these outputs: numpy arrays, torch tensors (handed over by DLPack), or bytes for BYTES tensors."""
        return self._pb.InferenceResponse([self._output(spec, value) for spec, value in outputs.items()])

    def failure(self, error: Exception) -> Any:
        """A response that says what went wrong; anything that is not ours is logged and stays an internal error."""
        if not isinstance(error, RendererError):
            log.error("unexpected error", exc_info=error)
            error = RendererError(INTERNAL_ERROR)
        code = getattr(self._pb.TritonError, error.triton_code, self._pb.TritonError.INTERNAL)
        return self._pb.InferenceResponse(error=self._pb.TritonError(to_wire(error), code))

    def answer_each(self, requests: list[Any], answer: Callable[[Any], Any]) -> list[Any]:
        """`execute` of a model that is not decoupled: one response a request, whatever happens to the others."""
        responses = []
        for request in requests:
            try:
                responses.append(answer(request))
            except Exception as error:  # one request's failure is its own
                responses.append(self.failure(error))
        return responses

    def _output(self, spec: TensorSpec, value: Value) -> Any:
        if isinstance(value, bytes):
            value = [value]
        if isinstance(value, list):
            return self._pb.Tensor(spec.name, np.array(value, dtype=np.object_).reshape(len(value)))
        if isinstance(value, np.ndarray):
            return self._pb.Tensor(spec.name, np.ascontiguousarray(value, NUMPY_DTYPES[spec.dtype]))
        if value.is_cuda:
            # It goes to another process, which knows nothing of this one's streams: it has to be computed. Triton waits for the
            # default stream only.
            import torch  # noqa: PLC0415  # only the GPU stages have it loaded

            torch.cuda.current_stream(value.device).synchronize()
            return self._pb.Tensor.from_dlpack(spec.name, value)
        return self._pb.Tensor(spec.name, value.numpy())


def operation(document: bytes) -> tuple[str | None, dict[str, Any]]:
    """`op` of a control document ({"op": "probe"}), and the document. Raises InvalidRequest where it is not an object."""
    try:
        parsed = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidRequest("a JSON object is expected")
    return parsed.get("op"), parsed


PROBE_ANSWER = b'{"ok":true}'


class Outbox:
    """Sends responses in order, on a thread of its own: a slow client's tensors must not hold up the engine."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Runs `job` after those before it."""
        self._jobs.put(job)

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends the thread after what is queued."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # the next request's response still has to go out
                log.exception("a response could not be sent")


class ResponseStream:
    """The responses of one request to a decoupled model: any number of them, then exactly one final flag.

    Whoever ends it first wins: what comes after is dropped and logged. Nothing is sent behind the flag.
    """

    def __init__(self, adapter: Adapter, pb_utils: Any, sender: Any, outbox: Outbox) -> None:
        self._adapter = adapter
        self._final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._sender = sender
        self._outbox = outbox
        self._ended = False
        self._is_closed = False  # a failure took the final flag; for the outbox's thread only
        self._lock = threading.Lock()

    def send(self, outputs: Mapping[TensorSpec, Value], final: bool = False) -> None:
        """Queues a response; with `final` the last one."""
        if self._begin(final):
            self._outbox.put(lambda: self._send(outputs, final))

    def fail(self, error: Exception) -> None:
        """Ends the stream with an error."""
        if self._begin(True):
            self._outbox.put(lambda: self._send_failure(error))

    def is_cancelled(self) -> bool:
        """The client went away. Only seen by a model that is called directly, never through an ensemble."""
        return not self._ended and bool(self._sender.is_cancelled())

    def _begin(self, final: bool) -> bool:
        with self._lock:
            if self._ended:
                log.error("a response behind the final one was dropped")
                return False
            self._ended = final
            return True

    def _send(self, outputs: Mapping[TensorSpec, Value], final: bool) -> None:
        if self._is_closed:
            return
        try:
            self._sender.send(self._adapter.response(outputs), **({"flags": self._final} if final else {}))
        except Exception as error:
            # A response is lost, and what follows would look whole without it: the stream ends here, with an error.
            with self._lock:
                self._ended = True
            self._send_failure(error)

    def _send_failure(self, error: Exception) -> None:
        """The error with the final flag; where not even that can be sent (no shared memory left), the flag alone."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._sender.send(self._adapter.failure(error), flags=self._final)
        except Exception:
            log.exception("an error could not be sent, only the end of its stream")
            self._sender.send(flags=self._final)
