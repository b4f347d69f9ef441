"""Token ids in, token ids out: ensemble `generate`; and the abort of requests."""

import binascii
import time

import numpy as np
import pybase64
from fastapi import APIRouter, Depends, Request, Response

from client.shim.answer import DocumentAnswer, EventAnswer
from client.shim.body import client_request_id, dump, load_object, new_id, read_body
from client.shim.concurrency import offload
from client.shim.context import Shim, require_scale_out, shim_of
from client.shim.generate_answer import event_documents, whole_document
from client.shim.open_requests import OpenRequest
from client.shim.schema import reference, takes
from client.shim.triton import STAGES_OF, Tensors, document_tensor
from triton_renderer.errors import BadBody, InvalidRequest
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.generate import AbortRequest, Features, GenerateRequest, GenerateResponse, ItemList
from triton_renderer.protocol.stages import FeatureItem, RequestContext
from triton_renderer.tensors import CONTEXT, MM_DATA, MM_OFFSETS, TOKEN_IDS, concatenate

router = APIRouter(tags=["generate"], dependencies=[Depends(require_scale_out)])


@router.post("/inference/v1/generate", openapi_extra=takes(GenerateRequest, reference(GenerateResponse), streams=True))
async def generate(request: Request) -> Response:
    """The continuation of one prompt of token ids, with its multimodal items."""
    shim = shim_of(request)
    raw = await read_body(request, shim.settings.max_request_bytes)
    body = await offload(len(raw), _parse, raw)
    shim.check_model(body.model)
    _check(body, shim)
    internal_id, client_id = new_id(), client_request_id(request, body.request_id)
    external_id, model = f"generate-tokens-{client_id}", shim.settings.model_name
    inputs = await offload(len(raw), _inputs, body, internal_id, external_id, model)
    response = GenerateResponse(request_id=external_id, model=model, created=int(time.time()), output_mode=body.output_mode)
    open_request = OpenRequest([internal_id], external_id, client_id, STAGES_OF["generate"])
    if body.stream:
        return EventAnswer(shim, open_request, lambda: event_documents(shim.stream("generate", inputs), body, response))
    return DocumentAnswer(shim, open_request, lambda: whole_document(shim.stream("generate", inputs), response))


@router.post("/inference/v1/abort_requests", response_class=Response, openapi_extra=takes(AbortRequest, is_empty=True))
async def abort_requests(request: Request) -> Response:
    """Ends requests by the ids that clients know them by. One that is over, or never was, is no error."""
    shim = shim_of(request)
    raw = await read_body(request, shim.settings.max_request_bytes)
    body = parse(AbortRequest, load_object(raw))
    shim.monitor.require(["prefill_decode"])
    await shim.open_requests.abort(body.request_ids)
    return Response()


def _parse(raw: bytes) -> GenerateRequest:
    return parse(GenerateRequest, load_object(raw))


def _check(body: GenerateRequest, shim: Shim) -> None:
    """What a valid document may still ask that this server does not do."""
    if body.content_parts:
        raise InvalidRequest("content_parts is not supported: render the request, and send its features", "content_parts")
    for modality, hashes in body.features.mm_hashes.items() if body.features else ():
        limit = shim.settings.max_videos if modality == "video" else shim.settings.max_images
        if len(hashes) > limit:
            raise InvalidRequest(
                f"features has {len(hashes)} items, this server takes {limit} a request", f"features.mm_hashes.{modality}"
            )


def _inputs(body: GenerateRequest, internal_id: str, external_id: str, model: str) -> Tensors:
    features, items = _flat(body.features) if body.features else ([], [])
    context = RequestContext(
        id=internal_id,
        external_id=external_id,
        model=model,
        stream=body.stream,
        sampling_params=body.sampling_params,
        features=features,
        ec_transfer_params=body.ec_transfer_params,
        kv_transfer_params=body.kv_transfer_params,
        cache_salt=body.cache_salt,
        priority=body.priority,
        return_token_ids=body.return_token_ids,
        output_mode=body.output_mode,
        reasoning_ended=bool(body.reasoning_ended),
    )
    data, offsets = concatenate(items)
    return {
        TOKEN_IDS.name: np.array(body.token_ids, np.int64),
        MM_DATA.name: data,
        MM_OFFSETS.name: offsets,
        CONTEXT.name: document_tensor(dump(context)),
    }


def _flat(features: Features) -> tuple[list[FeatureItem], list[bytes]]:
    """The items of all modalities in the order of the prompt, and two byte strings for each: its kwargs, its metadata."""
    found: list[tuple[FeatureItem, bytes, bytes]] = []
    for modality, placeholders in features.mm_placeholders.items():
        for index, placeholder in enumerate(placeholders):
            item = FeatureItem(modality=modality, mm_hash=features.mm_hashes[modality][index], placeholder=placeholder)
            kwargs = _decoded("kwargs_data", features.kwargs_data, modality, index)
            metadata = _decoded("mm_metadata", features.mm_metadata, modality, index)
            found.append((item, kwargs, metadata))
    found.sort(key=lambda entry: entry[0].placeholder.offset)
    return [item for item, _, _ in found], [data for _, *both in found for data in both]


def _decoded(name: str, lists: dict[str, ItemList] | None, modality: str, index: int) -> bytes:
    """An item's bytes; none for null. Raises BadBody for anything but strict base64 of something."""
    text = lists[modality][index] if lists else None
    if text is None:
        return b""
    where = f"features.{name}.{modality}.{index}"
    try:
        data = pybase64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadBody(f"{where}: not valid base64: {error}", where) from error
    if not data:
        raise BadBody(f"{where}: empty; an item that is not sent is null", where)
    return data
