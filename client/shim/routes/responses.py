"""OpenAI's Responses API. Nothing is stored: there is no response to fetch, continue or cancel later."""

from fastapi import APIRouter, Request, Response

from client.shim.calls import chat_answer
from client.shim.context import shim_of
from client.shim.events import ResponsesEvents
from client.shim.jobs import read_responses
from client.shim.schema import takes
from triton_renderer.protocol.responses.request import ResponsesRequest

router = APIRouter(tags=["responses"])


@router.post("/v1/responses", openapi_extra=takes(ResponsesRequest, streams=True))
async def create_response(request: Request) -> Response:
    """The model's next items."""
    shim = shim_of(request)
    jobs = await read_responses(request, shim)
    return chat_answer(shim, jobs, ResponsesEvents())
