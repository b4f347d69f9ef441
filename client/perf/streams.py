"""Tokens per second of several streams against one, in turns within one run: `python -m client.perf.streams`.

A machine's speed changes from minute to minute, so only the ratios say something: each round measures every number of
clients once, and the median over the rounds is printed.
"""

import argparse
import json
import statistics
import threading
import time
from dataclasses import dataclass, field

import httpx

from client.perf.together import seconds_together


@dataclass
class Sample:
    """One measurement. `first` are the times to the first token, in seconds."""

    tokens: int = 0
    first: list[float] = field(default_factory=list)


def stream(url: str, body: dict[str, object], sample: Sample, lock: threading.Lock) -> None:
    """Reads one answer to its end. Raises httpx.HTTPError or RuntimeError where it fails."""
    started = time.monotonic()
    first = None
    tokens = 0
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            document = json.loads(line.removeprefix("data: "))
            if "error" in document:
                raise RuntimeError(document["error"]["message"])
            if usage := document.get("usage"):
                tokens = usage["completion_tokens"]
            first = first or time.monotonic() - started
    with lock:
        sample.tokens += tokens
        sample.first.append(first or float("inf"))


def measure(url: str, body: dict[str, object], clients: int) -> tuple[float, float]:
    """Tokens per second over all clients, and the median time to the first token in seconds."""
    sample, lock = Sample(), threading.Lock()
    try:
        seconds = seconds_together(clients, lambda: stream(url, body, sample, lock))
    except (httpx.HTTPError, RuntimeError) as error:
        raise SystemExit(f"a request failed: {error}") from error
    return sample.tokens / seconds, statistics.median(sample.first)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--url", default="http://127.0.0.1:9000")
    parser.add_argument("--model", default="shapes-vl")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": options.tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    measure(options.url, body, 1)  # warm-up
    results: dict[int, list[tuple[float, float]]] = {clients: [] for clients in options.clients}
    for _ in range(options.rounds):
        for clients, samples in results.items():
            samples.append(measure(options.url, body, clients))
    base = statistics.median(speed for speed, _ in results[options.clients[0]])
    print("| clients | tokens/s | ratio | TTFT p50 |\n|---|---|---|---|")
    for clients, samples in results.items():
        speed = statistics.median(speed for speed, _ in samples)
        first = statistics.median(first for _, first in samples)
        print(f"| {clients} | {speed:.0f} | {speed / base:.2f} | {first * 1000:.0f} ms |")


if __name__ == "__main__":
    main()
