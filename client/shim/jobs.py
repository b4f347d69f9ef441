"""Chat and completion bodies as jobs for render: one prompt each, its data URLs beside the document."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Generic, Literal, TypeVar

from fastapi import Request

from client.shim.body import client_request_id, dump, load_object, new_id, read_body, set_fields
from client.shim.concurrency import offload
from client.shim.context import Shim
from client.shim.open_requests import OpenRequest
from client.shim.triton import STAGES_OF, Tensors, document_tensor
from triton_renderer.errors import InvalidRequest, TooLarge
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.dialects import translated
from triton_renderer.protocol.media import detach_media, detach_sources
from triton_renderer.protocol.messages.request import CountTokensRequest, MessagesRequest
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.protocol.responses.request import ResponsesRequest
from triton_renderer.protocol.stages import RenderJob
from triton_renderer.tensors import MEDIA, MEDIA_OFFSETS, REQUEST, concatenate

Body = TypeVar("Body", ChatCompletionRequest, CompletionRequest, ResponsesRequest, MessagesRequest, CountTokensRequest)


Messages = TypeVar("Messages", MessagesRequest, CountTokensRequest)


@dataclass(frozen=True)
class Jobs(Generic[Body]):
    """One client's request: its body as checked, and a job for each prompt.

    The jobs' bodies hold what the client set of the known fields. Those of several prompts share all but the prompt.
    """

    body: Body
    client_id: str
    external_id: str
    jobs: Sequence[RenderJob]
    media: Tensors
    num_bytes: int
    """Size of the client's request; a job's document is not much larger."""

    def opened_by(self, model: Literal["chat", "render"]) -> OpenRequest:
        """The request to keep open while `model` works on it."""
        return OpenRequest([job.id for job in self.jobs], self.external_id, self.client_id, STAGES_OF[model])

    async def inputs(self, job: RenderJob) -> Tensors:
        """The inputs of render or of ensemble `chat` for one of the jobs: made when they are needed, not all at once."""
        return {REQUEST.name: document_tensor(await offload(self.num_bytes, dump, job)), **self.media}


async def read_chat(request: Request, shim: Shim, *, for_generate: bool = False) -> Jobs[ChatCompletionRequest]:
    """The job of a chat request. Raises InvalidRequest for what does not fit."""
    raw = await read_body(request, shim.settings.max_request_bytes)
    body, media = await offload(len(raw), _parse_chat, raw)
    shim.check_model(body.model)
    client_id = client_request_id(request, body.request_id)
    external_id = f"chatcmpl-{client_id}"
    job = await _job("chat", body, len(raw), external_id=external_id, for_generate=for_generate)
    return Jobs(body, client_id, external_id, [job], media, len(raw))


async def read_responses(request: Request, shim: Shim, *, for_generate: bool = False) -> Jobs[ResponsesRequest]:
    """The job of a Responses request. Raises InvalidRequest for what does not fit, or has no counterpart in chat."""
    raw = await read_body(request, shim.settings.max_request_bytes)
    body, media = await offload(len(raw), _parse_responses, raw)
    client_id = client_request_id(request, body.request_id)
    external_id = body.request_id or f"resp_{client_id}"  # the client's own id is the response's
    shim.check_model(body.model)
    job = await _job("responses", body, len(raw), external_id=external_id, for_generate=for_generate)
    return Jobs(body, client_id, external_id, [job], media, len(raw))


async def read_messages(request: Request, shim: Shim, *, for_generate: bool = False) -> Jobs[MessagesRequest]:
    """The job of a Messages request. Raises InvalidRequest for what does not fit, or has no counterpart in chat."""
    return await _read_messages(request, shim, "messages", MessagesRequest, for_generate)


async def read_count_tokens(request: Request, shim: Shim) -> Jobs[CountTokensRequest]:
    """The job that renders the prompt of a Messages request. Raises InvalidRequest for what does not fit."""
    return await _read_messages(request, shim, "count_tokens", CountTokensRequest, True)


async def _read_messages(
    request: Request, shim: Shim, kind: Literal["messages", "count_tokens"], model: type[Messages], for_generate: bool
) -> Jobs[Messages]:
    raw = await read_body(request, shim.settings.max_request_bytes)
    body, media = await offload(len(raw), _parse_messages, model, raw)
    client_id = client_request_id(request, None)
    external_id = f"chatcmpl-{client_id}"
    shim.check_model(body.model)
    job = await _job(kind, body, len(raw), external_id=external_id, for_generate=for_generate)
    return Jobs(body, client_id, external_id, [job], media, len(raw))


async def _job(
    kind: Literal["chat", "responses", "messages", "count_tokens"],
    body: Body,
    size: int,
    *,
    external_id: str,
    for_generate: bool,
) -> RenderJob:
    """The job of a request with one prompt; `size` is that of the client's request in bytes."""
    return RenderJob(
        kind=kind,
        id=new_id(),
        external_id=external_id,
        body=await offload(size, set_fields, body),
        created=int(time()),
        for_generate=for_generate,
    )


async def read_completion(request: Request, shim: Shim, *, for_generate: bool = False) -> Jobs[CompletionRequest]:
    """The jobs of a completion request, one a prompt. Raises InvalidRequest for what does not fit.

    Their choices are numbered through. Rendered for generate, each prompt gets an id of its own where there are several;
    otherwise they end in one answer, and share its id.
    """
    raw = await read_body(request, shim.settings.max_request_bytes)
    body = await offload(len(raw), _parse_completion, raw)
    shim.check_model(body.model)
    prompts = body.prompts
    if len(prompts) > shim.settings.max_waiting_requests:
        raise InvalidRequest(
            f"prompt has {len(prompts)} prompts, this server takes {shim.settings.max_waiting_requests} at once", "prompt"
        )
    others = body.model_copy(update={"prompt": ""})
    shared = await offload(len(raw), set_fields, others)
    if len(prompts) > 1:
        _check_total(
            len(prompts), len(await offload(len(raw), dump, others, exclude_unset=True)), shim.settings.max_request_bytes
        )
    client_id = client_request_id(request, body.request_id)
    external_id, created = f"cmpl-{client_id}", int(time())
    jobs = [
        RenderJob(
            kind="completion",
            id=new_id(),
            external_id=f"{external_id}-{index}" if for_generate and len(prompts) > 1 else external_id,
            body=shared | {"prompt": prompt},
            created=created,
            choice_offset=index * (body.n or 1),
            for_generate=for_generate,
        )
        for index, prompt in enumerate(prompts)
    ]
    return Jobs(body, client_id, external_id, jobs, _media([]), len(raw))


def _check_total(num_prompts: int, num_bytes: int, limit: int) -> None:
    """`num_bytes` of other fields travel with each prompt. Raises TooLarge where that multiplies a request beyond `limit`."""
    if num_prompts * num_bytes > limit:
        raise TooLarge(
            f"prompt: each of the {num_prompts} prompts is rendered with the request's other fields, {num_bytes} bytes, "
            f"which together is more than the {limit} bytes that this server takes",
            "prompt",
        )


def _parse_chat(raw: bytes) -> tuple[ChatCompletionRequest, Tensors]:
    document = load_object(raw)
    media = detach_media(document)
    return parse(ChatCompletionRequest, document), _media(media)


def _parse_responses(raw: bytes) -> tuple[ResponsesRequest, Tensors]:
    document = load_object(raw)
    media = detach_media(document)
    body = parse(ResponsesRequest, document)
    translated(body)  # render does it as well: here its misfits are found before there is any work done
    return body, _media(media)


def _parse_messages(model: type[Messages], raw: bytes) -> tuple[Messages, Tensors]:
    document = load_object(raw)
    media = detach_sources(document)
    body = parse(model, document)
    translated(body)
    return body, _media(media)


def _parse_completion(raw: bytes) -> CompletionRequest:
    return parse(CompletionRequest, load_object(raw))


def _media(media: list[bytes]) -> Tensors:
    data, offsets = concatenate(media)
    return {MEDIA.name: data, MEDIA_OFFSETS.name: offsets}
