"""The server about itself."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from client.shim.context import Shim, shim_of
from client.shim.schema import reference
from triton_renderer import __version__
from triton_renderer.protocol.openai import ModelCard, ModelList

router = APIRouter(tags=["server"])


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while every stage of this server answers its probes, else 503 naming those that do not.

    Answers at once, from what is known.
    """
    monitor = shim_of(request).monitor
    monitor.require(monitor.names)
    return JSONResponse({})


@router.get(
    "/v1/models", openapi_extra={"responses": {"200": {"content": {"application/json": {"schema": reference(ModelList)}}}}}
)
async def list_models(request: Request) -> Response:
    """The one model that is served."""
    return Response(ModelList(data=[_card(shim_of(request))]).model_dump_json(), media_type="application/json")


@router.get("/version")
async def version() -> Response:
    """The version of this server."""
    return JSONResponse({"version": __version__})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """The shim's counters, for Prometheus. Triton's own stand on Triton's metrics port."""
    return Response(generate_latest(shim_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _card(shim: Shim) -> ModelCard:
    """The served model. A folder of this machine is shown by its name alone."""
    settings = shim.settings
    return ModelCard(
        id=settings.model_name,
        created=shim.started,
        root=settings.model_id,
        max_model_len=shim.monitor.facts("render").get("max_model_len", settings.max_model_len),
    )
