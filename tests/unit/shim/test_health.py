"""The watch over the stages: what counts as up and as down, and what follows from it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from client.shim.health import DOWN_AFTER_S, StageMonitor, probe
from client.shim.triton import Tensors, Unanswered, document_tensor
from triton_renderer.errors import QueueFull, RendererError, StageUnavailable
from triton_renderer.tensors import STAGES

from .conftest import Running, Start
from .fakes import FakeStages, until


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def watching(stages: FakeStages, **options: Any) -> AsyncIterator[tuple[StageMonitor, list[tuple[str, bool]]]]:
    """A running monitor, and the changes that it told."""
    changes: list[tuple[str, bool]] = []
    monitor = StageMonitor(stages, 600.0, probe_every_s=0.005, **options)
    monitor.on_change(lambda stage, up: changes.append((stage, up)))
    monitor.start()
    try:
        yield monitor, changes
    finally:
        await monitor.stop()


def all_up(monitor: StageMonitor) -> bool:
    return all(monitor.state(stage) == "up" for stage in STAGES)


def hanging(stage: str, until_set: asyncio.Event) -> Callable[[str], Coroutine[Any, Any, None]]:
    async def wait(probed: str) -> None:
        if probed == stage:
            await until_set.wait()

    return wait


async def test_a_stage_is_starting_until_its_first_answer() -> None:
    stages = FakeStages()
    answered = asyncio.Event()
    stages.slow_probe = hanging("encode", answered)
    async with watching(stages) as (monitor, changes):
        await until(lambda: len(changes) == 3)
        assert monitor.state("encode") == "starting"
        with pytest.raises(StageUnavailable, match="stage `encode` is starting"):
            monitor.require(STAGES)
        monitor.require(["render", "derender"])
        answered.set()
        await until(lambda: all_up(monitor))
        monitor.require(STAGES)
        assert monitor.facts("prefill_decode")["max_model_len"] == 512


async def test_a_triton_that_is_not_there_yet_is_waited_for_and_not_reloaded() -> None:
    stages = FakeStages()
    stages.live = False
    stages.dead = {stage: StageUnavailable("no connection") for stage in STAGES}
    async with watching(stages) as (monitor, changes):
        await until(lambda: len(stages.probes) > 12)
        assert {monitor.state(stage) for stage in STAGES} == {"starting"}
        stages.live = True
        stages.dead = {}
        await until(lambda: all_up(monitor))
    assert stages.reloads == []
    assert sorted(changes) == sorted((stage, True) for stage in STAGES)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [StageUnavailable("gone"), RendererError("its process failed")])
async def test_a_failed_probe_is_down_at_once_then_reloaded_then_up(stage: str, error: RendererError) -> None:
    stages = FakeStages()
    async with watching(stages) as (monitor, changes):
        await until(lambda: all_up(monitor))
        changes.clear()
        stages.dead[stage] = error
        await until(lambda: len(changes) == 2)
        assert changes == [(stage, False), (stage, True)]
        assert stages.reloads == [stage]
        monitor.require(STAGES)


async def test_while_down_the_stage_is_named_and_reloaded_again_and_again() -> None:
    stages = FakeStages()
    async with watching(stages) as (monitor, _):
        await until(lambda: all_up(monitor))
        stages.reload_repairs = False
        stages.dead["encode"] = StageUnavailable("gone")
        await until(lambda: len(stages.reloads) == 3)
        with pytest.raises(StageUnavailable, match=r"^stage `encode` is down and being restarted$"):
            monitor.require(STAGES)
        assert [monitor.state(stage) for stage in STAGES] == ["up", "down", "up", "up"]


async def test_a_reload_that_fails_is_tried_again() -> None:
    stages = FakeStages()
    tries = 0
    reload = stages.reload

    async def failing_first(stage: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RendererError("cannot load")
        await reload(stage)

    stages.reload = failing_first
    async with watching(stages) as (monitor, _):
        await until(lambda: all_up(monitor))
        stages.dead["derender"] = StageUnavailable("gone")
        await until(lambda: tries == 3 and all_up(monitor))


async def test_a_triton_that_went_away_is_waited_for_and_not_reloaded() -> None:
    stages = FakeStages()
    async with watching(stages) as (monitor, _):
        await until(lambda: all_up(monitor))
        stages.live = False
        stages.dead = {stage: StageUnavailable("no connection") for stage in STAGES}
        await until(lambda: {monitor.state(stage) for stage in STAGES} == {"down"})
        stages.live = True
        stages.dead = {}
        await until(lambda: all_up(monitor))
    assert len(stages.reloads) <= len(STAGES)  # one may fall between the two halves of the return


async def test_a_busy_stage_is_still_healthy() -> None:
    stages, clock, answered = FakeStages(), Clock(), asyncio.Event()
    async with watching(stages, clock=clock) as (monitor, changes):
        await until(lambda: all_up(monitor))
        stages.slow_probe = hanging("render", answered)
        probes = len(stages.probes)
        await until(lambda: "render" in stages.probes[probes:])
        clock.now += 29
        assert monitor.state("render") == "up"
        monitor.require(STAGES)
        answered.set()
        await until(lambda: all_up(monitor))
        assert ("render", False) not in changes


async def test_stages_that_answer_in_turn_get_the_time_of_a_request_and_the_others_less() -> None:
    given: dict[str, float] = {}

    class Recording(FakeStages):
        async def call(self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Any = None) -> Tensors:
            given[model] = timeout_s
            return await super().call(model, inputs, timeout_s=timeout_s, outputs=outputs)

        async def stream(self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Any = None) -> Any:
            given[model] = timeout_s
            async for tensors in super().stream(model, inputs, timeout_s=timeout_s, outputs=outputs):
                yield tensors

    async with watching(Recording()) as (monitor, _):
        await until(lambda: all_up(monitor))
    assert given == {"render": 600.0, "encode": 600.0, "prefill_decode": DOWN_AFTER_S, "derender": DOWN_AFTER_S}


@pytest.mark.parametrize("stage", STAGES)
async def test_a_stage_that_lets_its_time_run_out_is_down(stage: str) -> None:
    stages = FakeStages()
    async with watching(stages) as (monitor, changes):
        await until(lambda: all_up(monitor))
        changes.clear()
        stages.dead[stage] = Unanswered("no answer in time")
        await until(lambda: changes == [(stage, False), (stage, True)])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("moves", [True, False])
async def test_a_probe_that_waited_in_a_queue_that_moves_is_sent_again(stage: str, moves: bool) -> None:
    stages, clock, ran_out = FakeStages(), Clock(), asyncio.Event()

    async def run_out(probed: str) -> None:
        if probed == stage and not ran_out.is_set():
            await ran_out.wait()
            raise Unanswered("no answer in time")

    async with watching(stages, clock=clock) as (monitor, changes):
        await until(lambda: all_up(monitor))
        monitor.worked([stage])
        changes.clear()
        clock.now += 1
        stages.slow_probe = run_out
        probes = len(stages.probes)
        await until(lambda: stage in stages.probes[probes:])
        clock.now += 1
        if moves:
            monitor.worked([stage])
        ran_out.set()
        probes = len(stages.probes)
        await until(lambda: stages.probes[probes:].count(stage) == 2)
        assert changes == ([] if moves else [(stage, False), (stage, True)])


async def test_a_full_queue_is_busy_and_not_down() -> None:
    stages = FakeStages()
    async with watching(stages) as (monitor, changes):
        await until(lambda: all_up(monitor))
        changes.clear()
        probes = len(stages.probes)
        stages.dead["prefill_decode"] = QueueFull("1024 requests are waiting")
        await until(lambda: stages.probes[probes:].count("prefill_decode") > 3)
        assert all_up(monitor)
        assert changes == []


async def test_a_reported_death_is_acted_on_without_a_probe() -> None:
    stages, answered = FakeStages(), asyncio.Event()
    async with watching(stages) as (monitor, changes):
        await until(lambda: all_up(monitor))
        changes.clear()
        stages.slow_probe = hanging("encode", answered)  # the probe waits behind requests that fail one by one
        probes = len(stages.probes)
        await until(lambda: "encode" in stages.probes[probes:])
        for _ in range(3):
            monitor.report("encode", StageUnavailable("gone"))
        answered.set()
        await until(lambda: changes == [("encode", False), ("encode", True)])
        assert stages.reloads == ["encode"]


async def test_the_watch_outlives_what_nobody_expected(caplog: pytest.LogCaptureFixture) -> None:
    stages = FakeStages()
    failures = iter([ValueError("surprise")])

    async def surprise(stage: str) -> None:
        if stage == "render" and (failure := next(failures, None)):
            raise failure

    stages.slow_probe = surprise
    with caplog.at_level(logging.ERROR):
        async with watching(stages) as (monitor, _):
            await until(lambda: all_up(monitor))
    assert any("stumbled" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("answer", [b'{"ok": false}', b"{}", b"[]", b"no json", None])
async def test_an_answer_other_than_ok_is_a_failure(stage: str, answer: bytes | None) -> None:
    class Strange(FakeStages):
        async def call(self, model: str, inputs: Tensors, **options: Any) -> Tensors:
            return self._strange(options["outputs"][0].name)

        async def stream(self, model: str, inputs: Tensors, **options: Any) -> Any:
            if answer is not None:
                yield self._strange(options["outputs"][0].name)

        def _strange(self, name: str) -> Tensors:
            return {name: np.empty(0, np.object_) if answer is None else document_tensor(answer)}

    with pytest.raises(RendererError, match=f"stage `{stage}`"):
        await probe(Strange(), stage, 1.0)


async def test_the_health_route_is_200_while_all_stages_are_up_and_else_names_them(start: Start) -> None:
    async with start() as running:
        response = await running.http.get("/health")
        assert (response.status_code, response.json()) == (200, {})
        assert running.count("stage_up", stage="encode") == 1
        running.stages.reload_repairs = False
        running.stages.dead["encode"] = StageUnavailable("gone")
        running.stages.dead["derender"] = StageUnavailable("gone")
        await until(lambda: {running.shim.monitor.state(stage) for stage in ("encode", "derender")} == {"down"})
        response = await running.http.get("/health")
        assert response.status_code == 503
        assert response.json()["error"]["message"] == (
            "stage `encode` is down and being restarted; stage `derender` is down and being restarted"
        )
        assert response.headers["retry-after"] == "1"
        assert running.count("stage_up", stage="encode") == 0


async def test_the_health_route_answers_at_once_while_probes_hang(start: Start) -> None:
    stages = FakeStages()
    never = asyncio.Event()

    async def hang(stage: str) -> None:
        await never.wait()

    stages.slow_probe = hang
    async with start(stages=stages, wait=False) as running:
        async with asyncio.timeout(0.5):
            response = await running.http.get("/health")
        assert response.status_code == 503
        assert "stage `render` is starting" in response.json()["error"]["message"]


async def test_requests_that_get_through_are_signs_of_life(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    signs: set[str] = set()
    body = {"messages": [{"role": "user", "content": "hi"}], "token_ids": [1], "sampling_params": {}}
    async with start() as running:
        monkeypatch.setattr(running.shim.monitor, "worked", signs.update)
        for path, stages in (
            ("/v1/chat/completions/render", {"render"}),
            ("/inference/v1/generate", {"encode", "prefill_decode"}),
            ("/v1/chat/completions", set(STAGES)),
        ):
            signs.clear()
            assert (await running.http.post(path, json=body)).status_code == 200
            assert signs == stages


@pytest.mark.parametrize(
    ("path", "once", "always"),
    [
        ("/v1/chat/completions", {"render", "encode"}, {"prefill_decode", "derender"}),
        ("/inference/v1/generate", {"encode"}, {"prefill_decode"}),
    ],
)
async def test_a_stream_shows_of_render_and_encode_only_that_they_have_worked_once(
    running: Running, path: str, once: set[str], always: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    signs: list[set[str]] = []
    monkeypatch.setattr(running.shim.monitor, "worked", lambda stages: signs.append(set(stages)))
    body = {"messages": [{"role": "user", "content": "a b"}], "token_ids": [1, 2, 3], "sampling_params": {}, "stream": True}
    assert (await running.http.post(path, json=body)).status_code == 200
    assert signs == [once | always, always, always]
