"""Serialized multimodal items: the MessagePack form of vLLM's `MultiModalKwargsItem`.

    {field name: {"data": D, "field": [kind, options]}}
    D       [dtype, shape, ext 3 with the raw little-endian bytes]  a tensor
            or a list of D, a number, or nil
    kind    "batched" {keep_on_cpu} | "flat" {slices, dim, keep_on_cpu} | "shared" {batch_size, keep_on_cpu}

All of it may come from a client, so that everything is checked: dtype against a list, declared shape against byte count,
depth, kinds. Extension codes 1 and 2 are pickles in the reference and are refused, like any other code than 3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import numpy.typing as npt

RAW_EXT = 3
MAX_DEPTH = 4
MAX_DIMS = 8

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_OPTIONS: dict[str, frozenset[str]] = {
    "batched": frozenset({"keep_on_cpu"}),
    "flat": frozenset({"slices", "dim", "keep_on_cpu"}),
    "shared": frozenset({"batch_size", "keep_on_cpu"}),
}

Tensor = npt.NDArray[Any]
Data = Tensor | list[Any] | int | float | None


@dataclass(frozen=True)
class Field:
    """One named value of an item. `options` are those of the kind, in the order of the module's docstring."""

    data: Data
    kind: str = "batched"
    options: Mapping[str, Any] = field(default_factory=lambda: {"keep_on_cpu": False})

    @property
    def keep_on_cpu(self) -> bool:
        """Placeholder metadata, which the language model needs as well, rather than input of the encoder alone."""
        return bool(self.options.get("keep_on_cpu", False))


Item = dict[str, Field]


def metadata_of(item: Item) -> Item:
    """The fields that prefill needs: those kept on the CPU. Never pixel values."""
    return {name: value for name, value in item.items() if value.keep_on_cpu}


def encode_item(item: Item) -> bytes:
    """An item as MessagePack; equal items give equal bytes."""
    document = {
        name: {"data": _encode_data(value.data), "field": [value.kind, dict(value.options)]} for name, value in item.items()
    }
    packed: bytes = msgpack.packb(document)
    return packed


def _encode_data(data: Data) -> Any:
    if isinstance(data, np.ndarray):
        little = np.ascontiguousarray(data, data.dtype.newbyteorder("<"))
        return [_NAMES[np.dtype(data.dtype)], list(data.shape), msgpack.ExtType(RAW_EXT, little.tobytes())]
    if isinstance(data, list):
        return [_encode_data(part) for part in data]
    return data


def decode_item(packed: bytes | memoryview) -> Item:
    """The item that `encode_item` wrote. Tensors are read-only views of `packed`.

    Raises ValueError, with the field's name, for anything that is not exactly of the documented form.
    """
    try:
        document = msgpack.unpackb(packed, ext_hook=_raw_only, strict_map_key=True, max_ext_len=len(packed))
    except (ValueError, msgpack.UnpackException, TypeError) as error:
        raise ValueError(f"not a serialized multimodal item: {error or type(error).__name__}") from error
    if not isinstance(document, dict) or not document:
        raise ValueError("not a serialized multimodal item: a map of fields is expected")
    return {_name(name): _decode_field(name, value) for name, value in document.items()}


class _Raw(bytes):
    """The content of an ext 3 value, told apart from a MessagePack binary."""


def _raw_only(code: int, data: bytes) -> _Raw:
    if code != RAW_EXT:
        raise ValueError(f"extension code {code} is refused: only raw tensors (code {RAW_EXT}) are accepted")
    return _Raw(data)


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError("a field's name must be text")
    return name


def _decode_field(name: str, value: Any) -> Field:
    if not isinstance(value, dict) or not {"data", "field"} <= value.keys():
        raise ValueError(f"field {name}: a map with data and field is expected")
    match value["field"]:
        case [str(kind), dict(options)] if (
            kind in _OPTIONS and options.keys() <= _OPTIONS[kind] and isinstance(options.get("keep_on_cpu", False), bool)
        ):
            return Field(_decode_data(name, value["data"], MAX_DEPTH), kind, options)
    raise ValueError(f"field {name}: its kind must be one of {', '.join(_OPTIONS)} with that kind's options")


def _decode_data(name: str, data: Any, depth: int) -> Data:
    match data:
        case None | int() | float():
            return data
        case [str(dtype), list(shape), raw]:
            return _decode_tensor(name, dtype, shape, raw)
        case list() if depth > 0:
            return [_decode_data(name, part, depth - 1) for part in data]
    raise ValueError(f"field {name}: its data must be a tensor, a list, a number or nil")


def _decode_tensor(name: str, dtype: str, shape: list[Any], raw: Any) -> Tensor:
    if dtype not in DTYPES:
        raise ValueError(f"field {name}: dtype {dtype!r} is not accepted")
    if not isinstance(raw, _Raw):
        raise ValueError(f"field {name}: its values must be an extension of code {RAW_EXT}")
    if len(shape) > MAX_DIMS or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"field {name}: shape {shape!r} is not a list of at most {MAX_DIMS} sizes")
    expected = math.prod(shape) * DTYPES[dtype].itemsize
    if expected != len(raw):
        raise ValueError(f"field {name}: {dtype} {shape} takes {expected} bytes, {len(raw)} were sent")
    return np.frombuffer(raw, DTYPES[dtype].newbyteorder("<")).reshape(shape)
