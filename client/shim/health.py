"""Whether each stage can work, and the repair of one that cannot.

Triton calls a model ready whose process is dead, and leaves the open streams of that model waiting for ever. So the
shim asks the stages themselves: each gets a small probe every second, and answers it as it answers a request.

    starting   has not answered yet                    no requests are taken
    up         the newest probe was answered, or waits behind work: a large picture takes its time
    down       a probe failed, or waited too long      its open requests fail at once, no new ones are taken;
                                                       the stage is reloaded until it answers again

A dead process shows within two seconds, since Triton fails what is sent to it. Too long is therefore said of a process
that hangs. `prefill_decode` and `derender` answer beside their work; `render` and `encode` take one request after the
other, so that a probe waits as long as the requests before it take, and each of these may take as long as any request.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Literal

import orjson

from client.shim.triton import Stages, Unanswered, document_tensor
from triton_renderer.errors import QueueFull, RendererError, StageUnavailable
from triton_renderer.tensors import CHUNK, CONTEXT, ENCODED, MODELS, REQUEST, RESPONSE, STAGES, TensorSpec

logger = logging.getLogger(__name__)

State = Literal["starting", "up", "down"]

PROBE = orjson.dumps({"op": "probe"})
PROBE_TENSORS: dict[str, tuple[TensorSpec, TensorSpec]] = {
    "render": (REQUEST, CONTEXT),
    "encode": (CONTEXT, ENCODED),
    "prefill_decode": (CONTEXT, CHUNK),
    "derender": (CHUNK, RESPONSE),
}
"""The control tensor that carries the probe to a stage, and the one that carries its answer."""

PROBE_EVERY_S = 1.0
DOWN_AFTER_S = 60.0
LONGEST_RETRY_S = 30.0

IN_TURN = frozenset({"render", "encode"})
"""Stages that take one request after the other: they answer a probe in its turn, and see nothing of a request any more when
its first chunk has come."""


async def probe(stages: Stages, stage: str, timeout_s: float) -> dict[str, Any]:
    """What `stage` says of itself; `ok` is true in it. Raises RendererError where it says anything else, or nothing."""
    question, answer = PROBE_TENSORS[stage]
    inputs = {question.name: document_tensor(PROBE)}
    if MODELS[stage].decoupled:
        stream = stages.stream(stage, inputs, timeout_s=timeout_s, outputs=(answer,))
        async with aclosing(stream):
            replies = [tensors async for tensors in stream]
    else:
        replies = [await stages.call(stage, inputs, timeout_s=timeout_s, outputs=(answer,))]
    if len(replies) != 1 or replies[0][answer.name].size != 1:
        raise RendererError(f"stage `{stage}` did not answer its probe with one document")
    try:
        document = orjson.loads(replies[0][answer.name][0])
    except orjson.JSONDecodeError as error:
        raise RendererError(f"stage `{stage}` answered its probe with no JSON") from error
    if not isinstance(document, dict) or document.get("ok") is not True:
        raise RendererError(f"stage `{stage}` answered its probe, but not with ok")
    return document


@dataclass
class _Watched:
    """One stage as the monitor sees it."""

    state: State = "starting"
    worked_at: float = -inf
    facts: dict[str, Any] | None = None
    task: asyncio.Task[None] | None = None


class StageMonitor:
    """Watches the stages with these `names` from `start` to `stop`. All questions are answered at once, from what is known."""

    def __init__(
        self,
        stages: Stages,
        longest_request_s: float,
        *,
        names: Sequence[str] = STAGES,
        probe_every_s: float = PROBE_EVERY_S,
        down_after_s: float = DOWN_AFTER_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._stages = stages
        self._longest_request_s = longest_request_s
        self._probe_every_s = probe_every_s
        self._down_after_s = down_after_s
        self._clock = clock
        self._watched = {stage: _Watched() for stage in names}
        self._listeners: list[Callable[[str, bool], None]] = []
        self._one_reload_at_a_time = asyncio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The stages that are watched."""
        return tuple(self._watched)

    def on_change(self, listener: Callable[[str, bool], None]) -> None:
        """`listener(stage, up)` is called whenever a stage comes up or goes down."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begins to watch; needs a running event loop."""
        for stage in self.names:
            self._watch_anew(stage, None)

    async def stop(self) -> None:
        """Ends the watch; stages are left as they are."""
        tasks = [watched.task for watched in self._watched.values() if watched.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def state(self, stage: str) -> State:
        """The state of one stage, in the sense of this module's docstring."""
        return self._watched[stage].state

    def facts(self, stage: str) -> dict[str, Any]:
        """What the stage's newest answer says of it; empty before the first one."""
        return self._watched[stage].facts or {}

    def require(self, stages: Iterable[str]) -> None:
        """Raises StageUnavailable, naming them, where some of `stages` cannot take requests."""
        problems = [
            f"stage `{stage}` is {'down and being restarted' if state == 'down' else 'starting'}"
            for stage in self.names
            if stage in set(stages) and (state := self._watched[stage].state) != "up"
        ]
        if problems:
            raise StageUnavailable("; ".join(problems))

    def report(self, stage: str, error: RendererError) -> None:
        """A request met the death of `stage`: nobody has to wait for the next probe to find it as well."""
        if self._watched[stage].state == "up":
            self._watch_anew(stage, error)

    def worked(self, stages: Iterable[str]) -> None:
        """A request got through `stages`: if a probe waits there, it waits in a queue that moves."""
        for stage in stages:
            self._watched[stage].worked_at = self._clock()

    def _watch_anew(self, stage: str, error: RendererError | None) -> None:
        watched = self._watched[stage]
        if watched.task:
            watched.task.cancel()
        watched.task = asyncio.create_task(self._watch(stage, error), name=f"watch {stage}")

    async def _watch(self, stage: str, error: RendererError | None) -> None:
        while True:
            try:
                error = error or await self._probe(stage)
                if error:
                    await self._repair(stage, error)
            except Exception:  # whatever it was, the watch must outlive it
                logger.exception("the watch over stage `%s` stumbled", stage)
            error = None
            await asyncio.sleep(self._probe_every_s)

    async def _probe(self, stage: str) -> RendererError | None:
        """Probes once. None where the stage is well."""
        watched = self._watched[stage]
        since = self._clock()
        try:
            watched.facts = await probe(
                self._stages, stage, self._longest_request_s if stage in IN_TURN else self._down_after_s
            )
        except QueueFull:
            return None  # its queue is full of work: busy, not broken
        except Unanswered as error:
            return None if watched.worked_at > since else error
        except RendererError as error:
            return error
        if watched.state != "up":
            watched.state = "up"
            logger.info("stage `%s` is up", stage)
            self._tell(stage, True)
        return None

    async def _repair(self, stage: str, error: RendererError) -> None:
        """Marks `stage` down and reloads it until it answers."""
        watched = self._watched[stage]
        if watched.state == "starting" and not await self._stages.is_live():
            return  # Triton itself is still on its way
        watched.state = "down"
        logger.error("stage `%s` is down: %s", stage, error.message)
        self._tell(stage, False)
        retry_s = self._probe_every_s
        while True:
            if await self._stages.is_live():  # a Triton that comes back brings its stages along
                try:
                    async with self._one_reload_at_a_time:
                        await self._stages.reload(stage)
                except RendererError as failure:
                    logger.error("stage `%s` cannot be reloaded: %s", stage, failure.message)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
            if await self._probe(stage) is None and self.state(stage) != "down":
                return
            await asyncio.sleep(retry_s)

    def _tell(self, stage: str, up: bool) -> None:
        for listener in self._listeners:
            listener(stage, up)
