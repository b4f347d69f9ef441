"""The server about itself."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from client.shim.context import shim_of
from triton_renderer import __version__
from triton_renderer.tensors import STAGES

router = APIRouter(tags=["server"])


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while every stage answers its probes, else 503 naming those that do not. Answers at once, from what is known."""
    shim_of(request).monitor.require(STAGES)
    return JSONResponse({})


@router.get("/version")
async def version() -> Response:
    """The version of this server."""
    return JSONResponse({"version": __version__})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """The shim's counters, for Prometheus. Triton's own stand on Triton's metrics port."""
    return Response(generate_latest(shim_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)
