"""The requests that stages are working on right now, and every way in which one can end before its time.

A request ends early when its client leaves, when a stage that it needs goes down, when it takes too long or when the
server stops. An ensemble does not see that its caller is gone, so that whatever the reason, prefill_decode is told to
abort; an abort of something that is over already does nothing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.types import Receive

from client.shim.metrics import Metrics
from client.shim.triton import Stages, document_tensor
from triton_renderer.errors import Cancelled, QueueFull, RendererError, StageUnavailable
from triton_renderer.protocol.stages import AbortOperation
from triton_renderer.tensors import CHUNK, CONTEXT

logger = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 5.0


class ClientLeft(Cancelled):
    """Nobody is there any more to hear of it."""


@dataclass(eq=False)
class OpenRequest:
    """One client's request. `ids` are those that the stages know it by, one a prompt."""

    ids: Sequence[str]
    external_id: str
    client_id: str
    stages: frozenset[str]
    _task: asyncio.Task[Any] | None = field(default=None, init=False)
    _interruption: RendererError | None = field(default=None, init=False)

    def interrupt(self, error: RendererError) -> None:
        """Ends the request with `error`, wherever it is waiting. The first reason stands."""
        if self._interruption is None and self._task is not None:
            self._interruption = error
            self._task.cancel()


class OpenRequests:
    """All open requests of one app, `limit` at most."""

    def __init__(self, stages: Stages, metrics: Metrics, timeout_s: float, limit: int) -> None:
        self._stages = stages
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._limit = limit
        self._open: set[OpenRequest] = set()
        self._aborts: set[asyncio.Task[None]] = set()
        self._can_abort = True

    @asynccontextmanager
    async def opened(self, request: OpenRequest, receive: Receive) -> AsyncIterator[None]:
        """Inside, `request` is open: the client's connection is watched, and an interruption arrives as its error.

        Whatever ends the block early, the work behind the request is aborted. Raises QueueFull where too many are open.
        """
        if len(self._open) >= self._limit:
            raise QueueFull(f"{len(self._open)} requests are open, this server takes {self._limit}")
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is served by a task")
        request._task = task
        self._open.add(request)
        self._metrics.open_requests.set(len(self._open))
        watcher = asyncio.create_task(_watch_client(request, receive), name=f"client of {request.external_id}")
        too_long = StageUnavailable(f"the request took longer than {self._timeout_s:g} s")
        deadline = asyncio.get_running_loop().call_later(self._timeout_s, request.interrupt, too_long)
        try:
            yield
        except BaseException as error:
            self._abort_behind(request)
            if request._interruption is None or task.uncancel() > 0:
                raise
            raise request._interruption from error
        finally:
            request._task = None
            self._open.discard(request)
            self._metrics.open_requests.set(len(self._open))
            deadline.cancel()
            watcher.cancel()
            await asyncio.wait([watcher])

    def stage_changed(self, stage: str, up: bool) -> None:
        """Listener of the monitor: a stage that went down takes all requests along that need it."""
        if stage == "prefill_decode":
            self._can_abort = up
        if not up:
            for request in self._open:
                if stage in request.stages:
                    request.interrupt(StageUnavailable(f"stage `{stage}` went down"))

    def interrupt_all(self, reason: str) -> None:
        """Ends every request; the server stops."""
        for request in self._open:
            request.interrupt(StageUnavailable(reason))

    async def abort(self, names: Iterable[str]) -> None:
        """Aborts what clients know by `names`: ids that they sent, or ids of our answers. Unknown ones are passed on."""
        wanted = set(names)
        ids = [id for request in self._open if wanted & {request.client_id, request.external_id} for id in request.ids]
        await self._send_abort(ids, remember=True)
        await self._send_abort(sorted(wanted), remember=False)

    async def close(self) -> None:
        """Waits for the aborts that are under way."""
        if self._aborts:
            await asyncio.wait(self._aborts)

    def _abort_behind(self, request: OpenRequest) -> None:
        if "prefill_decode" in request.stages:
            task = asyncio.create_task(self._abort_in_background(request), name=f"abort of {request.external_id}")
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _abort_in_background(self, request: OpenRequest) -> None:
        if not self._can_abort:
            return  # the work died with its process
        try:
            await self._send_abort(request.ids, remember=True)
        except RendererError as error:
            # The id holds what the client sent: quoted, it cannot pass for a line of its own.
            logger.warning("%r could not be aborted: %s", request.external_id, error.message)

    async def _send_abort(self, ids: Sequence[str], *, remember: bool) -> None:
        """`remember`: an id of ours may still be in an earlier stage. A client's id may come again, and then is another."""
        if not ids:
            return
        operation = AbortOperation(request_ids=list(ids), remember=remember).model_dump()
        inputs = {CONTEXT.name: document_tensor(orjson.dumps({"op": "abort", **operation}))}
        stream = self._stages.stream("prefill_decode", inputs, timeout_s=ABORT_TIMEOUT_S, outputs=(CHUNK,))
        async with aclosing(stream):
            async for _ in stream:
                pass


async def _watch_client(request: OpenRequest, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    request.interrupt(ClientLeft("the client left"))
