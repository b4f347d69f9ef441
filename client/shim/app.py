"""The app: its parts put together, started and stopped."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from client.shim.context import Shim
from client.shim.errors import EXCEPTION_HANDLERS
from client.shim.health import PROBE_EVERY_S, StageMonitor
from client.shim.metrics import Metrics
from client.shim.middleware import ApiKey, Observer
from client.shim.open_requests import OpenRequests
from client.shim.routes import derender, generate, openai, render, server
from client.shim.schema import DocumentedApp
from client.shim.triton import Stages, TritonStages
from triton_renderer import __version__
from triton_renderer.settings import Settings


def create_app(settings: Settings, stages: Stages | None = None, *, probe_every_s: float = PROBE_EVERY_S) -> FastAPI:
    """The HTTP server in front of Triton. `stages` takes the place of Triton, for tests.

    Everything runs between the start and the end of the app's lifespan; before it, no request is served.
    """
    metrics = Metrics(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        connected = stages or TritonStages(settings)
        monitor = StageMonitor(connected, settings.request_timeout_s, probe_every_s=probe_every_s)
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
    for routes in (openai, render, generate, derender, server):
        app.include_router(routes.router)
    if settings.api_key:
        app.add_middleware(ApiKey, key=settings.api_key)
    app.add_middleware(Observer, metrics=metrics)
    return app
