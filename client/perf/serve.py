"""Streamed chats against a reference server, turn about: `python -m client.perf.serve --reference-venv VENV --model FOLDER`.

Each round starts our server, measures it, ends it, and does the same with `vllm serve` of the environment VENV: the same
model, dtype and context length, one at a time on the whole machine. Every prompt and picture differs, also between rounds
and servers, so that no cache answers. A machine's speed changes from minute to minute: a row's ratio is the median of the
rounds' ratios.
"""

import argparse
import base64
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.perf.render import TIMEOUT_S, asked, photo, text
from client.perf.together import seconds_together
from triton_renderer.launcher.supervisor import free_ports, serve
from triton_renderer.settings import load_settings

START_TIMEOUT_S = 600.0
CONTEXT_LENGTH = 4096
TOKENS = 64
WORDS = 60
PICTURE = (320, 240)

Body = dict[str, Any]
Make = Callable[[random.Random], Body]


@dataclass
class Figures:
    """One measurement: tokens and seconds of the whole, and the times of single streams in seconds."""

    tokens: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def about_text(rng: random.Random) -> Body:
    """A request with a text of its own."""
    return asked({"type": "text", "text": f"Tell me more about this: {text(rng, WORDS)}."})


def about_picture(rng: random.Random) -> Body:
    """A request with a picture of its own."""
    url = f"data:image/jpeg;base64,{base64.b64encode(photo(rng, *PICTURE)).decode()}"
    return asked({"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": f"Describe: {text(rng, 5)}."})


def streamed(model: str, tokens: int) -> Body:
    """The fields of a chat that streams so many tokens and then says how many they were."""
    fields = {"model": model, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return fields | {"stream": True, "stream_options": {"include_usage": True}}


def stream(port: int, body: bytes, figures: Figures, lock: threading.Lock) -> None:
    """Reads one answer to its end. Raises RuntimeError where it is not one of TOKENS tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    started = newest = time.perf_counter()
    tokens, times = 0, []
    try:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status} {response.read(500)!r}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            document = json.loads(line[6:])
            if usage := document.get("usage"):
                tokens = usage["completion_tokens"]
            elif "error" in document:
                raise RuntimeError(document["error"]["message"])
            elif any(choice["delta"].get("content") for choice in document["choices"]):
                times.append(now - newest)
                newest = now
    finally:
        connection.close()
    if tokens != TOKENS:
        raise RuntimeError(f"an answer has {tokens} tokens instead of {TOKENS}")
    with lock:
        figures.tokens += tokens
        figures.first.append(times[0] if times else newest - started)
        figures.gaps += times[1:]


def measure(port: int, bodies: list[Body], clients: int, model: str) -> Figures:
    """All requests, spread over that many clients."""
    figures, lock = Figures(), threading.Lock()
    waiting = iter([json.dumps(streamed(model, TOKENS) | body).encode() for body in bodies])

    def run() -> None:
        while True:
            with lock:
                body = next(waiting, None)
            if body is None:
                return
            stream(port, body, figures, lock)

    try:
        figures.seconds = seconds_together(clients, run)
    except (OSError, http.client.HTTPException, RuntimeError) as error:
        raise SystemExit(f"port {port}: {error}") from error
    return figures


@contextmanager
def our_server(model: str, dtype: str) -> Iterator[tuple[int, str]]:
    """Our server while the context lasts: its port, and the name of the model."""
    settings = load_settings(model=model, dtype=dtype, max_model_len=CONTEXT_LENGTH, **free_ports())
    with tempfile.TemporaryDirectory() as logs, serve(settings, Path(logs)):
        yield settings.shim_port, settings.model_name


@contextmanager
def reference_server(venv: Path, model: str, dtype: str) -> Iterator[tuple[int, str]]:
    """`vllm serve` of the environment while the context lasts: its port, and the name of the model."""
    port = free_ports()["shim_port"]
    command = [
        str(venv / "bin" / "vllm"),
        "serve",
        model,
        "--served-model-name=reference",
        "--host=127.0.0.1",
        f"--port={port}",
    ]
    command += [f"--dtype={dtype}", f"--max-model-len={CONTEXT_LENGTH}", "--no-enable-log-requests"]
    with tempfile.NamedTemporaryFile("w+", prefix="reference-", suffix=".log") as log:
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1"} | os.environ
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            _wait_until_ready(port, process, Path(log.name))
            yield port, "reference"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_until_ready(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the reference server ended:\n{log.read_text()[-2000:]}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"the reference server was not ready within {START_TIMEOUT_S:.0f} s")


def quantile(values: list[float], share: float) -> float:
    """The value below which that share of the values lies, in milliseconds."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000


def report(clients: int, ours: list[Figures], theirs: list[Figures]) -> None:
    """Two lines of the table."""
    speed = statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
    first = statistics.median(quantile(a.first, 0.5) / quantile(b.first, 0.5) for a, b in zip(ours, theirs, strict=True))
    for name, rounds, ratios in (("ours", ours, f"{speed:.2f} | {first:.2f}"), ("reference", theirs, " | ")):
        firsts, gaps = ([value for figures in rounds for value in getattr(figures, kind)] for kind in ("first", "gaps"))
        cells = [str(clients), name, f"{statistics.median(figures.rate for figures in rounds):.1f}"]
        cells += [f"{quantile(values, share):.0f}" for values in (firsts, gaps) for share in (0.5, 0.99)]
        print(f"| {' | '.join(cells)} | {ratios} |", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--reference-venv", type=Path, required=True)
    parser.add_argument("--model", required=True, help="the folder that both serve")
    parser.add_argument("--dtype", default="float32", help="of both")
    parser.add_argument("--pictures", action="store_true", help="ask about pictures instead of texts")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=3, help="requests of each client a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that the servers end as well
    make: Make = about_picture if options.pictures else about_text
    numbers = iter(range(options.seed * 1_000_000, (options.seed + 1) * 1_000_000))
    servers: dict[str, Callable[[], Any]] = {
        "ours": lambda: our_server(options.model, options.dtype),
        "reference": lambda: reference_server(options.reference_venv, options.model, options.dtype),
    }
    results: dict[tuple[str, int], list[Figures]] = {(name, n): [] for name in servers for n in options.clients}
    for _ in range(options.rounds):
        for name, start in servers.items():
            with start() as (port, model):
                for clients in options.clients:
                    for count, is_warm_up in ((clients, True), (clients * options.requests, False)):
                        bodies = [make(random.Random(next(numbers))) for _ in range(count)]
                        figures = measure(port, bodies, clients, model)
                        if not is_warm_up:
                            results[name, clients].append(figures)
    print(
        "| clients | server | tokens/s | TTFT p50 ms | p99 | ITL p50 ms | p99 | ratio tokens/s | ratio TTFT p50 |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    for clients in options.clients:
        report(clients, results["ours", clients], results["reference", clients])


if __name__ == "__main__":
    main()
