"""Recorded answers: how they are kept small, and where they lie.

Token ids and offsets are kept as their number, a digest, and the first and last few; a picture's pixel values as shape, dtype,
digest and NUM_SAMPLES of them, evenly spaced. Everything else is kept as it came.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_renderer.wire import Field, decode_item

RECORDINGS = Path(__file__).with_name("recordings")
KINDS = ("render", "derender")
"""Of each server there may be a file of either."""
NUM_SAMPLES = 4096
NUM_SHOWN = 8
_LONGEST_LIST = 3 * NUM_SHOWN
_HASHED = ("token_ids", "token_offsets", "prompt_token_ids")


def compact(value: Any, name: str = "") -> Any:
    """A JSON answer with long lists of ids and serialized items made small."""
    if isinstance(value, dict):
        if name in ("kwargs_data", "mm_metadata"):
            return {
                modality: [None if item is None else compact_item(item) for item in items] for modality, items in value.items()
            }
        return {key: compact(item, key) for key, item in value.items()}
    if isinstance(value, list):
        if name in _HASHED and len(value) > _LONGEST_LIST and not any(isinstance(item, dict) for item in value):
            return {
                "count": len(value),
                "digest": _digest(json.dumps(value).encode()),
                "first": value[:NUM_SHOWN],
                "last": value[-NUM_SHOWN:],
            }
        return [compact(item) for item in value]
    return value


def compact_item(packed: str) -> dict[str, Any]:
    """A serialized item in base64, its tensors made small."""
    return {name: _compact_field(field) for name, field in decode_item(base64.b64decode(packed)).items()}


def _compact_field(field: Field) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": field.kind, "options": dict(field.options)}
    data = field.data
    if not isinstance(data, np.ndarray):
        return document | {"data": data}
    document |= {"dtype": data.dtype.name, "shape": list(data.shape)}
    if data.size <= _LONGEST_LIST:
        return document | {"values": data.tolist()}
    return document | {"digest": _digest(np.ascontiguousarray(data).tobytes()), "sample": _packed(sample(data))}


def sample(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """At most NUM_SAMPLES of the values, evenly spaced."""
    flat = values.reshape(-1)
    count = min(NUM_SAMPLES, len(flat))
    return flat[np.arange(count) * len(flat) // count]


def _packed(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(values.tobytes(), 9)).decode()


def unpacked(sampled: dict[str, Any]) -> npt.NDArray[Any]:
    """The values of a compact field's `sample`."""
    return np.frombuffer(zlib.decompress(base64.b64decode(sampled["sample"])), sampled["dtype"])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def save(server: str, kind: str, version: str, lines: list[dict[str, Any]]) -> None:
    """Writes the cases of one kind that a server of `version` answered."""
    document = [{"server": server, "version": version}, *lines]
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in document)
    _file(server, kind).write_text(text, encoding="utf-8")


def load(server: str) -> Iterator[dict[str, Any]]:
    """The recorded cases of a server: {"name", "route", "request", "status", "answer", "version"}.

    Those of a stream have {"calls", "answers"} in place of "answer", both lists of the same length.
    """
    files = [_file(server, kind) for kind in KINDS]
    for file in files:
        if not file.exists():
            continue
        head, *lines = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
        version = json.loads(head)["version"]
        for line in lines:
            yield {**json.loads(line), "version": version}


def _file(server: str, kind: str) -> Path:
    return RECORDINGS / f"{server}.{'' if kind == 'render' else f'{kind}.'}jsonl"
