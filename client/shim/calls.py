"""What the routes of several APIs ask of the models: an answer of ensemble `chat`, or a prompt of `render`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import Response

from client.shim.answer import DocumentAnswer, EventAnswer
from client.shim.concurrency import offload
from client.shim.context import Shim
from client.shim.events import EventForm
from client.shim.jobs import Jobs
from client.shim.triton import Tensors
from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.render_answer import to_generate_request
from triton_renderer.protocol.stages import RenderJob, RequestContext
from triton_renderer.tensors import CONTEXT, MM_DATA, MM_OFFSETS, TOKEN_IDS, split


async def chat_documents(shim: Shim, jobs: Jobs[Any], job: RenderJob) -> AsyncGenerator[bytes, None]:
    """The documents of ensemble `chat`, as they come."""
    documents = shim.chat_documents(await jobs.inputs(job))
    async with aclosing(documents):
        async for document in documents:
            yield document


async def chat_document(shim: Shim, jobs: Jobs[Any], job: RenderJob) -> bytes:
    """The one document of a request that does not stream. RendererError where it is another number."""
    documents = [document async for document in chat_documents(shim, jobs, job)]
    if len(documents) != 1:
        raise RendererError(f"model `chat` answered a plain request with {len(documents)} documents")
    return documents[0]


def chat_answer(shim: Shim, jobs: Jobs[Any], form: EventForm | None = None) -> Response:
    """The answer of ensemble `chat` to a request of one job: whole, or as events in the given form, as the client asked."""
    (job,) = jobs.jobs
    request = jobs.opened_by("chat")
    if jobs.body.stream:
        return EventAnswer(shim, request, partial(chat_documents, shim, jobs, job), form)
    return DocumentAnswer(shim, request, partial(chat_document, shim, jobs, job))


async def rendered(shim: Shim, jobs: Jobs[Any], job: RenderJob) -> bytes:
    """The GenerateRequest that `render` makes of a job."""
    tensors = await shim.call("render", await jobs.inputs(job))
    return await offload(tensors[MM_DATA.name].nbytes + tensors[TOKEN_IDS.name].nbytes, _generate_request, tensors)


def _generate_request(tensors: Tensors) -> bytes:
    """Render's outputs as a GenerateRequest. RendererError where they are not of the documented form."""
    try:
        context = parse(RequestContext, tensors[CONTEXT.name][0])
        items = split(tensors[MM_DATA.name], tensors[MM_OFFSETS.name])
        return to_generate_request(tensors[TOKEN_IDS.name], items, context)
    except (InvalidRequest, ValueError) as error:
        raise RendererError(f"model `render` answered in another form: {error}") from error
