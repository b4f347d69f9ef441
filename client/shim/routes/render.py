"""Prompts made ready for generate, and nothing more: stage `render` alone."""

from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from client.shim.answer import DocumentAnswer
from client.shim.concurrency import all_of, offload
from client.shim.context import Shim, require_scale_out, shim_of
from client.shim.jobs import Jobs, read_chat, read_completion
from client.shim.schema import reference, takes
from client.shim.triton import Tensors
from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.generate import GenerateRequest
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.protocol.render_answer import to_generate_request
from triton_renderer.protocol.stages import RenderJob, RequestContext
from triton_renderer.tensors import CONTEXT, MM_DATA, MM_OFFSETS, TOKEN_IDS, split

router = APIRouter(tags=["render"], dependencies=[Depends(require_scale_out)])

_ONE = reference(GenerateRequest)


@router.post("/v1/chat/completions/render", openapi_extra=takes(ChatCompletionRequest, _ONE))
async def render_chat_completion(request: Request) -> Response:
    """The GenerateRequest that a conversation amounts to."""
    shim = shim_of(request)
    jobs = await read_chat(request, shim, for_generate=True)
    return DocumentAnswer(shim, jobs.opened_by("render"), partial(_render, shim, jobs, jobs.jobs[0]))


@router.post("/v1/completions/render", openapi_extra=takes(CompletionRequest, {"type": "array", "items": _ONE}))
async def render_completion(request: Request) -> Response:
    """The GenerateRequests that a list of prompts amounts to, one a prompt."""
    shim = shim_of(request)
    jobs = await read_completion(request, shim, for_generate=True)
    return DocumentAnswer(shim, jobs.opened_by("render"), partial(_render_all, shim, jobs))


async def _render(shim: Shim, jobs: Jobs[Any], job: RenderJob) -> bytes:
    tensors = await shim.call("render", await jobs.inputs(job))
    return await offload(tensors[MM_DATA.name].nbytes + tensors[TOKEN_IDS.name].nbytes, _document, tensors)


async def _render_all(shim: Shim, jobs: Jobs[CompletionRequest]) -> bytes:
    calls = [partial(_render, shim, jobs, job) for job in jobs.jobs]
    return b"[" + b",".join(await all_of(calls, shim.settings.max_running_requests)) + b"]"


def _document(tensors: Tensors) -> bytes:
    """Render's outputs as a GenerateRequest. RendererError where they are not of the documented form."""
    try:
        context = parse(RequestContext, tensors[CONTEXT.name][0])
        items = split(tensors[MM_DATA.name], tensors[MM_OFFSETS.name])
        document: dict[str, Any] = to_generate_request(tensors[TOKEN_IDS.name].tolist(), items, context)
    except (InvalidRequest, ValueError) as error:
        raise RendererError(f"model `render` answered in another form: {error}") from error
    return orjson.dumps(document)
