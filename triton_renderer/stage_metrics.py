"""A stage's metrics among Triton's own, on Triton's metrics port.

A stage counts with prometheus_client, in its own process and cheaply. `TritonMetrics` hands the sums over now and then, since
each call of Triton's metrics API is a round trip to the server's process. A histogram arrives as the counters that it
consists of (`…_bucket`, `…_sum`, `…_count`), which is what a Prometheus query asks for.
"""

import logging
import math
import threading
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

log = logging.getLogger(__name__)

INTERVAL_S = 0.5

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Buckets of every time that a stage measures."""


class TritonMetrics:
    """Shows the samples of `registry` among Triton's metrics. `pb_utils` is triton_python_backend_utils."""

    def __init__(self, pb_utils: Any, registry: CollectorRegistry) -> None:
        self._pb = pb_utils
        self._registry = registry
        # Triton's objects, which must outlive what they show: a family a name, a metric a set of labels.
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        self._shown: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Publishes every INTERVAL_S from now on."""
        self.publish()
        self._thread.start()

    def close(self) -> None:
        """Publishes a last time and stops."""
        self._closed.set()
        self._thread.join(10.0)

    def publish(self) -> None:
        """Brings Triton's metrics up to date."""
        for metric in self._registry.collect():
            for sample in metric.samples:
                if not sample.name.endswith("_created"):
                    self._show(metric, sample.name, tuple(sorted(sample.labels.items())), sample.value)

    def _show(self, metric: Metric, name: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
        key = (name, labels)
        is_gauge = metric.type == "gauge"
        if key not in self._metrics:
            kind = self._pb.MetricFamily.GAUGE if is_gauge else self._pb.MetricFamily.COUNTER
            if name not in self._families:
                self._families[name] = self._pb.MetricFamily(name=name, description=metric.documentation, kind=kind)
            self._metrics[key] = self._families[name].Metric(labels=dict(labels))
            # A stage that was killed leaves its gauges behind as they were: the next one sets each of its own once.
            self._shown[key] = math.nan if is_gauge else 0.0
        if value == self._shown[key]:
            return
        if is_gauge:
            self._metrics[key].set(value)
        else:
            self._metrics[key].increment(value - self._shown[key])
        self._shown[key] = value

    def _run(self) -> None:
        while not self._closed.wait(INTERVAL_S):
            self._publish_safely()
        self._publish_safely()

    def _publish_safely(self) -> None:
        try:
            self.publish()
        except Exception:  # requests matter more than their counts: the next round tries again
            log.exception("the metrics could not be handed to Triton")
