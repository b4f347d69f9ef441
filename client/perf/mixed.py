"""How long a long prompt stops the streams of others: `python -m client.perf.mixed`.

Each round measures, on a server of its own start, the prefill of a 512-token prompt alone; then streams decode, a prompt of
4,000 tokens arrives among them, and the longest pause of any stream until it is answered is set beside that prefill. Every
prompt differs, so that no cache answers.
"""

import argparse
import itertools
import random
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from client.perf.together import seconds_together
from triton_renderer.launcher.packaged_models import with_packaged_model
from triton_renderer.launcher.supervisor import free_ports, serve
from triton_renderer.settings import load_settings

TIMEOUT_S = 600.0
UNIT = 512
"""Tokens of the prompt that the pause is compared with."""
LONG = 4000
"""Tokens of the prompt that arrives among the streams."""
SHORT = 32
"""Tokens of a stream's own prompt."""
WARM_CHUNKS = 5
"""Chunks that each stream has got before the long prompt is sent."""


@dataclass
class Streams:
    """When the chunks of each stream came, on the clock `time.perf_counter`."""

    times: list[list[float]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the streams are not needed any more."""

    def wait_until_they_decode(self, count: int) -> None:
        """Raises TimeoutError where one of `count` streams does not."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.times) < count or min(map(len, self.times)) < WARM_CHUNKS:
            if time.monotonic() > deadline:
                raise TimeoutError("a stream has not begun in time")
            time.sleep(0.01)

    def longest_pause(self, start: float, end: float) -> float:
        """Seconds between two chunks of one stream, of those pauses that overlap the time from `start` to `end`."""
        pauses = [
            after - before
            for times in self.times
            for before, after in itertools.pairwise(times)
            if after > start and before < end
        ]
        if any(times[-1] < end for times in self.times):
            raise SystemExit("a stream ended before the long prompt was answered: give --tokens")
        return max(pauses)


def prompt(rng: random.Random, tokens: int) -> list[int]:
    """Token ids of plain text, for any of the vocabularies served here."""
    return [rng.randrange(300, 600) for _ in range(tokens)]


def completion(model: str, ids: list[int], tokens: int) -> dict[str, Any]:
    """A completion request of so many output tokens."""
    return {"model": model, "prompt": ids, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}


def answered(url: str, body: dict[str, Any]) -> tuple[float, float]:
    """When the request was sent and when it was answered. Raises httpx.HTTPError."""
    started = time.perf_counter()
    httpx.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT_S, trust_env=False).raise_for_status()
    return started, time.perf_counter()


def follow(url: str, body: dict[str, Any], streams: Streams) -> None:
    """Reads one stream until it ends or is not needed any more. Raises httpx.HTTPError."""
    times: list[float] = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body | {"stream": True}, timeout=TIMEOUT_S, trust_env=False) as got:
        got.raise_for_status()
        for line in got.iter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
                if len(times) == 1:
                    streams.times.append(times)
            if streams.over.is_set():
                return


def one_round(url: str, model: str, rng: random.Random, count: int, tokens: int) -> tuple[float, float]:
    """Seconds of the prefill of UNIT tokens alone, and of the longest pause while LONG tokens are prefilled."""
    started, ended = answered(url, completion(model, prompt(rng, UNIT), 1))
    streams = Streams()
    bodies = iter([completion(model, prompt(rng, SHORT), tokens) for _ in range(count)])
    pauses: list[float] = []

    def interrupt() -> None:
        try:
            streams.wait_until_they_decode(count)
            window = answered(url, completion(model, prompt(rng, LONG), 1))
            time.sleep(0.5)  # the pause that the answer ends is over as well
            pauses.append(streams.longest_pause(*window))
        finally:
            streams.over.set()

    works = iter([interrupt] + [lambda: follow(url, next(bodies), streams)] * count)
    lock = threading.Lock()

    def run() -> None:
        with lock:
            work = next(works)
        work()

    seconds_together(count + 1, run)
    return ended - started, pauses[0]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of each stream, at most")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    settings = with_packaged_model(load_settings(model=options.model, dtype=options.dtype, max_model_len=8192, **free_ports()))
    url = f"http://127.0.0.1:{settings.shim_port}"
    with tempfile.TemporaryDirectory() as logs, serve(settings, Path(logs)):
        rounds = [
            one_round(url, settings.model_name, random.Random(number), options.streams, options.tokens)
            for number in range(options.rounds + 1)
        ][1:]  # the first one warms up
    print(f"| prefill of {UNIT} tokens alone | longest pause of {options.streams} streams | ratio |\n|---|---|---|")
    for unit, pause in rounds:
        print(f"| {unit * 1000:.0f} ms | {pause * 1000:.0f} ms | {pause / unit:.2f} |")
    ratios = [pause / unit for unit, pause in rounds]
    print(f"median ratio {statistics.median(ratios):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
