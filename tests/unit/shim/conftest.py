"""An app over fake stages, started and with every stage up."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from client.shim.app import create_app
from client.shim.context import Shim
from tests.unit.render.helpers import settings as render_settings
from triton_renderer.render import Renderer
from triton_renderer.settings import Settings

from .clients import Clients, clients
from .fakes import Connection, FakeStages, until

MODEL = "served"


@dataclass
class Running:
    """A started app and a client of it."""

    app: FastAPI
    http: httpx.AsyncClient
    stages: FakeStages

    @property
    def shim(self) -> Shim:
        shim: Shim = self.app.state.shim
        return shim

    def connect(self, path: str, body: dict[str, Any], **headers: str) -> Connection:
        """A request whose client can leave."""
        return Connection(self.app, path, body, headers)

    def count(self, name: str, **labels: str) -> float:
        """The value of one of the app's metrics."""
        return self.shim.metrics.registry.get_sample_value(f"triton_renderer_{name}", labels) or 0.0


Start = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts an app with these settings; `stages` are the fakes behind it, `wait` is off where not all of them come up."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)

    @asynccontextmanager
    async def started(*, stages: FakeStages | None = None, wait: bool = True, **settings: Any) -> AsyncIterator[Running]:
        fake = stages or FakeStages()
        known = {"served_model_name": MODEL, "enable_scale_out": True} | settings
        app = create_app(Settings(**known), fake, probe_every_s=0.01)
        async with app.router.lifespan_context(app):
            if wait:
                monitor = app.state.shim.monitor
                await until(lambda: all(monitor.state(stage) == "up" for stage in monitor.names))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shim") as http:
                yield Running(app, http, fake)

    return started


@pytest.fixture
async def running(start: Start) -> AsyncIterator[Running]:
    """An app with the default settings of these tests: scale-out on, no key."""
    async with start() as app:
        yield app


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    """The bundled model's, with both parsers and a context of 600 tokens."""
    return Renderer.load(render_settings())


@pytest.fixture
async def api(renderer: Renderer) -> AsyncIterator[Clients]:
    """The official clients in front of the bundled model, whose engine says what the test wants."""
    async with clients(renderer) as connected:
        yield connected
