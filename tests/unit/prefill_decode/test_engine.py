"""Every request ends exactly once, whatever happens to it."""

import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from tests.unit.prefill_decode.fakes import CountingRunner, NotingSink, make_request, make_scheduler
from triton_renderer.errors import Cancelled, InvalidRequest, QueueFull, RendererError, StageUnavailable
from triton_renderer.prefill_decode import engine as engine_module
from triton_renderer.prefill_decode.engine import Engine


@pytest.fixture
def runner() -> CountingRunner:
    return CountingRunner()


@pytest.fixture
def engine(runner: CountingRunner) -> Iterator[Engine]:
    engine = Engine(runner, make_scheduler())  # type: ignore[arg-type]
    engine.start()
    yield engine
    engine.close()
    assert not engine.is_alive
    assert_empty(engine)


def assert_empty(engine: Engine) -> None:
    """Nobody has a place or a block."""
    pool = engine._scheduler.pool
    wait_until(lambda: pool.num_unused == pool.num_usable)
    engine._scheduler.check_integrity()
    assert engine.load == {"running": 0, "waiting": 0}


def wait_until(condition: object, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def test_streamed_request_gets_a_chunk_a_token_and_one_final(engine: Engine, runner: CountingRunner) -> None:
    runner.step_s = 0.005
    sink = NotingSink()
    engine.add(make_request(sink, [7], max_tokens=4))
    sink.wait()
    assert sink.token_ids == [8, 9, 10, 11]
    assert [chunk.number for chunk in sink.chunks] == [0, 1, 2, 3]
    assert [chunk.final for chunk in sink.chunks] == [False, False, False, True]
    assert sink.finish_reasons == ["length"]
    assert sink.chunks[-1].completion_tokens == 4


def test_tokens_that_come_faster_than_chunks_can_go_share_one(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_CHUNKS_PER_S", 20)
    sinks = [NotingSink() for _ in range(3)]
    for index, sink in enumerate(sinks):
        engine.add(make_request(sink, [index], max_tokens=200, request_id=str(index)))
    for index, sink in enumerate(sinks):
        assert sink.wait().token_ids == [(index + 1 + i) % 40 for i in range(200)]
        assert [chunk.number for chunk in sink.chunks] == list(range(len(sink.chunks)))
        assert sink.chunks[0].choices[0].num_tokens == 1
        assert len(sink.chunks) < 20


def test_plain_request_gets_one_chunk_with_everything(engine: Engine) -> None:
    sink = NotingSink()
    engine.add(make_request(sink, [7], max_tokens=4, stream=False, n=3))
    sink.wait()
    (chunk,) = sink.chunks
    assert [choice.num_tokens for choice in chunk.choices] == [4, 4, 4]
    assert sink.token_ids == [8, 9, 10, 11] * 3


def test_streamed_choices_report_their_finish_once(engine: Engine) -> None:
    sink = NotingSink()
    engine.add(make_request(sink, [7], max_tokens=3, n=2))
    sink.wait()
    assert sorted(choice.index for chunk in sink.chunks for choice in chunk.choices if choice.finish_reason) == [0, 1]
    assert sink.num_ends == 1


def test_requests_decode_as_one_batch_and_join_while_others_run(engine: Engine, runner: CountingRunner) -> None:
    runner.step_s = 0.005
    first, second = NotingSink(), NotingSink()
    engine.add(make_request(first, [1], max_tokens=30, request_id="a"))
    wait_until(lambda: len(first.token_ids) > 3)
    engine.add(make_request(second, [20], max_tokens=5, request_id="b"))
    second.wait()
    assert not first.finish_reasons
    assert second.token_ids == [21, 22, 23, 24, 25]
    assert first.wait().token_ids == [(2 + i) % 40 for i in range(30)]
    assert max(runner.batch_sizes) == 2


def test_more_requests_than_places_all_end(engine: Engine) -> None:
    sinks = [NotingSink() for _ in range(20)]
    for index, sink in enumerate(sinks):
        engine.add(make_request(sink, [index], max_tokens=1 + index % 7, request_id=str(index), stream=index % 2 == 0))
    for index, sink in enumerate(sinks):
        assert sink.wait().token_ids == [(index + 1 + step) % 40 for step in range(1 + index % 7)]
        assert sink.num_ends == 1


def test_exception_in_prefill_fails_that_request_only(engine: Engine, runner: CountingRunner) -> None:
    bad, good = NotingSink(), NotingSink()
    runner.fail_prefill = RuntimeError("secret detail")
    engine.add(make_request(bad))
    assert type(bad.wait().error) is RendererError
    assert "secret" not in str(bad.error)
    runner.fail_prefill = None
    engine.add(make_request(good))
    assert good.wait().error is None


def test_client_error_in_prefill_keeps_its_class(engine: Engine, runner: CountingRunner) -> None:
    sink = NotingSink()
    runner.fail_prefill = InvalidRequest("does not fit", "features")
    engine.add(make_request(sink))
    assert isinstance(sink.wait().error, InvalidRequest)


def test_exception_in_decode_fails_the_running_requests_and_the_engine_goes_on(engine: Engine, runner: CountingRunner) -> None:
    runner.step_s = 0.005
    running, later = NotingSink(), NotingSink()
    engine.add(make_request(running, max_tokens=1000))
    wait_until(lambda: running.token_ids)
    runner.fail_decode = RuntimeError("broken")
    assert type(running.wait().error) is RendererError
    runner.fail_decode = None
    engine.add(make_request(later))
    assert later.wait().error is None
    assert (running.num_ends, later.num_ends) == (1, 1)


@pytest.mark.parametrize("at", [5, 9])
def test_output_that_is_not_finite_fails_that_request_alone(engine: Engine, runner: CountingRunner, at: int) -> None:
    runner.step_s = 0.002
    runner.nan_for = at
    bad, good = NotingSink(), NotingSink()
    engine.add(make_request(good, [20], max_tokens=15, request_id="good"))
    engine.add(make_request(bad, [5], max_tokens=30, request_id="bad"))
    assert type(bad.wait().error) is RendererError
    assert good.wait().token_ids == list(range(21, 36))
    assert good.error is None


def test_request_that_makes_a_step_fail_fails_alone(engine: Engine, runner: CountingRunner) -> None:
    runner.step_s = 0.005
    running, bad = [NotingSink() for _ in range(3)], NotingSink()
    for index, sink in enumerate(running):
        engine.add(make_request(sink, [index], max_tokens=60, request_id=str(index)))
    wait_until(lambda: all(sink.token_ids for sink in running))
    runner.fail_prefill = RuntimeError("the device is out of memory")
    engine.add(make_request(bad))
    assert type(bad.wait().error) is RendererError
    runner.fail_prefill = None
    for index, sink in enumerate(running):
        assert sink.wait().token_ids == [(index + 1 + i) % 40 for i in range(60)]


def test_books_that_are_wrong_fail_all_that_run_and_the_engine_goes_on(
    engine: Engine, runner: CountingRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.step_s = 0.005
    running, waiting = [NotingSink() for _ in range(4)], NotingSink()
    for index, sink in enumerate(running):
        engine.add(make_request(sink, max_tokens=1000, request_id=str(index)))
    wait_until(lambda: all(sink.token_ids for sink in running))
    with monkeypatch.context() as patch:
        patch.setattr(engine._scheduler, "computed", Mock(side_effect=KeyError("a block")))
        running[0].wait()
    engine.add(make_request(waiting))
    for sink in running:
        assert type(sink.wait().error) is RendererError
    assert waiting.wait().error is None
    assert [sink.num_ends for sink in running] == [1] * 4


def test_what_a_request_that_went_wrong_left_in_the_cache_is_erased_and_not_found(
    engine: Engine, runner: CountingRunner
) -> None:
    runner.nan_for = 7
    prompt = [1] * 40 + [7]
    engine.add(make_request(bad := NotingSink(), prompt))
    assert bad.wait().error is not None
    assert len(runner.erased) == 3
    assert engine._scheduler.pool.num_cached == 0


def test_full_cache_pushes_the_last_one_out_and_loses_nothing(runner: CountingRunner) -> None:
    """8 blocks for 3 sequences that grow to 6 each."""
    engine = Engine(runner, make_scheduler(num_blocks=9))  # type: ignore[arg-type]
    engine.start()
    sinks = [NotingSink() for _ in range(3)]
    for index, sink in enumerate(sinks):
        engine.add(make_request(sink, [10 * index], max_tokens=90, request_id=str(index), stream=index != 1))
    for index, sink in enumerate(sinks):
        assert sink.wait().token_ids == [(10 * index + 1 + i) % 40 for i in range(90)]
    assert engine._scheduler.num_preemptions > 0
    engine.close()
    assert_empty(engine)


@pytest.mark.parametrize("name", ["internal", "client's"])
def test_abort_finishes_with_abort_within_a_step(engine: Engine, runner: CountingRunner, name: str) -> None:
    runner.step_s = 0.005
    sink = NotingSink()
    engine.add(make_request(sink, max_tokens=1000, request_id="internal", external_id="client's"))
    wait_until(lambda: len(sink.token_ids) >= 5)
    before = len(sink.token_ids)
    for _ in range(3):
        engine.abort([name])
    sink.wait()
    assert sink.finish_reasons == ["abort"]
    assert len(sink.token_ids) <= before + 3
    assert_empty(engine)
    assert sink.num_ends == 1


def test_abort_of_a_plain_request_delivers_what_there_is(engine: Engine, runner: CountingRunner) -> None:
    runner.step_s = 0.005
    sink = NotingSink()
    engine.add(make_request(sink, max_tokens=1000, stream=False))
    wait_until(lambda: len(runner.batch_sizes) > 5)
    engine.abort(["r"])
    assert len(sink.wait().token_ids) > 5
    assert sink.finish_reasons == ["abort"]


def test_remembered_abort_ends_a_request_that_comes_later(engine: Engine, runner: CountingRunner) -> None:
    engine.abort(["late"], remember=True)
    sink = NotingSink()
    engine.add(make_request(sink, request_id="late"))
    assert sink.wait().finish_reasons == ["abort"]
    assert not runner.batch_sizes


def test_forgotten_abort_of_a_clients_id_does_not_hit_its_next_use(engine: Engine) -> None:
    engine.abort(["again"])
    sink = NotingSink()
    engine.add(make_request(sink, external_id="again"))
    assert sink.wait().finish_reasons == ["length"]


def test_abort_after_the_end_is_nothing(engine: Engine) -> None:
    sink = NotingSink()
    engine.add(make_request(sink))
    sink.wait()
    engine.abort(["r"])
    engine.abort(["r"])
    time.sleep(0.05)
    assert sink.num_ends == 1


def test_cancelled_client_ends_its_request(engine: Engine, runner: CountingRunner) -> None:
    runner.step_s = 0.005
    sink = NotingSink()
    engine.add(make_request(sink, max_tokens=10_000))
    wait_until(lambda: sink.token_ids)
    sink.cancelled = True
    assert isinstance(sink.wait().error, Cancelled)
    assert_empty(engine)


def test_close_fails_running_waiting_and_later_requests(engine: Engine, runner: CountingRunner) -> None:
    runner.step_s = 0.005
    sinks = [NotingSink() for _ in range(10)]
    for index, sink in enumerate(sinks):
        engine.add(make_request(sink, max_tokens=10_000, request_id=str(index)))
    wait_until(lambda: sinks[0].token_ids)
    engine.close()
    late = NotingSink()
    engine.add(make_request(late))
    for sink in [*sinks, late]:
        assert isinstance(sink.wait().error, StageUnavailable)
        assert sink.num_ends == 1


def test_idle_engine_keeps_its_heartbeat(engine: Engine) -> None:
    engine.heartbeat = 0.0
    wait_until(lambda: time.monotonic() - engine.heartbeat < 2.0)


def test_full_queue_is_refused() -> None:
    runner = CountingRunner()
    runner.step_s = 0.01
    engine = Engine(runner, make_scheduler(max_running=1, max_waiting=2))  # type: ignore[arg-type]
    engine.start()
    sinks = [NotingSink() for _ in range(6)]
    for index, sink in enumerate(sinks):
        engine.add(make_request(sink, max_tokens=50, request_id=str(index)))
        time.sleep(0.03)
    refused = [sink for sink in sinks if isinstance(sink.error, QueueFull)]
    engine.close()
    assert len(refused) >= 3
    assert all(sink.wait().num_ends == 1 for sink in sinks)


def test_more_choices_than_places_take_turns(engine: Engine, runner: CountingRunner) -> None:
    sink = NotingSink()
    engine.add(make_request(sink, [7], n=9, max_tokens=3, stream=False))
    assert sink.wait().token_ids == [8, 9, 10] * 9
    assert max(map(len, runner.steps)) <= 4


def test_sinks_of_many_threads_each_end_once(engine: Engine) -> None:
    sinks = [NotingSink() for _ in range(40)]

    def client(index: int) -> None:
        engine.add(make_request(sinks[index], max_tokens=20, request_id=str(index)))
        if index % 3 == 0:
            engine.abort([str(index)], remember=True)

    threads = [threading.Thread(target=client, args=(index,)) for index in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sink.wait().num_ends for sink in sinks] == [1] * 40


def test_request_that_waits_too_long_for_a_place_is_told(runner: CountingRunner) -> None:
    engine = Engine(runner, make_scheduler(max_running=1), queue_timeout_s=0.05)  # type: ignore[arg-type]
    engine.start()
    runner.step_s = 0.01
    first, second = NotingSink(), NotingSink()
    engine.add(make_request(first, max_tokens=40))
    wait_until(lambda: first.token_ids)
    engine.add(make_request(second))
    assert isinstance(second.wait().error, QueueFull)
    assert first.wait().error is None
    engine.close()


def test_metrics_count_what_happened(engine: Engine, runner: CountingRunner) -> None:
    prompt = list(range(40))
    for _ in range(2):
        engine.add(make_request(sink := NotingSink(), prompt, n=2, max_tokens=6))
        sink.wait()
    runner.fail_prefill = RuntimeError("broken")
    engine.add(make_request(bad := NotingSink()))
    bad.wait()

    def value(name: str, **labels: str) -> float | None:
        return engine.metrics.registry.get_sample_value(f"triton_renderer_{name}", labels)

    assert value("prompt_tokens_total") == 2 * 40
    assert value("generated_tokens_total") == 2 * 2 * 6
    assert value("time_to_first_token_seconds_count") == 2 * 2
    assert value("inter_token_latency_seconds_count") == 2 * 2 * 5
    assert value("prefix_cache_hit_tokens_total") == 3 * 32
    assert value("choices_finished_total", reason="length") == 4
    assert value("engine_requests_failed_total", status="500") == 1
    assert value("running_sequences") == value("waiting_requests") == value("kv_cache_used_ratio") == 0
    assert value("kv_cache_cached_blocks") == 2


def test_request_whose_answer_cannot_be_sent_ends_and_the_others_go_on(engine: Engine, runner: CountingRunner) -> None:
    runner.step_s = 0.005
    broken, other = NotingSink(), NotingSink()
    broken.send = Mock(side_effect=ValueError("no such thing"))  # type: ignore[method-assign]
    engine.add(make_request(broken, max_tokens=5, stream=False, request_id="broken"))
    engine.add(make_request(other, [3], max_tokens=20))
    assert type(broken.wait().error) is RendererError
    assert other.wait().token_ids == [4 + i for i in range(20)]


def test_client_that_cannot_be_asked_whether_it_is_there_keeps_its_request(engine: Engine, runner: CountingRunner) -> None:
    runner.step_s = 0.01
    sink = NotingSink()
    sink.is_cancelled = Mock(side_effect=RuntimeError("gone"))  # type: ignore[method-assign]
    engine.add(make_request(sink, max_tokens=10))
    assert sink.wait().finish_reasons == ["length"]
