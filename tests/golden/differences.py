"""Where our answers differ from the reference's on purpose: what is put right before the two are compared.

docs/compatibility.md says why. Nothing else is changed, and nothing is left out of the comparison.
"""

import copy
from typing import Any

import numpy as np

from tests.golden.cases import MESSAGES, RESPONSES
from tests.golden.recording import unpacked

INTERNAL_SAMPLING_PARAMS = ("output_kind", "skip_clone", "skip_reading_prefix_cache", "extra_args", "output_text_buffer_length")
"""What the reference's engine says to itself."""

MODALITIES = ("image", "video", "audio")
PIXELS = ("pixel_values", "pixel_values_videos")

SAME_PIXELS = 0.995
"""Of the pixel values this part may be at most one of 255 levels away: pictures are resized by another library."""
FARTHEST_LEVEL = 8


ON_PURPOSE: dict[str, int] = {
    # Accepted, where the reference refuses it
    "qwen3/history-arguments-object": 200,
    "qwen3/history-arguments-null": 200,
    "qwen3/truncated-to-fit": 200,
    "qwen3/responses-truncation": 200,
    "qwen3/fields-stop-many": 200,
    "qwen3-vl/url-as-text": 200,
    "qwen3-vl/input-image": 200,
    "qwen3-vl/header-capitals": 200,
    # Refused at once, where the reference lets it pass and the server behind it fails
    "qwen3/error-logit-bias-beyond-vocabulary": 400,
    "qwen3/error-allowed-beyond-vocabulary": 400,
    "qwen3/error-allowed-empty": 400,
    "qwen3/error-completion-prompt-id-beyond-vocabulary": 400,
    # The client's mistake, where the reference says that it is the server's
    "qwen3-vl/error-picture-not-base64": 400,
    "qwen3-vl/error-picture-file": 400,
    "qwen3-vl/error-picture-cut-left": 400,
    "qwen3-vl/picture-truncation-behind": 400,
    # Another prompt
    "qwen3-vl/typed-token-first": 200,
    "qwen3-vl/typed-token-last": 200,
    "qwen3-vl/typed-token-only": 200,
    "qwen3-vl/video-typed-token": 200,
    "qwen3-vl/completion-typed-picture": 200,
    "qwen3/responses-output-text": 200,
    "qwen3-vl-plain/own-template-for-text": 200,
    "qwen3-vl-plain/own-template-for-text-two": 200,
    # The request's own id, and what it asks of thinking
    "qwen3/fields-id-empty": 200,
    "qwen3/messages-thinking-and-variable": 200,
    # Other pixels
    "qwen3-vl/png-gray16": 200,
    # Derendered: a sign for what is missing, what is content and what is reasoning, the same text as in a stream
    "gemma/derender-bytes-cut": 200,
    "qwen3/stream-no-thinking": 200,
    "smollm2-granite/derender-thinking-cut": 200,
    "qwen3-coder/derender-call-behind-text": 200,
}
"""Our status in the cases `server/name` that differ in another way than `normalized` puts right; docs/compatibility.md says why."""


_OF_ITS_CLASSES = ("", "body", "enabled")
"""Parts of the reference's places that are not in a request: besides them its classes, with a capital."""

_TRANSLATED = {RESPONSES: {"logprobs": "top_logprobs"}, MESSAGES: {"max_completion_tokens": "max_tokens"}}
"""Fields of the request that another API's is translated to, and what its client calls them."""


def normalized_error(error: dict[str, Any], route: str) -> dict[str, Any]:
    """The reference names a field as `body.messages.0.ItsOwnClass.role`, we do it as OpenAI does: `messages.0.role`."""
    places = [place for place in (error["param"] or "").split(".") if place not in _OF_ITS_CLASSES and not place[0].isupper()]
    # Where a list is read lazily it names a place in that list only; of a part the field, for media the modality.
    if not places or places[0].isdigit() or places[0] in MODALITIES or places == ["type"]:
        return error | {"param": None}
    places[0] = _TRANSLATED.get(route, {}).get(places[0], places[0])
    return error | {"param": ".".join(places)}


def normalized(answer: Any, request: dict[str, Any], *, is_reference: bool) -> Any:
    """An answer of a render route without what differs on purpose."""
    if isinstance(answer, list):
        return [normalized(item, request, is_reference=is_reference) for item in answer]
    answer = copy.deepcopy(answer)
    if "request_id" not in request:
        answer["request_id"] = str(answer["request_id"]).partition("-")[0].partition("_")[0]  # what follows is random
    params = answer["sampling_params"]
    if is_reference:
        # It leaves out what equals a default; 16 is one, and whoever reads the answer then generates without a limit.
        params.setdefault("max_tokens", 16)
        # What is meant for the transfer of caches is among its engine's own arguments, not in the field that generate documents.
        for name in ("kv_transfer_params", "ec_transfer_params"):
            answer[name] = answer[name] or params.get("extra_args", {}).get(name)
        for name in INTERNAL_SAMPLING_PARAMS:
            params.pop(name, None)
        if answer["reasoning_parser_kwargs"]:
            answer["reasoning_parser_kwargs"]["chat_template_kwargs"].pop(
                "cohere_format", None
            )  # a setting of one family's parser
    if isinstance(params.get("structured_outputs"), dict):
        params["structured_outputs"] = {
            name: value for name, value in params["structured_outputs"].items() if value not in (None, False)
        }
    if answer["features"] is not None:
        _normalize_features(answer["features"], request)
    return answer


def _normalize_features(features: dict[str, Any], request: dict[str, Any]) -> None:
    """What is compared of the hashes is that there is one for each item: ours are other ones, see `check_hashes`."""
    named = set(_uuids(request))
    for modality, hashes in features["mm_hashes"].items():
        features["mm_hashes"][modality] = [value if value in named else "" for value in hashes]
    for spans in features["mm_placeholders"].values():
        for span in spans:
            span.pop("is_embed", None)


def check_hashes(ours: dict[str, Any], reference: dict[str, Any]) -> None:
    """Raises AssertionError where ours tell apart what the reference's do not, or are alike where the pixels are not.

    `ours` and `reference` are the features of an answer. One picture in two files may have one hash with us, and two there.
    """
    for modality, hashes in ours["mm_hashes"].items():
        pixels = [
            item and next(field.get("digest") for name, field in item.items() if name in PIXELS)
            for item in (ours["kwargs_data"] or {}).get(modality, [None] * len(hashes))
        ]
        pairs = list(zip(hashes, reference["mm_hashes"][modality], pixels, strict=True))
        for our_hash, other_hash, values in pairs:
            assert all(our_hash == ours_too for ours_too, other_too, _ in pairs if other_hash == other_too)
            assert all(values == values_too for ours_too, _, values_too in pairs if our_hash == ours_too)


def _uuids(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [str(value["uuid"])] if "uuid" in value else []
        return own + [uuid for item in value.values() for uuid in _uuids(item)]
    return [uuid for item in value for uuid in _uuids(item)] if isinstance(value, list) else []


def take_out_pixels(answer: Any) -> list[dict[str, Any]]:
    """The compact pixel values of an answer, which are compared with a tolerance, taken out of it."""
    found: list[dict[str, Any]] = []
    if isinstance(answer, dict):
        kwargs = answer.get("kwargs_data")
        for _, items in sorted(kwargs.items()) if isinstance(kwargs, dict) else ():
            found += [item.pop(name) for item in items if item is not None for name in PIXELS if name in item]
        for value in answer.values():
            found += take_out_pixels(value)
    elif isinstance(answer, list):
        for value in answer:
            found += take_out_pixels(value)
    return found


def check_pixels(ours: dict[str, Any], reference: dict[str, Any]) -> None:
    """Raises AssertionError where pixel values differ by more than another resampling library explains."""
    described = ("kind", "dtype", "shape")  # the options count rows of the whole request in the reference, of the item with us
    assert {name: ours[name] for name in described} == {name: reference[name] for name in described}
    if "values" in ours:
        distance = np.abs(np.subtract(ours["values"], reference["values"], dtype=np.float64))
    else:
        distance = np.abs(unpacked(ours).astype(np.float64) - unpacked(reference).astype(np.float64))
    if ours["dtype"] != "uint8":
        distance *= 127.5  # normalised from -1 to 1
    assert distance.max() <= FARTHEST_LEVEL
    assert np.mean(distance <= 1) >= SAME_PIXELS
