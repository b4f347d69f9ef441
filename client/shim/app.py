"""The app: its parts put together, started and stopped."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute

from client.shim.context import Shim
from client.shim.errors import EXCEPTION_HANDLERS
from client.shim.health import PROBE_EVERY_S, StageMonitor
from client.shim.metrics import Metrics
from client.shim.middleware import ApiKey, Observer
from client.shim.open_requests import OpenRequests
from client.shim.routes import derender, generate, messages, openai, render, responses, server
from client.shim.schema import DocumentedApp
from client.shim.triton import Stages, TritonStages
from triton_renderer import __version__
from triton_renderer.errors import NotFound
from triton_renderer.settings import Settings
from triton_renderer.tensors import STAGES_OF_ROLE, Role

RENDER_TAGS = {"render", "derender", "server"}
"""The tags of the routers that a server has whose role is render."""


def create_app(settings: Settings, stages: Stages | None = None, *, probe_every_s: float = PROBE_EVERY_S) -> FastAPI:
    """The HTTP server in front of Triton. `stages` takes the place of Triton, for tests.

    Everything runs between the start and the end of the app's lifespan; before it, no request is served.
    """
    metrics = Metrics(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        connected = stages or TritonStages(settings)
        stage_names = STAGES_OF_ROLE[settings.role]
        monitor = StageMonitor(connected, settings.request_timeout_s, names=stage_names, probe_every_s=probe_every_s)
        open_requests = OpenRequests(
            connected,
            metrics,
            settings.request_timeout_s,
            settings.max_running_requests + settings.max_waiting_requests,
        )
        monitor.on_change(metrics.stage_is_up)
        monitor.on_change(open_requests.stage_changed)
        app.state.shim = Shim(settings, metrics, connected, monitor, open_requests)
        monitor.start()
        yield
        await monitor.stop()
        await open_requests.close()
        await connected.close()

    app = DocumentedApp(
        title="triton-renderer",
        version=__version__,
        description="OpenAI and renderer API of a multimodal language model on Triton",
        lifespan=lifespan,
        redoc_url=None,
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.shim = None
    for routes in (openai, responses, messages, render, generate, derender, server):
        _add_routes(app, routes.router, settings.role)
    if settings.api_key:
        app.add_middleware(ApiKey, key=settings.api_key)
    app.add_middleware(Observer, metrics=metrics)
    return app


def _add_routes(app: FastAPI, router: APIRouter, role: Role) -> None:
    """The routes of `router`; those that a server of this role does not have answer 404 and say why."""
    if role == "all" or RENDER_TAGS.issuperset(router.tags):
        app.include_router(router)
        return
    for route in router.routes:
        if isinstance(route, APIRoute):
            app.add_api_route(route.path, _absent, methods=sorted(route.methods or ()), include_in_schema=False)


async def _absent(request: Request) -> None:
    raise NotFound(f"{request.url.path}: this server only renders and derenders (ROLE=render): ask one that runs all stages")
