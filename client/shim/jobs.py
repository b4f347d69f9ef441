"""Chat and completion bodies as jobs for render: one prompt each, its data URLs beside the document."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Generic, Literal, TypeVar

from fastapi import Request

from client.shim.body import client_request_id, dump, load_object, new_id, offload, parse_as, read_body
from client.shim.context import Shim
from client.shim.open_requests import OpenRequest
from client.shim.triton import STAGES_OF, Tensors, document_tensor
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.media import detach_media
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.protocol.stages import RenderJob
from triton_renderer.tensors import MEDIA, MEDIA_OFFSETS, REQUEST, concatenate

Body = TypeVar("Body", ChatCompletionRequest, CompletionRequest)


@dataclass(frozen=True)
class Jobs(Generic[Body]):
    """One client's request: its body as checked, and the inputs of render or of ensemble `chat`, one a prompt."""

    body: Body
    client_id: str
    external_id: str
    ids: Sequence[str]
    inputs: Sequence[Tensors]

    def opened_by(self, model: Literal["chat", "render"]) -> OpenRequest:
        """The request to keep open while `model` works on it."""
        return OpenRequest(self.ids, self.external_id, self.client_id, STAGES_OF[model])


async def read_chat(request: Request, shim: Shim, *, for_generate: bool = False) -> Jobs[ChatCompletionRequest]:
    """The job of a chat request. Raises InvalidRequest for what does not fit."""
    raw = await read_body(request, shim.settings.max_request_bytes)
    document, media, body = await offload(len(raw), _parse_chat, raw)
    shim.check_model(body.model)
    client_id = client_request_id(request, body.request_id)
    external_id = f"chatcmpl-{client_id}"
    job = RenderJob(
        kind="chat", id=new_id(), external_id=external_id, body=document, created=int(time()), for_generate=for_generate
    )
    inputs = await offload(len(raw), _inputs, job, media)
    return Jobs(body, client_id, external_id, [job.id], [inputs])


async def read_completion(request: Request, shim: Shim, *, for_generate: bool = False) -> Jobs[CompletionRequest]:
    """The jobs of a completion request, one a prompt. Raises InvalidRequest for what does not fit.

    Their choices are numbered through. Rendered for generate, each prompt gets an id of its own where there are several;
    otherwise they end in one answer, and share its id.
    """
    raw = await read_body(request, shim.settings.max_request_bytes)
    document, body = await offload(len(raw), _parse_completion, raw)
    shim.check_model(body.model)
    prompts = body.prompts
    if len(prompts) > shim.settings.max_waiting_requests:
        raise InvalidRequest(
            f"prompt has {len(prompts)} prompts, this server takes {shim.settings.max_waiting_requests} at once", "prompt"
        )
    client_id = client_request_id(request, body.request_id)
    external_id, created = f"cmpl-{client_id}", int(time())
    jobs = [
        RenderJob(
            kind="completion",
            id=new_id(),
            external_id=f"{external_id}-{index}" if for_generate and len(prompts) > 1 else external_id,
            body=document | {"prompt": prompt},
            created=created,
            choice_offset=index * (body.n or 1),
            for_generate=for_generate,
        )
        for index, prompt in enumerate(prompts)
    ]
    inputs = await offload(len(raw), lambda: [_inputs(job, []) for job in jobs])
    return Jobs(body, client_id, external_id, [job.id for job in jobs], inputs)


def _parse_chat(raw: bytes) -> tuple[dict[str, Any], list[bytes], ChatCompletionRequest]:
    document = load_object(raw)
    media = detach_media(document)
    return document, media, parse_as(ChatCompletionRequest, document)


def _parse_completion(raw: bytes) -> tuple[dict[str, Any], CompletionRequest]:
    document = load_object(raw)
    return document, parse_as(CompletionRequest, document)


def _inputs(job: RenderJob, media: list[bytes]) -> Tensors:
    data, offsets = concatenate(media)
    return {REQUEST.name: document_tensor(dump(job)), MEDIA.name: data, MEDIA_OFFSETS.name: offsets}
