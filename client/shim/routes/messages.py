"""Anthropic's Messages API."""

from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from client.shim.answer import DocumentAnswer
from client.shim.calls import chat_answer
from client.shim.context import Shim, shim_of
from client.shim.events import MessagesEvents
from client.shim.jobs import Jobs, read_count_tokens, read_messages
from client.shim.schema import takes
from triton_renderer.protocol.messages.request import CountTokensRequest, MessagesRequest
from triton_renderer.tensors import TOKEN_IDS

router = APIRouter(tags=["messages"])


@router.post("/v1/messages", openapi_extra=takes(MessagesRequest, streams=True))
async def create_message(request: Request) -> Response:
    """The assistant's next message."""
    shim = shim_of(request)
    jobs = await read_messages(request, shim)
    return chat_answer(shim, jobs, MessagesEvents())


@router.post("/v1/messages/count_tokens", openapi_extra=takes(CountTokensRequest))
async def count_tokens(request: Request) -> Response:
    """The number of tokens of a prompt, pictures included."""
    shim = shim_of(request)
    jobs = await read_count_tokens(request, shim)
    return DocumentAnswer(shim, jobs.opened_by("render"), partial(_count, shim, jobs))


async def _count(shim: Shim, jobs: Jobs[Any]) -> bytes:
    tensors = await shim.call("render", await jobs.inputs(jobs.jobs[0]))
    tokens = tensors[TOKEN_IDS.name].size
    return orjson.dumps({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})
