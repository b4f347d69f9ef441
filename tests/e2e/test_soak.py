"""Thousands of requests of random shape, many of them wrong or given up: each ends once, and nothing of them stays behind.

The caches are small, so that they are full after the warm-up: memory that grows from then on is a leak.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.asking import MODEL, image_part, noise, user
from tests.e2e.watching import metrics, our_regions, resident, wait_for
from triton_renderer.launcher.supervisor import Stack, free_ports, serve
from triton_renderer.settings import Settings, load_settings

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

SEED = 20
CONTEXT_TOKENS = 512
REQUEST_TIMEOUT_S = 120.0
MEMORY_MAY_GROW_BY = 0.05
ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "generate": "/inference/v1/generate"}
WORDS = [
    "red",
    "green",
    "blue",
    "circle",
    "square",
    "triangle",
    "left",
    "right",
    "of",
    "the",
    "a",
    "two",
    "how",
    "many",
    "is",
    "there",
    "what",
    "in",
    "this",
    "picture",
    "你好",
    "🎉",
]
SCHEMA = {"type": "object", "properties": {"shape": {"enum": ["circle", "square"]}}, "required": ["shape"]}
CONSTRAINTS: list[dict[str, Any]] = [
    {"choice": ["left", "right", "neither of them"]},
    {"regex": "[a-c]{3}-[0-9]{2}"},
    {"grammar": 'root ::= "<" [xyz]+ ">"'},
    {"json": SCHEMA},
]
FATES = ["whole"] * 17 + ["left"] * 8 + ["aborted"] * 2 + ["wrong"] * 3
"""Of thirty requests: a third is given up at a random moment, a tenth is wrong."""
WRONG: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"messages": []},
        {"messages": user("word " * 2000)},
        {"messages": user({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": 5}}}},
    ],
    "completions": [{"prompt": []}, {"prompt": [10**6]}, {"prompt": "word " * 2000}],
    "generate": [
        {"token_ids": []},
        {"token_ids": [10**6]},
        {"token_ids": [1] * CONTEXT_TOKENS},
        {"sampling_params": {"max_tokens": 4, "structured_outputs": {"regex": "("}}},
        {"sampling_params": {"max_tokens": 4, "logit_bias": {"99999": 1}}},
    ],
}
WRONG_ANYWHERE: list[dict[str, Any]] = [{"model": "nobody"}, {"stream": "maybe"}, {"priority": "high"}]


@dataclass
class Asked:
    """A request, and what its client means to do. `moment_s`: when it gives up, after its start."""

    route: str
    body: dict[str, Any]
    fate: str
    n: int
    moment_s: float


class Maker:
    """Makes requests, each chat with a number of pictures between two limits: one of `pool` that come again, or new ones."""

    def __init__(self, seed: int, num_pictures: tuple[int, int], pool: int | None = None) -> None:
        self._rng = random.Random(seed)
        self._num_pictures = num_pictures
        self._pool = pool
        self._fates: list[str] = []
        self.seed, self._number = seed, 0

    def make(self) -> Asked:
        rng = self._rng
        if not self._fates:
            self._fates = rng.sample(FATES, len(FATES))
        self._number += 1
        fate = self._fates.pop()
        route = "chat" if self._num_pictures[0] else rng.choice(list(ROUTES))
        n = rng.choice([1, 1, 1, 2, 4])
        params = self._params(n, is_long=fate in ("left", "aborted"))
        if route == "generate":
            params["logprobs"] = rng.choice([None, None, 0, 3])
            body: dict[str, Any] = {"token_ids": [rng.randrange(300) for _ in range(self._length())], "sampling_params": params}
            body["output_mode"] = rng.choice(["tokens", "text"])
        elif route == "completions":
            params["logprobs"] = rng.choice([None, None, 0, 3])
            body = params | {"model": MODEL, "prompt": self._text()}
        else:
            params |= rng.choice([{}, {}, {"logprobs": True, "top_logprobs": 3}])
            body = params | {"model": MODEL, "messages": user(*self._pictures(), self._text())}
        body |= {"stream": rng.random() < 0.5, "priority": rng.randrange(-2, 3), "request_id": f"{self.seed}-{self._number}"}
        if fate == "wrong":
            body |= rng.choice(WRONG[route] + WRONG_ANYWHERE)
        return Asked(route, body, fate, n, moment_s=0.003 * 400 ** rng.random())

    def _params(self, n: int, is_long: bool) -> dict[str, Any]:
        """A long output takes what the context leaves; what it is of does not matter."""
        rng = self._rng
        params: dict[str, Any] = {
            "n": n,
            "temperature": rng.choice([0, 0.5, 1, 2]),
            "seed": rng.choice([None, rng.randrange(99)]),
        }
        if is_long:
            return params | {"max_tokens": CONTEXT_TOKENS - 1, "ignore_eos": True}
        params |= {"max_tokens": rng.choice([1, 2, 8, 24, 80]), "ignore_eos": rng.random() < 0.5}
        params |= rng.choice([{}, {"top_p": 0.8}, {"top_k": 5}, {"presence_penalty": 1.0}, {"repetition_penalty": 1.3}])
        if rng.random() < 0.3:
            params["stop"] = rng.sample(["e", "red", "\n", "ab", "<|im_end|>"], rng.randrange(1, 4))
        if rng.random() < 0.15:
            params["structured_outputs"] = rng.choice(CONSTRAINTS)
        return params

    def _length(self) -> int:
        return self._rng.choice([1, 5, 20, 60, 180])

    def _text(self) -> str:
        return " ".join(self._rng.choices(WORDS, k=max(1, self._length() // 3)))

    def _pictures(self) -> list[dict[str, Any]]:
        rng = self._rng
        seeds = [rng.randrange(self._pool or 2**40) for _ in range(rng.randint(*self._num_pictures))]
        return [image_part(noise(seed, 64 + seed % 129, 64 + seed % 73)) for seed in seeds]


class Client:
    """Sends requests, a number of them at a time, and looks at how each ends."""

    def __init__(self, url: str, at_a_time: int) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=at_a_time)
        self._http = httpx.AsyncClient(base_url=url, timeout=REQUEST_TIMEOUT_S, limits=limits)
        self._at_a_time = at_a_time
        self.outcomes: Counter[str] = Counter()

    async def run(self, asked: list[Asked]) -> None:
        """Returns when all of them have ended. Fails where one does not end as it should."""
        waiting = iter(asked)

        async def work() -> None:
            for one in waiting:
                self.outcomes[await self._end_of(one)] += 1

        async with self._http, asyncio.TaskGroup() as group:
            for _ in range(self._at_a_time):
                group.create_task(work())

    async def _end_of(self, asked: Asked) -> str:
        try:
            async with asyncio.timeout(asked.moment_s if asked.fate == "left" else REQUEST_TIMEOUT_S) as limit:
                abort = asyncio.create_task(self._abort(asked)) if asked.fate == "aborted" else None
                answer = await self._http.post(ROUTES[asked.route], json=asked.body)
        except TimeoutError:
            assert limit.expired()
            assert asked.fate == "left", f"no end after {REQUEST_TIMEOUT_S} s: {asked}"
            return "left"
        if abort:
            await abort
        if asked.fate == "wrong":
            check_refusal(answer)
            return f"refused with {answer.status_code}"
        assert answer.status_code == 200, f"{answer.status_code} {answer.text}: {asked}"
        reasons = finish_reasons(answer, asked)
        assert set(reasons) <= {"stop", "length"} | ({"abort"} if asked.fate == "aborted" else set()), (reasons, asked)
        return "aborted" if "abort" in reasons else f"answered, {'streamed' if asked.body['stream'] else 'plain'}"

    async def _abort(self, asked: Asked) -> None:
        await asyncio.sleep(asked.moment_s)
        answer = await self._http.post("/inference/v1/abort_requests", json={"request_ids": [asked.body["request_id"]]})
        assert answer.status_code == 200, answer.text


def check_refusal(answer: httpx.Response) -> None:
    error = answer.json()["error"]
    assert answer.status_code in (400, 404), answer.text
    assert error["code"] == answer.status_code
    assert error["message"]


def finish_reasons(answer: httpx.Response, asked: Asked) -> list[str]:
    """How each choice ended. Fails unless each ends once, and nothing comes after the end."""
    if asked.body["stream"]:
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert events.count("[DONE]") == 1, answer.text
        assert events[-1] == "[DONE]"
        documents = [json.loads(event) for event in events[:-1]]
    else:
        documents = [answer.json()]
    ended: dict[int, str] = {}
    for document in documents:
        assert "error" not in document, document
        for choice in document["choices"]:
            assert choice["index"] not in ended, f"something behind the end of choice {choice['index']}: {answer.text}"
            if choice["finish_reason"]:
                ended[choice["index"]] = choice["finish_reason"]
    assert sorted(ended) == list(range(asked.n)), answer.text
    return list(ended.values())


class Server:
    """A server with small caches, its metrics and its logs."""

    def __init__(self, settings: Settings, stack: Stack, log_dir: Path) -> None:
        self.settings, self.stack, self._log_dir = settings, stack, log_dir
        self.pids = stack.stub_pids()

    def triton_metrics(self) -> dict[tuple[str, ...], float]:
        return metrics(f"http://127.0.0.1:{self.settings.triton_metrics_port}")

    def outcomes(self) -> Counter[str]:
        """How requests to the routes that are asked here ended, as the shim counts it."""
        counts: Counter[str] = Counter()
        for (name, *labels), value in metrics(self.stack.shim_url).items():
            if name == "triton_renderer_requests_total" and labels[-1] in ROUTES.values():
                counts[labels[0]] += int(value)
        return counts

    def is_empty(self) -> bool:
        """Nothing runs, nothing waits, and no block of the cache is in use."""
        shown = self.triton_metrics()
        gauges = ("running_sequences", "waiting_requests", "kv_cache_used_ratio")
        still_open = metrics(self.stack.shim_url)[("triton_renderer_open_requests",)]
        return not still_open and not any(shown[(f"triton_renderer_{gauge}",)] for gauge in gauges)

    def answers(self) -> list[list[int]]:
        """The tokens of some greedy answers, to see whether the caches still hold what they say."""
        found = []
        for number, text in enumerate(WORDS[:8]):
            body = {"model": MODEL, "messages": user(image_part(noise(number)), text * 20), "temperature": 0, "max_tokens": 12}
            answer = httpx.post(f"{self.stack.shim_url}{ROUTES['chat']}", json=body | {"return_token_ids": True}, timeout=60)
            found.append(answer.json()["choices"][0]["token_ids"])
        return found

    def check_logs(self) -> None:
        """The engine looks at its books whenever it has nothing to do: what does not agree is in its log."""
        for name in ("triton", "shim"):
            text = (self._log_dir / f"{name}.log").read_text()
            assert "a message failed" not in text
            assert " ERROR " not in text, text[text.index(" ERROR ") - 100 :][:2000]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = load_settings(
        dtype="float32",
        enable_scale_out=True,
        max_model_len=CONTEXT_TOKENS,
        max_running_requests=8,
        max_step_tokens=128,
        kv_cache_bytes=3_000_000,
        encoder_cache_bytes=2**20,
        **free_ports(),
    )
    log_dir, before = tmp_path_factory.mktemp("logs"), our_regions()
    with serve(settings, log_dir) as stack:
        yield Server(settings, stack, log_dir)
    assert our_regions().keys() <= before.keys()


def soak(server: Server, maker: Maker, *, at_a_time: int, warm_up: int, requests: int) -> None:
    """Sends the requests, and compares the server afterwards with what it was after the warm-up."""
    expected = server.answers()
    asyncio.run(Client(server.stack.shim_url, at_a_time).run([maker.make() for _ in range(warm_up)]))
    wait_for(server.is_empty, 10, "the server to be idle")
    regions, memory, counted = our_regions(), resident(server.settings), server.outcomes()
    asked = [maker.make() for _ in range(requests)]
    client, started = Client(server.stack.shim_url, at_a_time), time.monotonic()
    asyncio.run(client.run(asked))
    duration_s = time.monotonic() - started
    wait_for(server.is_empty, 10, "the server to be idle")
    grown, shown, outcomes = resident(server.settings), server.triton_metrics(), server.outcomes() - counted
    before, after = sum(memory.values()), sum(grown.values())
    print(
        f"seed {maker.seed}: {requests} requests, {at_a_time} at a time, in {duration_s:.0f} s: {dict(sorted(client.outcomes.items()))}"
    )
    preemptions = shown[("triton_renderer_preemptions_total",)]
    print(f"as the server counts them: {dict(outcomes)}; {preemptions:.0f} preemptions since its start")
    print(
        f"resident: {before / 2**20:.1f} MiB after {warm_up} requests, then {after / 2**20:.1f} MiB ({after / before - 1:+.2%})"
    )
    print(", ".join(f"{name} {memory[name] / 2**20:.1f} → {grown[name] / 2**20:.1f} MiB" for name in memory))
    print(f"shared memory: {sum(regions.values()) / 2**20:.1f} → {sum(our_regions().values()) / 2**20:.1f} MiB")

    assert client.outcomes.total() == requests
    given_up, refused = client.outcomes["left"], sum(one.fate == "wrong" for one in asked)
    # A client that leaves may be too early for the server to know of it, or too late for it to notice.
    assert outcomes["server_error"] == 0
    assert outcomes["client_error"] == refused
    assert outcomes["cancelled"] <= given_up
    assert requests - given_up <= outcomes.total() <= requests
    assert given_up > requests / 5
    assert preemptions > 0
    assert server.answers() == expected
    assert server.stack.stub_pids() == server.pids
    server.check_logs()
    assert our_regions().keys() <= regions.keys()
    assert after < before * (1 + MEMORY_MAY_GROW_BY)


def test_requests_of_every_shape(server: Server) -> None:
    soak(server, Maker(SEED, (0, 1), pool=100), at_a_time=24, warm_up=500, requests=2000)


def test_pictures_of_many_clients(server: Server) -> None:
    soak(server, Maker(SEED + 1, (1, 3)), at_a_time=16, warm_up=64, requests=200)
