"""The shim's own counters. Triton's metrics stand on Triton's metrics port."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from triton_renderer import __version__
from triton_renderer.errors import Cancelled, RendererError
from triton_renderer.settings import Settings
from triton_renderer.tensors import STAGES_OF_ROLE

Outcome = Literal["ok", "client_error", "server_error", "cancelled"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


def outcome_of(status: int) -> Outcome:
    """How a request ended, by its HTTP status."""
    if status == Cancelled.status:
        return "cancelled"
    if status >= 500:
        return "server_error"
    return "client_error" if status >= 400 else "ok"


class Metrics:
    """What /metrics shows. One registry an app, so that two apps in one process do not share counts."""

    def __init__(self, settings: Settings) -> None:
        self.registry = CollectorRegistry()
        Info(
            "triton_renderer",
            "The server; `triton_metrics` is where Triton shows the metrics of its models and of the machine",
            registry=self.registry,
        ).info(
            {
                "version": __version__,
                "model": settings.model_name,
                "triton_metrics": f"http://{settings.triton_host}:{settings.triton_metrics_port}/metrics",
            }
        )
        self._requests = Counter(
            "triton_renderer_requests", "HTTP requests that ended", ["route", "outcome"], registry=self.registry
        )
        self._request_seconds = Histogram(
            "triton_renderer_request_duration_seconds",
            "From the first byte of a request to the last one of its answer",
            ["route"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._calls = Counter(
            "triton_renderer_model_calls",
            "Calls of Triton models that ended; one that its request gave up counts as cancelled",
            ["model", "outcome"],
            registry=self.registry,
        )
        self._call_seconds = Histogram(
            "triton_renderer_model_call_duration_seconds",
            "From a call to its last response",
            ["model"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.open_requests = Gauge(
            "triton_renderer_open_requests", "Requests that stages are working on", registry=self.registry
        )
        self._stage_up = Gauge(
            "triton_renderer_stage_up", "1 while the stage answers its probes", ["stage"], registry=self.registry
        )
        for stage in STAGES_OF_ROLE[settings.role]:
            self._stage_up.labels(stage).set(0)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """One HTTP request ended."""
        self._requests.labels(route, outcome_of(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def stage_is_up(self, stage: str, up: bool) -> None:
        """A stage came up or went down."""
        self._stage_up.labels(stage).set(int(up))

    @contextmanager
    def model_call(self, model: str) -> Iterator[None]:
        """Counts and times the call of a model that happens inside."""
        start = perf_counter()
        outcome: Outcome = "server_error"
        try:
            yield
            outcome = "ok"
        except RendererError as error:
            outcome = outcome_of(error.status)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            self._calls.labels(model, outcome).inc()
            self._call_seconds.labels(model).observe(perf_counter() - start)
