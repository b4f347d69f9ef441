"""Generated tokens made into an OpenAI answer, and nothing more: stage `derender` alone."""

from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from client.shim.answer import DocumentAnswer
from client.shim.body import client_request_id, load_object, new_id, parse_as, read_body
from client.shim.concurrency import offload
from client.shim.context import Shim, require_scale_out, shim_of
from client.shim.errors import BadBody
from client.shim.open_requests import OpenRequest
from client.shim.schema import takes
from client.shim.triton import STAGES_OF, Tensors, document_tensor
from triton_renderer.errors import RendererError
from triton_renderer.protocol.derender import DerenderChatRequest
from triton_renderer.tensors import CHUNK, RESPONSE

router = APIRouter(tags=["derender"], dependencies=[Depends(require_scale_out)])


@router.post("/v1/chat/completions/derender", openapi_extra=takes(DerenderChatRequest))
async def derender_chat_completion(request: Request) -> Response:
    """The chat completion that a whole GenerateResponse amounts to."""
    shim = shim_of(request)
    raw = await read_body(request, shim.settings.max_request_bytes)
    document, body = await offload(len(raw), _parse, raw)
    shim.check_model(body.model)
    inputs = {CHUNK.name: document_tensor(await offload(len(raw), _job, document))}
    client_id = client_request_id(request, body.generate_response.request_id)
    open_request = OpenRequest([new_id()], client_id, client_id, STAGES_OF["derender"])
    return DocumentAnswer(shim, open_request, lambda: _derender(shim, inputs))


def _parse(raw: bytes) -> tuple[dict[str, Any], DerenderChatRequest]:
    document = load_object(raw)
    if document.get("stream"):
        raise BadBody("streaming derender is not available: leave stream out, and send the whole response", "stream")
    return document, parse_as(DerenderChatRequest, document)


def _job(document: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps({"op": "derender_chat", "body": document})
    except orjson.JSONEncodeError as error:
        raise BadBody("the body is nested too deeply") from error


async def _derender(shim: Shim, inputs: Tensors) -> bytes:
    documents: list[bytes] = (await shim.call("derender", inputs))[RESPONSE.name].tolist()
    if len(documents) != 1:
        raise RendererError(f"model `derender` answered with {len(documents)} documents, one was expected")
    return documents[0]
