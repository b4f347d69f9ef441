"""The shim's app over the library's render and derender, without Triton: the whole way of a request in one process."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson

from client.shim.app import create_app
from client.shim.health import PROBE_TENSORS
from client.shim.triton import SPECS, Tensors, document_tensor
from tests.golden.servers import Server
from tests.unit.shim.fakes import until
from triton_renderer.derender import Derenderer
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.stages import RenderJob
from triton_renderer.render import Renderer
from triton_renderer.settings import Settings
from triton_renderer.tensors import (
    CONTEXT,
    MEDIA,
    MEDIA_OFFSETS,
    MM_DATA,
    MM_OFFSETS,
    REQUEST,
    RESPONSE,
    TOKEN_IDS,
    TensorSpec,
    concatenate,
    split,
)

PROBE_ANSWER = document_tensor(b'{"ok":true,"max_model_len":2048}')


class LibraryStages:
    """`client.shim.triton.Stages` with the library behind it. Nothing generates: the stages between answer probes only."""

    def __init__(self, renderer: Renderer, derenderer: Derenderer) -> None:
        self._renderer = renderer
        self._derenderer = derenderer

    async def call(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> Tensors:
        """Answers as the adapters in `model_repository/` do."""
        question, reply = PROBE_TENSORS[model]
        document: dict[str, Any] = orjson.loads(inputs[question.name][0])
        if document.get("op") == "probe":
            return {reply.name: PROBE_ANSWER}
        answer = self._render(inputs) if model == "render" else self._derender(document)
        return {spec.name: answer[spec.name] for spec in outputs or SPECS[model].outputs}

    async def stream(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> AsyncGenerator[Tensors, None]:
        """Answers probes."""
        yield {PROBE_TENSORS[model][1].name: PROBE_ANSWER}

    async def is_live(self) -> bool:
        """It is."""
        return True

    async def reload(self, stage: str) -> None:
        """Nothing dies here."""

    async def close(self) -> None:
        """Nothing is open."""

    def _render(self, inputs: Tensors) -> Tensors:
        media = split(inputs[MEDIA.name], inputs[MEDIA_OFFSETS.name])
        rendered = self._renderer.render(parse(RenderJob, inputs[REQUEST.name][0]), media)
        data, offsets = concatenate(rendered.items)
        context = rendered.context.model_dump_json(exclude_none=True).encode()
        return {
            TOKEN_IDS.name: rendered.token_ids,
            MM_DATA.name: data,
            MM_OFFSETS.name: offsets,
            CONTEXT.name: document_tensor(context),
        }

    def _derender(self, document: dict[str, Any]) -> Tensors:
        derender = self._derenderer.derender_chat if document["op"] == "derender_chat" else self._derenderer.derender_completion
        return {RESPONSE.name: document_tensor(derender(document["body"]))}


@asynccontextmanager
async def serving(server: Server, model: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app that serves the folder `model` as `server` says."""
    settings = Settings(model=str(model), **server.settings)
    app = create_app(settings, LibraryStages(Renderer.load(settings), Derenderer.load(settings)), probe_every_s=0.01)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(10):
            await until(lambda: all(app.state.shim.monitor.state(stage) == "up" for stage in PROBE_TENSORS))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shim") as http:
            yield http
