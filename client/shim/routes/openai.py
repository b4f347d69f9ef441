"""The coupled OpenAI routes: a conversation or a prompt in, text out. Ensemble `chat` does all of it."""

from collections.abc import AsyncGenerator
from functools import partial

from fastapi import APIRouter, Request, Response

from client.shim.answer import DocumentAnswer, EventAnswer
from client.shim.calls import chat_answer, chat_document, chat_documents
from client.shim.completions import merged_document, merged_events
from client.shim.concurrency import all_of
from client.shim.context import Shim, shim_of
from client.shim.jobs import Jobs, read_chat, read_completion
from client.shim.schema import takes
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest

router = APIRouter(tags=["openai"])


@router.post("/v1/chat/completions", openapi_extra=takes(ChatCompletionRequest, streams=True))
async def create_chat_completion(request: Request) -> Response:
    """The assistant's next message."""
    shim = shim_of(request)
    jobs = await read_chat(request, shim)
    return chat_answer(shim, jobs)


@router.post("/v1/completions", openapi_extra=takes(CompletionRequest, streams=True))
async def create_completion(request: Request) -> Response:
    """The continuation of each prompt."""
    shim = shim_of(request)
    jobs = await read_completion(request, shim)
    if jobs.body.stream:
        return EventAnswer(shim, jobs.opened_by("chat"), partial(_events_of_all, shim, jobs))
    return DocumentAnswer(shim, jobs.opened_by("chat"), partial(_all_prompts, shim, jobs))


async def _all_prompts(shim: Shim, jobs: Jobs[CompletionRequest]) -> bytes:
    calls = [partial(chat_document, shim, jobs, job) for job in jobs.jobs]
    return merged_document(await all_of(calls, shim.settings.max_running_requests))


def _events_of_all(shim: Shim, jobs: Jobs[CompletionRequest]) -> AsyncGenerator[bytes, None]:
    return merged_events([chat_documents(shim, jobs, job) for job in jobs.jobs], shim.settings.max_running_requests)
