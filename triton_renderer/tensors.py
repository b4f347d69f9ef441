"""Every tensor that crosses a stage boundary: its name, dtype, shape and meaning. `config.pbtxt` is tested against this.

Bulk data travels as numeric tensors; control data as one small JSON document in a BYTES tensor of shape [1].
No base64, no pickle, nothing of the client's multimodal data inside the JSON.

    name              dtype   shape   meaning
    ---------------------------------------------------------------------------------------------------------------
    request           BYTES   [1]     JSON: {"kind": "chat" | "completion" | "responses" | "messages" | "count_tokens", "id",
                                      "external_id", "body": {...}}, the client's request with its data URLs taken out; or
                                      {"op": "probe"}
    media             UINT8   [-1]    the bytes of all data URLs of `request`, one after another; part i is written
                                      "attached:i" in the body. Optional: data URLs may stay in the body
    media_offsets     INT64   [-1]    n+1 ascending byte offsets into `media`, or none for no media. Optional
    token_ids         INT64   [-1]    the prompt's token ids, placeholders expanded
    mm_data           UINT8   [-1]    serialized multimodal items (`wire.py`), two slices for each item in the order of
                                      `features`: its kwargs, then its metadata; either may be empty (null)
    mm_offsets        INT64   [-1]    2n+1 ascending byte offsets into `mm_data`; none or [0] for no items
    context           BYTES   [1]     JSON: `RequestContext`, what the later stages need to know; or {"op": "probe"},
                                      or, to prefill_decode, {"op": "abort", "request_ids": [...]}
    embeddings        UINT8   [-1]    the encoder's rows as raw bytes of the dtype that `encoded` names: for each item in order
                                      [1 + deepstack, rows, hidden]. Bytes, so that one config serves float32 and bfloat16,
                                      and so that a device tensor is handed on by DLPack without a conversion
    encoded           BYTES   [1]     JSON: `EncodedItems`, the layout of `embeddings` and each item's digest and metadata
    output_token_ids  INT64   [-1]    newly generated ids of this chunk, all its choices one after another
    chunk             BYTES   [1]     JSON: `GeneratedChunk`, what was generated; with a request's first chunk also
                                      what derender needs to know of the request; to derender also {"op": "derender_chat" |
                                      "derender_completion" | "derender_responses" | "derender_messages", "body": {...}},
                                      the body of a derender route, or a probe
    response          BYTES   [-1]    JSON documents ready for the client: one whole response, or the chunks of a stream
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

DataType = Literal["BYTES", "UINT8", "INT64"]

NUMPY_DTYPES: dict[DataType, type[np.generic]] = {"BYTES": np.object_, "UINT8": np.uint8, "INT64": np.int64}


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor. `dims` is as in config.pbtxt: -1 stands for any length."""

    name: str
    dtype: DataType
    dims: tuple[int, ...]
    optional: bool = False


REQUEST = TensorSpec("request", "BYTES", (1,))
MEDIA = TensorSpec("media", "UINT8", (-1,), optional=True)
MEDIA_OFFSETS = TensorSpec("media_offsets", "INT64", (-1,), optional=True)
TOKEN_IDS = TensorSpec("token_ids", "INT64", (-1,))
MM_DATA = TensorSpec("mm_data", "UINT8", (-1,))
MM_OFFSETS = TensorSpec("mm_offsets", "INT64", (-1,))
CONTEXT = TensorSpec("context", "BYTES", (1,))
EMBEDDINGS = TensorSpec("embeddings", "UINT8", (-1,))
ENCODED = TensorSpec("encoded", "BYTES", (1,))
OUTPUT_TOKEN_IDS = TensorSpec("output_token_ids", "INT64", (-1,))
CHUNK = TensorSpec("chunk", "BYTES", (1,))
RESPONSE = TensorSpec("response", "BYTES", (-1,))


def optional(spec: TensorSpec) -> TensorSpec:
    """The same tensor where an input may leave it out."""
    return TensorSpec(spec.name, spec.dtype, spec.dims, optional=True)


@dataclass(frozen=True)
class ModelSpec:
    """The tensors of one Triton model, in the order of its config.pbtxt."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    decoupled: bool = False


MODELS: dict[str, ModelSpec] = {
    "render": ModelSpec((REQUEST, MEDIA, MEDIA_OFFSETS), (TOKEN_IDS, MM_DATA, MM_OFFSETS, CONTEXT)),
    "encode": ModelSpec((optional(MM_DATA), optional(MM_OFFSETS), CONTEXT), (EMBEDDINGS, ENCODED)),
    "prefill_decode": ModelSpec(
        (optional(TOKEN_IDS), optional(EMBEDDINGS), optional(ENCODED), CONTEXT), (OUTPUT_TOKEN_IDS, CHUNK), decoupled=True
    ),
    "derender": ModelSpec((optional(OUTPUT_TOKEN_IDS), CHUNK), (RESPONSE,)),
}
ENSEMBLES: dict[str, ModelSpec] = {
    "generate": ModelSpec((TOKEN_IDS, MM_DATA, MM_OFFSETS, CONTEXT), (OUTPUT_TOKEN_IDS, CHUNK), decoupled=True),
    "chat": ModelSpec((REQUEST, MEDIA, MEDIA_OFFSETS), (RESPONSE,), decoupled=True),
}
STAGES: tuple[str, ...] = tuple(MODELS)

Role = Literal["all", "render"]
STAGES_OF_ROLE: dict[Role, tuple[str, ...]] = {"all": STAGES, "render": ("render", "derender")}
"""The stages that a server of each role runs."""
MODELS_OF_ROLE: dict[Role, tuple[str, ...]] = {"all": (*STAGES, *ENSEMBLES), "render": STAGES_OF_ROLE["render"]}
"""The Triton models of each role: its stages, and the ensembles that go through no other."""


def concatenate(parts: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Byte strings as one flat UINT8 tensor and its n+1 INT64 offsets ([0] for none)."""
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return np.frombuffer(b"".join(parts), np.uint8), offsets


def split(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> list[memoryview]:
    """The slices that `concatenate` joined, without a copy.

    Raises ValueError where `offsets` is not an ascending list from 0 to the length of `data`.
    """
    if offsets.size == 0:
        if data.size:
            raise ValueError(f"{data.size} bytes of data, but no offsets")
        return []
    if offsets[0] != 0 or offsets[-1] != data.size or bool((np.diff(offsets) < 0).any()):
        raise ValueError(f"offsets must ascend from 0 to {data.size}, the number of bytes")
    view = memoryview(np.ascontiguousarray(data).data).cast("B") if data.size else memoryview(b"")
    return [view[start:end] for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
