"""Render and derender against a reference server, turn about in one run: `python -m client.perf.render --reference-url URL`.

Both servers must serve the same model folder, with the tool parser hermes and the reasoning parser qwen3, and a context of
at least 32,768 tokens. Without --url a render server of our own is started for the run. Every request's text and picture
differ, also between rounds and servers, so that no cache answers. A machine's speed changes from minute to minute: each
round asks both, and the ratio of a row is the median of the rounds' ratios.
"""

import argparse
import base64
import http.client
import io
import itertools
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from PIL import Image
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from client.perf.together import seconds_together
from triton_renderer.launcher.supervisor import free_ports, serve
from triton_renderer.settings import load_settings

TIMEOUT_S = 600.0
CONTEXT_LENGTH = 32768
COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body information back parent face others "
    "level office door health person art war history party result change morning reason research girl guy moment air teacher"
)
WORDS = COMMON.split()
STREAMED_TOKENS, ONE_SHOT_TOKENS = 2000, 200
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "store",
            "description": "Stores a text.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    }
]

Body = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the table: what is asked, by how many clients at once, how often a round."""

    name: str
    path: str
    make: Callable[[random.Random], Body]
    clients: int
    requests: int


@dataclass
class Figures:
    """Of one row and one server: requests per second of each round, and all times of single requests in seconds."""

    rates: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def text(rng: random.Random, words: int) -> str:
    """That many common English words in random order."""
    return " ".join(rng.choices(WORDS, k=words))


def photo(rng: random.Random, width: int, height: int) -> bytes:
    """A JPEG with smooth areas, edges and grain, as photographs have them."""
    generator = np.random.default_rng(rng.getrandbits(64))
    coarse = Image.fromarray(generator.integers(0, 256, (9, 16, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    grain = generator.normal(0, 6, (height, width, 1))
    pixels = np.clip(np.asarray(coarse, np.float32) + grain, 0, 255).astype(np.uint8)
    for _ in range(12):
        x, y = generator.integers(0, width * 3 // 4), generator.integers(0, height * 3 // 4)
        pixels[y : y + height // 6, x : x + width // 8] = generator.integers(0, 256, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def asked(*parts: Body) -> Body:
    """A chat request of one user message. Without a model's name, for each server has its own for the same folder."""
    return {"messages": [{"role": "user", "content": list(parts)}]}


def about_text(words: int) -> Callable[[random.Random], Body]:
    """Makes requests with a text of that many words."""
    return lambda rng: asked({"type": "text", "text": text(rng, words)})


def about_photo(width: int, height: int) -> Callable[[random.Random], Body]:
    """Makes requests with a picture of that size."""

    def make(rng: random.Random) -> Body:
        url = f"data:image/jpeg;base64,{base64.b64encode(photo(rng, width, height)).decode()}"
        return asked({"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text(rng, 8)})

    return make


class Output:
    """What a model could have answered: a thought, a sentence and a tool call, in the model's own tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """`tokenizer` is the served model's."""
        self.tokenizer = tokenizer
        self.request = asked({"type": "text", "text": "Store something."}) | {"tools": TOOLS}
        prompt = tokenizer.apply_chat_template(
            self.request["messages"], tools=TOOLS, add_generation_prompt=True, tokenize=False
        )
        self.prompt = tokenizer.encode(str(prompt), add_special_tokens=False)

    def tokens(self, rng: random.Random, count: int) -> list[int]:
        """That many tokens: a tenth is the thought, half is the call's argument. The last one ends the output."""
        call = json.dumps({"name": "store", "arguments": {"text": text(rng, count)}})
        parts = f"<think>\n{text(rng, count // 10)}\n</think>\n\n", f"{text(rng, count // 2)}\n", f"<tool_call>\n{call}"
        start = [token for part in parts for token in self.tokenizer.encode(part, add_special_tokens=False)]
        end = self.tokenizer.encode('"}}\n</tool_call>', add_special_tokens=False)
        return [*start[: count - len(end) - 1], *end, int(self.tokenizer.eos_token_id)]

    def one_shot(self, rng: random.Random) -> Body:
        """A derender request for a whole output."""
        choice = {"index": 0, "token_ids": self.tokens(rng, ONE_SHOT_TOKENS), "finish_reason": "stop"}
        return {
            "generate_response": {"request_id": f"bench-{rng.getrandbits(64)}", "choices": [choice]},
            "prompt_tokens": len(self.prompt),
            "prompt_token_ids": self.prompt,
            "chat_request": self.request,
        }

    def streamed(self, rng: random.Random) -> list[Body]:
        """The derender requests of a streamed output, one a token, without the state that each must be given."""
        request_id = f"bench-{rng.getrandbits(64)}"
        tokens = self.tokens(rng, STREAMED_TOKENS)
        bodies = []
        for number, token in enumerate(tokens):
            ending = "stop" if number == len(tokens) - 1 else None
            choice = {"index": 0, "token_ids": [token], "finish_reason": ending}
            bodies.append(
                {
                    "stream": True,
                    "generate_chunk": {"request_id": request_id, "choices": [choice]},
                    "prompt_tokens": len(self.prompt),
                    "prompt_token_ids": self.prompt,
                    "chat_request": self.request,
                }
            )
        return bodies


class Server:
    """One of the two servers."""

    def __init__(self, name: str, url: str, process: psutil.Process | None) -> None:
        """`process` is the one whose memory, and its children's, is the server's; None where it runs elsewhere."""
        self.name, self.process = name, process
        address = urlsplit(url)
        self.host, self.port = address.hostname or "127.0.0.1", address.port or 80

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        """A connection kept for several requests."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            yield connection
        finally:
            connection.close()

    def memory(self) -> float | None:
        """Megabytes that the server's processes have to themselves, plus their part of what they share."""
        if self.process is None:
            return None
        family = [self.process, *self.process.children(recursive=True)]
        return float(sum(member.memory_full_info().pss for member in family) / 2**20)


def post(connection: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
    """The answer's body. Raises SystemExit where it is an error: a benchmark of refusals says nothing."""
    connection.request("POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise SystemExit(f"{path}: {response.status} {answer[:500]!r}")
    return answer


def run(server: Server, row: Row, bodies: list[bytes], figures: Figures) -> None:
    """One round of one row: all bodies, spread over the row's clients."""
    waiting, lock = iter(bodies), threading.Lock()

    def work() -> None:
        with server.connection() as connection:
            while True:
                with lock:
                    body = next(waiting, None)
                if body is None:
                    return
                started = time.perf_counter()
                post(connection, row.path, body)
                figures.times.append(time.perf_counter() - started)

    try:
        figures.rates.append(len(bodies) / seconds_together(row.clients, work))
    except (OSError, http.client.HTTPException, SystemExit) as error:
        raise SystemExit(f"{server.name}: {error}") from error


def stream(server: Server, bodies: list[Body], figures: Figures) -> None:
    """One streamed output: a call a token, each with the state that the one before gave."""
    state = None
    with server.connection() as connection:
        started = time.perf_counter()
        for body in bodies:
            begun = time.perf_counter()
            answer = post(connection, "/v1/chat/completions/derender", json.dumps(body | {"stream_state": state}).encode())
            figures.times.append(time.perf_counter() - begun)
            state = json.loads(answer)["stream_state"]
        figures.rates.append(len(bodies) / (time.perf_counter() - started))


def report(name: str, results: dict[str, Figures]) -> None:
    """One line of the table: ours, then the reference."""
    ours, theirs = results.values()
    ratio = statistics.median(a / b for a, b in zip(ours.rates, theirs.rates, strict=True))
    cells = [name]
    for figures in (ours, theirs):
        cells += [f"{statistics.median(figures.rates):.1f}", f"{statistics.median(figures.times) * 1000:.1f}"]
    print("| " + " | ".join([*cells, f"{ratio:.2f}"]) + " |", flush=True)


def process_on(port: int) -> psutil.Process | None:
    """The process of this machine that listens on `port`."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return psutil.Process(connection.pid)
    return None


@contextmanager
def our_server(url: str | None, model: str) -> Iterator[Server]:
    """The server at `url`, or one that runs as long as the context."""
    if url is not None:
        address = urlsplit(url)
        yield Server("ours", url, process_on(address.port or 80))
        return
    settings = load_settings(
        model=model,
        role="render",
        max_model_len=CONTEXT_LENGTH,
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
        **free_ports(),
    )
    with tempfile.TemporaryDirectory() as logs, serve(settings, Path(logs)) as stack:
        yield Server("ours", stack.shim_url, psutil.Process())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--reference-url", required=True)
    parser.add_argument("--url", help="our server; by default one is started")
    parser.add_argument("--model", required=True, help="the folder that both serve")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="requests a round, times this")
    parser.add_argument("--rows", nargs="*", default=[], help="only rows with one of these in their names")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    output = Output(AutoTokenizer.from_pretrained(options.model))
    chat, derender = "/v1/chat/completions/render", "/v1/chat/completions/derender"
    kinds = [
        ("20 words", chat, about_text(20), 100),
        ("8,000 words", chat, about_text(8000), 16),
        ("JPEG 640×480", chat, about_photo(640, 480), 24),
        ("JPEG 1920×1080", chat, about_photo(1920, 1080), 8),
        ("derender 200 tokens", derender, output.one_shot, 60),
    ]
    rows = [
        Row(
            f"{kind}, {clients} client{'s' if clients > 1 else ''}",
            path,
            make,
            clients,
            max(clients, round(count * options.scale)),
        )
        for kind, path, make, count in kinds
        for clients in (1, 8)
    ]
    wanted = [row for row in rows if not options.rows or any(part in row.name for part in options.rows)]
    numbers = itertools.count(options.seed * 1_000_000)

    def fresh() -> random.Random:
        return random.Random(next(numbers))

    with our_server(options.url, options.model) as ours:
        address = urlsplit(options.reference_url)
        servers = [ours, Server("reference", options.reference_url, process_on(address.port or 80))]
        print("| row | ours req/s | p50 ms | reference req/s | p50 ms | ratio |\n|---|---|---|---|---|---|", flush=True)
        for row in wanted:
            results = {server.name: Figures() for server in servers}
            for server in servers:
                run(server, row, [json.dumps(row.make(fresh())).encode() for _ in range(row.clients)], Figures())  # warm-up
            for _ in range(options.rounds):
                for server in servers:
                    bodies = [json.dumps(row.make(fresh())).encode() for _ in range(row.requests)]
                    run(server, row, bodies, results[server.name])
            report(row.name, results)
        streamed = f"derender {STREAMED_TOKENS} calls of a token"
        if not options.rows or any(part in streamed for part in options.rows):
            results = {server.name: Figures() for server in servers}
            for server in servers:
                stream(server, output.streamed(fresh()), results[server.name])
            report(streamed, results)
        memory = [server.memory() for server in servers]
        if None not in memory:
            print(f"\nmemory: ours {memory[0]:.0f} MB, reference {memory[1]:.0f} MB")


if __name__ == "__main__":
    main()
