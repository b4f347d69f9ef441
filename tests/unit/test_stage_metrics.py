from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tests.unit import fake_pb_utils as pb
from triton_renderer import stage_metrics
from triton_renderer.encode.cache import EncoderCache
from triton_renderer.encode.metrics import cache_registry
from triton_renderer.stage_metrics import TritonMetrics


@pytest.fixture(autouse=True)
def shown() -> Iterator[dict[object, float]]:
    pb.MetricFamily.shown.clear()
    yield pb.MetricFamily.shown
    pb.MetricFamily.shown.clear()


def test_every_sample_is_shown_and_kept_up_to_date(shown: dict[object, float]) -> None:
    registry = CollectorRegistry()
    counter = Counter("ends", "Ends", ["how"], registry=registry)
    gauge = Gauge("places", "Places", registry=registry)
    histogram = Histogram("wait_seconds", "Waits", registry=registry, buckets=(1, 2))
    metrics = TritonMetrics(pb, registry)
    counter.labels("well").inc(3)
    gauge.set(7)
    metrics.publish()
    counter.labels("well").inc()
    counter.labels("badly").inc()
    gauge.set(2)
    histogram.observe(1.5)
    metrics.publish()
    assert shown == {
        ("ends_total", (("how", "well"),)): 4,
        ("ends_total", (("how", "badly"),)): 1,
        ("places", ()): 2,
        ("wait_seconds_bucket", (("le", "1.0"),)): 0,
        ("wait_seconds_bucket", (("le", "2.0"),)): 1,
        ("wait_seconds_bucket", (("le", "+Inf"),)): 1,
        ("wait_seconds_count", ()): 1,
        ("wait_seconds_sum", ()): 1.5,
    }


def test_publishes_by_itself_and_a_last_time_at_the_end(shown: dict[object, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_metrics, "INTERVAL_S", 60)
    registry = CollectorRegistry()
    counter = Counter("ends", "Ends", registry=registry)
    metrics = TritonMetrics(pb, registry)
    metrics.start()
    assert shown == {("ends_total", ()): 0}
    counter.inc()
    metrics.close()
    assert shown == {("ends_total", ()): 1}


def test_the_encoder_cache_shows_its_counts(shown: dict[object, float]) -> None:
    cache = EncoderCache(1000)
    cache.get("a")
    TritonMetrics(pb, cache_registry(cache)).publish()
    assert shown[("triton_renderer_encoder_cache_misses_total", ())] == 1
    assert shown[("triton_renderer_encoder_cache_hits_total", ())] == 0


def test_a_gauge_is_set_at_once_for_triton_may_show_that_of_a_killed_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    Gauge("places", "Places", registry=registry)
    calls: list[float] = []
    monkeypatch.setattr(pb._Metric, "set", lambda metric, value: calls.append(value))
    metrics = TritonMetrics(pb, registry)
    metrics.publish()
    metrics.publish()
    assert calls == [0]
