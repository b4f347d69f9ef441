"""What the adapter uses of triton_python_backend_utils, without Triton."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonError:
    INTERNAL, INVALID_ARG, NOT_FOUND, UNSUPPORTED, UNAVAILABLE, CANCELLED = range(6)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self.message, self.code = message, code


class Tensor:
    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError("a numpy array is expected")
        self.name, self.array = name, array

    def as_numpy(self) -> npt.NDArray[Any]:
        return self.array

    def is_cpu(self) -> bool:
        return True


class InferenceResponse:
    def __init__(self, tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.outputs = {tensor.name: tensor.array for tensor in tensors or []}
        self.error = error


@dataclass
class Sender:
    """Notes what is sent, and breaks on anything behind the final flag, as Triton does."""

    sent: list[tuple[InferenceResponse | None, int]] = field(default_factory=list)
    cancelled: bool = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self.num_final:
            raise RuntimeError("unable to send a response: the final one has been sent")
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def num_final(self) -> int:
        return sum(flags for _, flags in self.sent)


@dataclass
class Request:
    inputs: dict[str, npt.NDArray[Any]]
    sender: Sender = field(default_factory=Sender)

    def get_response_sender(self) -> Sender:
        return self.sender


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    return Tensor(name, request.inputs[name]) if name in request.inputs else None


class MetricFamily:
    """Notes what is shown: `shown[name, labels]` is the metric's value."""

    COUNTER, GAUGE = range(2)
    shown: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def __init__(self, *, name: str, description: str, kind: int) -> None:
        self.name, self.kind = name, kind

    def Metric(self, *, labels: dict[str, str]) -> "_Metric":  # Triton's name
        key = (self.name, tuple(labels.items()))
        if key in self.shown:
            raise RuntimeError("this metric is there already")
        self.shown[key] = 0.0
        return _Metric(self, key)


class _Metric:
    def __init__(self, family: MetricFamily, key: Any) -> None:
        self.family, self.key = family, key

    def increment(self, value: float) -> None:
        if value < 0:
            raise ValueError("a counter does not go back")
        self.family.shown[self.key] += value

    def set(self, value: float) -> None:
        if self.family.kind != MetricFamily.GAUGE:
            raise ValueError("only a gauge can be set")
        self.family.shown[self.key] = value


def document(json: bytes) -> npt.NDArray[Any]:
    """A BYTES tensor with one element."""
    return np.array([json], dtype=np.object_)
