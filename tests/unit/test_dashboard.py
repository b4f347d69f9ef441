"""The dashboard asks for metrics that exist, with labels that they have."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from client.shim.metrics import Metrics
from triton_renderer.encode.cache import EncoderCache
from triton_renderer.encode.metrics import cache_registry
from triton_renderer.prefill_decode.metrics import EngineMetrics
from triton_renderer.settings import load_settings

PANELS = json.loads((Path(__file__).parents[2] / "docs" / "grafana-dashboard.json").read_text())["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
GAUGES_OF_THE_ENGINE = {"running_sequences", "waiting_requests", "kv_cache_used_ratio", "kv_cache_cached_blocks"}


def names(registry: CollectorRegistry) -> set[str]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {metric.name + suffix for metric in registry.collect() for suffix in suffixes.get(metric.type, ("",))}


@pytest.fixture(scope="module")
def known() -> set[str]:
    engine = EngineMetrics()
    for name in GAUGES_OF_THE_ENGINE:
        engine.watch(name, name, lambda: 0)
    return names(engine.registry) | names(cache_registry(EncoderCache(0))) | names(Metrics(load_settings()).registry)


@pytest.mark.parametrize("query", QUERIES)
def test_metric_of_a_query_exists(query: str, known: set[str]) -> None:
    asked = set(re.findall(r"triton_renderer_\w+", query))
    assert asked
    assert asked <= known


def test_panels_do_not_overlap() -> None:
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS}
    assert len(places) == len(PANELS) == len({panel["id"] for panel in PANELS})
