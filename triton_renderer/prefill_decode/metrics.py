"""What the engine counts and measures, in a registry of prometheus_client."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from triton_renderer.stage_metrics import SECONDS


class EngineMetrics:
    """One set of metrics an engine. Times are in seconds, as Prometheus has them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"triton_renderer_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"triton_renderer_{name}", text, registry=self.registry, buckets=SECONDS)

        self.prompt_tokens = counter("prompt_tokens", "Tokens of the prompts of requests that got their first token")
        self.generated_tokens = counter("generated_tokens", "Tokens generated, over all choices")
        self.prefix_cache_queried = counter("prefix_cache_queried_tokens", "Prompt tokens looked up in the cache of prefixes")
        self.prefix_cache_hit = counter("prefix_cache_hit_tokens", "Prompt tokens found there, and not computed again")
        self.preemptions = counter("preemptions", "Sequences that gave their blocks up to others, to be computed again")
        self.finished = counter("choices_finished", "Choices that ended with an answer", "reason")
        self.failed = counter("engine_requests_failed", "Requests that ended without an answer", "status")
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival in prefill_decode to the first token of a choice"
        )
        self.inter_token_latency = histogram("inter_token_latency_seconds", "Between two tokens of one choice")
        self.queue_time = histogram("queue_time_seconds", "From a request's arrival to its place in the batch")
        self.request_time = histogram("request_time_seconds", "From a request's arrival to its end")

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge whose value is asked for whenever it is shown."""
        Gauge(f"triton_renderer_{name}", text, registry=self.registry).set_function(value)
