"""Generated tokens made into OpenAI answers, and nothing more: stage `derender` alone.

A body is looked into only as far as it takes to hand it on in one piece: what it means is for the stage to check, and a
stream sends one of these for each of its chunks.
"""

from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from client.shim.answer import DocumentAnswer
from client.shim.body import client_request_id, load_object, new_id, read_body
from client.shim.concurrency import offload
from client.shim.context import Shim, require_scale_out, shim_of
from client.shim.open_requests import OpenRequest
from client.shim.schema import takes
from client.shim.triton import STAGES_OF, Tensors, document_tensor
from triton_renderer.errors import RendererError
from triton_renderer.protocol.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderMessagesRequest,
    DerenderMessagesStreamRequest,
    DerenderResponsesRequest,
    DerenderResponsesStreamRequest,
)
from triton_renderer.tensors import CHUNK, RESPONSE

router = APIRouter(tags=["derender"], dependencies=[Depends(require_scale_out)])


@router.post("/v1/chat/completions/derender", openapi_extra=takes((DerenderChatRequest, DerenderChatStreamRequest)))
async def derender_chat_completion(request: Request) -> Response:
    """The chat completion that a whole GenerateResponse amounts to; with `stream` the next chunk of one, and its state."""
    return await _answer(request, "derender_chat")


@router.post("/v1/completions/derender", openapi_extra=takes((DerenderCompletionRequest, DerenderCompletionStreamRequest)))
async def derender_completion(request: Request) -> Response:
    """The completion that the GenerateResponses to all prompts amount to; with `stream` the next chunk of one, and its state."""
    return await _answer(request, "derender_completion")


@router.post("/v1/responses/derender", openapi_extra=takes((DerenderResponsesRequest, DerenderResponsesStreamRequest)))
async def derender_response(request: Request) -> Response:
    """The Response that a whole GenerateResponse amounts to; with `stream` the events of one chunk, and their state."""
    return await _answer(request, "derender_responses")


@router.post("/v1/messages/derender", openapi_extra=takes((DerenderMessagesRequest, DerenderMessagesStreamRequest)))
async def derender_message(request: Request) -> Response:
    """The message that a whole GenerateResponse amounts to; with `stream` the events of one chunk, and their state."""
    return await _answer(request, "derender_messages")


async def _answer(request: Request, operation: str) -> Response:
    shim = shim_of(request)
    raw = await read_body(request, shim.settings.max_request_bytes)
    document = await offload(len(raw), _operation, operation, raw)
    client_id = client_request_id(request, None)
    open_request = OpenRequest([new_id()], client_id, client_id, STAGES_OF["derender"])
    return DocumentAnswer(shim, open_request, partial(_derender, shim, {CHUNK.name: document_tensor(document)}))


def _operation(operation: str, body: bytes) -> bytes:
    """The stage's control document around the body as it came: it is an object, so that it ends where it seems to end."""
    load_object(body)
    return b'{"op":"%s","body":%s}' % (operation.encode(), body)


async def _derender(shim: Shim, inputs: Tensors) -> bytes:
    documents: list[bytes] = (await shim.call("derender", inputs))[RESPONSE.name].tolist()
    if len(documents) != 1:
        raise RendererError(f"model `derender` answered with {len(documents)} documents, one was expected")
    return documents[0]
