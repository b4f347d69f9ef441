"""What the routes of one app share."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from time import time
from typing import Any

from fastapi import Request
from starlette.types import Receive

from client.shim.health import IN_TURN, StageMonitor
from client.shim.metrics import Metrics
from client.shim.open_requests import OpenRequest, OpenRequests
from client.shim.triton import STAGES_OF, DeadStage, Stages, Tensors
from triton_renderer.errors import Forbidden, RendererError
from triton_renderer.protocol.base import check_model_name
from triton_renderer.settings import Settings
from triton_renderer.tensors import RESPONSE


@dataclass(frozen=True)
class Shim:
    """The parts of one app, put together by `create_app`."""

    settings: Settings
    metrics: Metrics
    stages: Stages
    monitor: StageMonitor
    open_requests: OpenRequests
    started: int = field(default_factory=lambda: int(time()))

    @cached_property
    def _model_name(self) -> str:
        # The settings look at the model's folder each time.
        return self.settings.model_name

    def check_model(self, name: str | None) -> None:
        """Raises NotFound for another model than the served one. None and "" mean the served one."""
        check_model_name(name, self._model_name)

    @asynccontextmanager
    async def opened(self, request: OpenRequest, receive: Receive) -> AsyncIterator[None]:
        """`OpenRequests.opened`, where all stages that the request needs are up; else StageUnavailable."""
        self.monitor.require(request.stages)
        async with self.open_requests.opened(request, receive):
            yield

    async def call(self, model: str, inputs: Tensors) -> Tensors:
        """One call of a model that answers once, counted and timed."""
        with self.metrics.model_call(model):
            try:
                tensors = await self.stages.call(model, inputs, timeout_s=self.settings.request_timeout_s)
                self.monitor.worked(STAGES_OF[model])
                return tensors
            except DeadStage as error:
                self.monitor.report(error.stage, error)
                raise

    async def stream(self, model: str, inputs: Tensors) -> AsyncGenerator[Tensors, None]:
        """One call of a decoupled model, counted and timed."""
        with self.metrics.model_call(model):
            try:
                stream = self.stages.stream(model, inputs, timeout_s=self.settings.request_timeout_s)
                working = STAGES_OF[model]
                async with aclosing(stream):
                    async for tensors in stream:
                        self.monitor.worked(working)
                        working = STAGES_OF[model] - IN_TURN  # a later chunk says nothing of how these are now
                        yield tensors
            except DeadStage as error:
                self.monitor.report(error.stage, error)
                raise

    async def chat_documents(self, inputs: Tensors) -> AsyncGenerator[bytes, None]:
        """The documents that ensemble `chat` answers with, in order; at least one."""
        empty = True
        stream = self.stream("chat", inputs)
        async with aclosing(stream):
            async for tensors in stream:
                for document in tensors[RESPONSE.name]:
                    empty = False
                    yield document
        if empty:
            raise RendererError("model `chat` ended without an answer")


def shim_of(request: Request) -> Shim:
    """The shim that serves `request`."""
    shim: Any = request.app.state.shim
    if not isinstance(shim, Shim):
        raise TypeError("the app was not started")
    return shim


async def require_scale_out(request: Request) -> None:
    """Dependency of the routes that are switched off by default. Raises Forbidden, saying how to switch them on.

    A coroutine, though it waits for nothing: for a plain function FastAPI would go through a thread with every request.
    """
    if not shim_of(request).settings.scale_out_enabled:
        raise Forbidden(
            "The render, derender and generate routes are switched off. "
            "Start the server with VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1 or --enable-scale-out to have them."
        )
