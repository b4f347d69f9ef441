"""The shim's app over the library's render and derender, without Triton: the whole way of a request in one process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from client.shim.app import create_app
from client.shim.health import PROBE_TENSORS
from tests.golden.servers import Server
from tests.unit.shim.fakes import until
from tests.unit.shim.in_process import InProcessStages
from triton_renderer.derender import Derenderer
from triton_renderer.render import Renderer
from triton_renderer.settings import Settings


@asynccontextmanager
async def serving(server: Server, model: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app that serves the folder `model` as `server` says."""
    settings = Settings(model=str(model), **server.settings)
    app = create_app(settings, InProcessStages(Renderer.load(settings), Derenderer.load(settings)), probe_every_s=0.01)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(10):
            await until(lambda: all(app.state.shim.monitor.state(stage) == "up" for stage in PROBE_TENSORS))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shim") as http:
            yield http
