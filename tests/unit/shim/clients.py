"""The official clients of OpenAI and Anthropic in front of the app, without a network."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2
import openai
from fastapi import FastAPI

from client.shim.app import create_app
from tests.unit.render.helpers import settings as render_settings
from triton_renderer.render import Renderer
from triton_renderer.settings import Settings
from triton_renderer.tensors import STAGES

from .fakes import until
from .in_process import InProcessStages

MODEL = "shapes-vl"
KEY = "a-key"


@dataclass
class Clients:
    """Both clients, plain HTTP, and the stages behind the app."""

    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    http: httpx2.AsyncClient
    stages: InProcessStages
    app: FastAPI

    async def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """A request that no client would make."""
        return await self.http.post(f"http://shim{path}", json=body, headers={"authorization": f"Bearer {KEY}"})


@asynccontextmanager
async def clients(renderer: Renderer | None = None, **options: Any) -> AsyncIterator[Clients]:
    """An app over the bundled model, which asks for a key; `options` are its settings."""
    stages = InProcessStages(renderer or Renderer.load(render_settings()))
    app = create_app(Settings(**{"enable_scale_out": True, "api_key": KEY} | options), stages, probe_every_s=0.05)
    async with app.router.lifespan_context(app):
        await until(lambda: all(app.state.shim.monitor.state(stage) == "up" for stage in STAGES))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as http:
            yield Clients(
                openai.AsyncOpenAI(base_url="http://shim/v1", api_key=KEY, http_client=http, max_retries=0),
                anthropic.AsyncAnthropic(base_url="http://shim", api_key=KEY, http_client=http, max_retries=0),
                http,
                stages,
                app,
            )
