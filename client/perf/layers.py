"""What each layer of the way to the client costs: `python -m client.perf.layers`.

The same prompts through transformers' `generate`, through the engine in a process of its own, through Triton's gRPC (the ensemble
`chat`) and through the shim, turn about in one run. The last three are one engine with the same scheduler and settings, without
prefix caching, so that no answer is easier than another. Ratios are medians over the rounds, to the engine in process.
"""

import argparse
import json
import multiprocessing
import os
import queue
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tritonclient.grpc
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from client.perf.render import asked, text
from client.perf.serve import Body, measure, streamed
from client.perf.together import seconds_together
from triton_renderer import checkpoint
from triton_renderer.encode.encoder import NOTHING
from triton_renderer.launcher.packaged_models import with_packaged_model
from triton_renderer.launcher.runtime import DEFAULTS
from triton_renderer.launcher.supervisor import free_ports, serve
from triton_renderer.prefill_decode import PrefillDecode
from triton_renderer.protocol.stages import GeneratedChunk, RenderJob
from triton_renderer.render import Rendered, Renderer
from triton_renderer.settings import Settings, load_settings

TIMEOUT_S = 600.0
WORDS = 60
"""Of each prompt."""


class Sink:
    """Waits for the end of one request of the engine."""

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def send(self, chunk: GeneratedChunk, token_ids: list[int]) -> None:
        """A chunk came."""
        if chunk.final:
            self._ended.put(None)

    def fail(self, error: Exception) -> None:
        """The request failed."""
        self._ended.put(error)

    def is_cancelled(self) -> bool:
        """Never."""
        return False

    def wait(self) -> None:
        """Raises what the request failed with."""
        if error := self._ended.get(timeout=TIMEOUT_S):
            raise error


class Transformers:
    """The model as transformers runs it."""

    def __init__(self, settings: Settings, tokens: int) -> None:
        self._renderer = Renderer.load(settings)
        self._tokens = tokens
        has_encoder = checkpoint.has_encoder(checkpoint.load_config(settings))
        auto: Any = AutoModelForImageTextToText if has_encoder else AutoModelForCausalLM
        self._model = auto.from_pretrained(settings.model, dtype=settings.dtype).eval()

    def seconds(self, bodies: list[Body]) -> float:
        """Of `generate`, for all prompts as one batch."""
        prompts = [rendered(self._renderer, body).token_ids.tolist() for body in bodies]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        length = {"max_new_tokens": self._tokens, "min_new_tokens": self._tokens}
        started = time.perf_counter()
        self._model.generate(input_ids=ids, attention_mask=mask, do_sample=False, pad_token_id=0, **length)
        return time.perf_counter() - started


class EngineAlone:
    """The renderer and the engine of our server, without a server."""

    def __init__(self, settings: Settings, tokens: int) -> None:
        self._renderer = Renderer.load(settings)
        self._engine = PrefillDecode.load(settings)

    def seconds(self, bodies: list[Body]) -> float:
        """Of all requests, each from a thread of its own."""
        waiting = iter([rendered(self._renderer, body) for body in bodies])
        lock = threading.Lock()

        def run() -> None:
            with lock:
                request = next(waiting)
            sink = Sink()
            self._engine.submit(request.token_ids, NOTHING.embeddings, NOTHING.encoded, request.context, sink)
            sink.wait()

        return seconds_together(len(bodies), run)


def rendered(renderer: Renderer, body: Body) -> Rendered:
    """The request as the render stage hands it on."""
    return renderer.render(RenderJob(kind="chat", id=f"{random.getrandbits(64):x}", body=body))


_alone: Transformers | EngineAlone
"""Of a process that measures without a server."""


def _load(kind: type[Transformers] | type[EngineAlone], settings: Settings, tokens: int) -> None:
    global _alone  # noqa: PLW0603  # a process pool has no other place for what its initializer makes
    _alone = kind(settings, tokens)


def _seconds(bodies: list[Body]) -> float:
    return _alone.seconds(bodies)


@contextmanager
def process_of(
    kind: type[Transformers] | type[EngineAlone], settings: Settings, tokens: int
) -> Iterator[Callable[[list[Body]], float]]:
    """Measures in a process of its own, as each stage has one: two models in one would be in each other's way."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _load, (kind, settings, tokens)) as pool:
        yield lambda bodies: pool.submit(_seconds, bodies).result(TIMEOUT_S)


def over_grpc(address: str, bodies: list[Body]) -> float:
    """Seconds of the ensemble `chat`, a gRPC stream a prompt."""
    waiting = iter(bodies)
    lock = threading.Lock()

    def run() -> None:
        with lock:
            body = next(waiting)
        job = {"kind": "chat", "id": f"{random.getrandbits(64):x}", "body": body}
        tensor = tritonclient.grpc.InferInput("request", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([json.dumps(job).encode()], dtype=np.object_))
        answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        with tritonclient.grpc.InferenceServerClient(address) as client:
            client.start_stream(lambda result, error: answers.put((result, error)), stream_timeout=TIMEOUT_S)
            client.async_stream_infer("chat", [tensor], enable_empty_final_response=True)
            is_final = False
            while not is_final:
                result, error = answers.get(timeout=TIMEOUT_S)
                if error is not None:
                    raise error
                is_final = result.get_response().parameters["triton_final_response"].bool_param

    return seconds_together(len(bodies), run)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    limits = {"max_model_len": 2048, "prefix_caching": False, "max_running_requests": max(options.clients)}
    settings = with_packaged_model(load_settings(model=options.model, dtype=options.dtype, **limits, **free_ports()))
    os.environ.update({name: os.environ.get(name, value) for name, value in DEFAULTS.items()})
    speeds: dict[tuple[str, int], list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as logs,
        serve(settings, Path(logs)),
        process_of(Transformers, settings, options.tokens) as generate,
        process_of(EngineAlone, settings, options.tokens) as engine,
    ):
        ways: dict[str, Callable[[list[Body]], float]] = {
            "transformers' generate": generate,
            "engine in process": engine,
            "Triton gRPC": lambda bodies: over_grpc(f"{settings.triton_host}:{settings.triton_grpc_port}", bodies),
            "shim": lambda bodies: measure(settings.shim_port, bodies, len(bodies), settings.model_name).seconds,
        }
        for number in range(-1, options.rounds):
            for clients in options.clients:
                rng = random.Random(number * 1000 + clients)
                texts = [asked({"type": "text", "text": text(rng, WORDS)}) for _ in range(clients)]
                bodies = [streamed(settings.model_name, options.tokens) | body for body in texts]
                for way, seconds in ways.items():
                    speed = options.tokens * clients / seconds(bodies)
                    if number >= 0:  # before that, everything is warmed up
                        speeds.setdefault((way, clients), []).append(speed)
    print("| clients | way | tokens/s | of the engine in process |\n|---|---|---|---|")
    for clients in options.clients:
        base = speeds["engine in process", clients]
        for way in ways:
            own = speeds[way, clients]
            ratio = statistics.median(a / b for a, b in zip(own, base, strict=True))
            print(f"| {clients} | {way} | {statistics.median(own):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
