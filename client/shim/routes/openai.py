"""The coupled OpenAI routes: a conversation or a prompt in, text out. Ensemble `chat` does all of it."""

from functools import partial
from pathlib import Path

from fastapi import APIRouter, Request, Response

from client.shim.answer import DocumentAnswer, EventAnswer
from client.shim.completions import merged_document, merged_events
from client.shim.concurrency import all_of
from client.shim.context import Shim, shim_of
from client.shim.jobs import Jobs, read_chat, read_completion
from client.shim.schema import reference, takes
from client.shim.triton import Tensors
from triton_renderer.errors import RendererError
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest, ModelCard, ModelList

router = APIRouter(tags=["openai"])


@router.post("/v1/chat/completions", openapi_extra=takes(ChatCompletionRequest, streams=True))
async def create_chat_completion(request: Request) -> Response:
    """The assistant's next message."""
    shim = shim_of(request)
    jobs = await read_chat(request, shim)
    (inputs,) = jobs.inputs
    if jobs.body.stream:
        return EventAnswer(shim, jobs.opened_by("chat"), partial(shim.chat_documents, inputs))
    return DocumentAnswer(shim, jobs.opened_by("chat"), partial(_whole, shim, inputs))


@router.post("/v1/completions", openapi_extra=takes(CompletionRequest, streams=True))
async def create_completion(request: Request) -> Response:
    """The continuation of each prompt."""
    shim = shim_of(request)
    jobs = await read_completion(request, shim)
    if jobs.body.stream:
        return EventAnswer(
            shim, jobs.opened_by("chat"), lambda: merged_events([shim.chat_documents(inputs) for inputs in jobs.inputs])
        )
    return DocumentAnswer(shim, jobs.opened_by("chat"), partial(_all_prompts, shim, jobs))


@router.get(
    "/v1/models", openapi_extra={"responses": {"200": {"content": {"application/json": {"schema": reference(ModelList)}}}}}
)
async def list_models(request: Request) -> Response:
    """The one model that is served."""
    return Response(ModelList(data=[_card(shim_of(request))]).model_dump_json(), media_type="application/json")


def _card(shim: Shim) -> ModelCard:
    """The served model. A folder of this machine is shown by its name alone."""
    settings = shim.settings
    is_folder = Path(settings.model).is_dir()
    return ModelCard(
        id=settings.model_name,
        created=shim.started,
        root=Path(settings.model).resolve().name if is_folder else settings.model,
        max_model_len=shim.monitor.facts("prefill_decode").get("max_model_len", settings.max_model_len),
    )


async def _whole(shim: Shim, inputs: Tensors) -> bytes:
    documents = [document async for document in shim.chat_documents(inputs)]
    if len(documents) != 1:
        raise RendererError(f"model `chat` answered a plain request with {len(documents)} documents")
    return documents[0]


async def _all_prompts(shim: Shim, jobs: Jobs[CompletionRequest]) -> bytes:
    return merged_document(await all_of([_whole(shim, inputs) for inputs in jobs.inputs]))
