"""Prompts made ready for generate, and nothing more: stage `render` alone."""

from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from client.shim.answer import DocumentAnswer
from client.shim.calls import rendered
from client.shim.concurrency import all_of
from client.shim.context import Shim, require_scale_out, shim_of
from client.shim.jobs import Jobs, read_chat, read_completion, read_messages, read_responses
from client.shim.schema import reference, takes
from triton_renderer.protocol.generate import GenerateRequest
from triton_renderer.protocol.messages.request import MessagesRequest
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.protocol.responses.request import ResponsesRequest

router = APIRouter(tags=["render"], dependencies=[Depends(require_scale_out)])

_ONE = reference(GenerateRequest)


@router.post("/v1/chat/completions/render", openapi_extra=takes(ChatCompletionRequest, _ONE))
async def render_chat_completion(request: Request) -> Response:
    """The GenerateRequest that a conversation amounts to."""
    shim = shim_of(request)
    jobs = await read_chat(request, shim, for_generate=True)
    return DocumentAnswer(shim, jobs.opened_by("render"), partial(rendered, shim, jobs, jobs.jobs[0]))


@router.post("/v1/completions/render", openapi_extra=takes(CompletionRequest, {"type": "array", "items": _ONE}))
async def render_completion(request: Request) -> Response:
    """The GenerateRequests that a list of prompts amounts to, one a prompt."""
    shim = shim_of(request)
    jobs = await read_completion(request, shim, for_generate=True)
    return DocumentAnswer(shim, jobs.opened_by("render"), partial(_render_all, shim, jobs))


@router.post("/v1/responses/render", openapi_extra=takes(ResponsesRequest, _ONE))
async def render_response(request: Request) -> Response:
    """The GenerateRequest that a Responses request amounts to."""
    shim = shim_of(request)
    jobs = await read_responses(request, shim, for_generate=True)
    return DocumentAnswer(shim, jobs.opened_by("render"), partial(rendered, shim, jobs, jobs.jobs[0]))


@router.post("/v1/messages/render", openapi_extra=takes(MessagesRequest, _ONE))
async def render_message(request: Request) -> Response:
    """The GenerateRequest that a Messages request amounts to."""
    shim = shim_of(request)
    jobs = await read_messages(request, shim, for_generate=True)
    return DocumentAnswer(shim, jobs.opened_by("render"), partial(rendered, shim, jobs, jobs.jobs[0]))


async def _render_all(shim: Shim, jobs: Jobs[CompletionRequest]) -> bytes:
    calls = [partial(rendered, shim, jobs, job) for job in jobs.jobs]
    return b"[" + b",".join(await all_of(calls, shim.settings.max_running_requests)) + b"]"
