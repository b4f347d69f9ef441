"""What the encoder cache counts, for prometheus_client."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from triton_renderer.encode.cache import EncoderCache


class CacheCollector(Collector):
    """Reads the cache's own counts whenever they are asked for."""

    def __init__(self, cache: EncoderCache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        """Hits, misses and size."""
        cache = self._cache
        yield CounterMetricFamily("triton_renderer_encoder_cache_hits", "Items whose rows were known", value=cache.hits)
        yield CounterMetricFamily("triton_renderer_encoder_cache_misses", "Items that the tower encoded", value=cache.misses)
        yield GaugeMetricFamily(
            "triton_renderer_encoder_cache_bytes", "Memory of the rows that are kept", value=cache.num_bytes
        )
        yield GaugeMetricFamily("triton_renderer_encoder_cache_items", "Items whose rows are kept", value=len(cache))


def cache_registry(cache: EncoderCache) -> CollectorRegistry:
    """A registry that shows `cache`."""
    registry = CollectorRegistry()
    registry.register(CacheCollector(cache))
    return registry
