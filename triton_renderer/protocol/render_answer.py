"""The render routes' answer: a GenerateRequest as JSON, put together from the outputs of the render stage."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pybase64

from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.protocol.stages import RequestContext

_ALWAYS_WRITTEN = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "stop",
    "stop_token_ids",
    "max_tokens",
    "bad_words",
)
_WRITTEN_UNLESS_GREEDY = ("top_p", "min_p")


def to_generate_request(
    token_ids: npt.NDArray[np.int64], items: Sequence[bytes | memoryview], context: RequestContext
) -> bytes:
    """The JSON that a client can post to /inference/v1/generate as it is.

    `token_ids` is [tokens]. `items` holds two byte strings for each of `context.features`, its kwargs and its metadata, as in the `mm_data` tensor;
    an empty one becomes null. `context` comes from a render job with `for_generate`.
    """
    extra = context.request or {}
    document = {
        "request_id": context.external_id or context.id,
        "token_ids": token_ids,
        "token_offsets": extra.get("token_offsets"),
        "features": _features(items, context),
        "content_parts": None,
        "sampling_params": sampling_params_to_wire(context.sampling_params),
        "model": extra.get("model"),
        "reasoning_ended": extra.get("reasoning_ended"),
        "reasoning_parser_kwargs": extra.get("reasoning_parser_kwargs"),
        "return_token_ids": None,
        "output_mode": context.output_mode,
        "stream": context.stream,
        "stream_options": extra.get("stream_options"),
        "cache_salt": context.cache_salt,
        "priority": context.priority,
        "kv_transfer_params": context.kv_transfer_params,
        "ec_transfer_params": context.ec_transfer_params,
    }
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def sampling_params_to_wire(params: SamplingParams) -> dict[str, Any]:
    """`sampling_params` in the reference's form: values at their default are mostly left out, `max_tokens` never is.

    `SamplingParams` read from the result equal `params`, but for top_p and min_p at temperature 0, where they mean nothing.
    """
    wire = params.model_dump(mode="json", exclude_defaults=True)
    always = _ALWAYS_WRITTEN if params.is_greedy else _ALWAYS_WRITTEN + _WRITTEN_UNLESS_GREEDY
    for name in _WRITTEN_UNLESS_GREEDY:
        wire.pop(name, None)
    wire |= {name: getattr(params, name) for name in always}
    wire["bad_words"] = params.bad_words or []
    return wire


def _features(items: Sequence[bytes | memoryview], context: RequestContext) -> dict[str, Any] | None:
    if not context.features:
        return None
    hashes: dict[str, list[str]] = {}
    placeholders: dict[str, list[dict[str, Any]]] = {}
    kwargs: dict[str, list[orjson.Fragment | None]] = {}
    metadata: dict[str, list[orjson.Fragment | None]] = {}
    for feature, kwargs_item, metadata_item in zip(context.features, items[::2], items[1::2], strict=True):
        hashes.setdefault(feature.modality, []).append(feature.mm_hash)
        placeholders.setdefault(feature.modality, []).append(feature.placeholder.model_dump())
        kwargs.setdefault(feature.modality, []).append(_base64(kwargs_item))
        metadata.setdefault(feature.modality, []).append(_base64(metadata_item))
    return {
        "mm_hashes": hashes,
        "mm_placeholders": placeholders,
        "kwargs_data": kwargs if any(map(any, kwargs.values())) else None,
        "mm_metadata": metadata if any(map(any, metadata.values())) else None,
    }


def _base64(item: bytes | memoryview) -> orjson.Fragment | None:
    # A text would be searched for what JSON escapes, megabytes that cannot hold any.
    return orjson.Fragment(b'"%b"' % pybase64.b64encode(item)) if len(item) else None
