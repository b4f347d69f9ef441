"""An encoder cache with room for one picture, and three pictures that many clients ask about: none gets another's answer."""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.asking import MODEL, draw, image_part, user
from tests.e2e.watching import metrics
from training.pictures import make_scene
from triton_renderer.launcher.supervisor import free_ports, serve
from triton_renderer.settings import Settings, load_settings

ROOM_BYTES = 60_000
"""A picture of these has 24 rows of 192 values three times, in float32: 55,296 bytes."""
PICTURES = "ABC"
REQUESTS, AT_A_TIME = 200, 8
GENERATE = "/inference/v1/generate"


@pytest.fixture(scope="module")
def small() -> Settings:
    return load_settings(dtype="float32", enable_scale_out=True, encoder_cache_bytes=ROOM_BYTES, **free_ports())


@pytest.fixture(scope="module")
def http(small: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serve(small, tmp_path_factory.mktemp("logs")) as stack, httpx.Client(base_url=stack.shim_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def rendered(http: httpx.Client) -> dict[str, dict[str, Any]]:
    """What render makes of each picture's question, by the picture's name."""
    rng, found = random.Random("one at a time"), {}
    for seed, name in enumerate(PICTURES):
        messages = user(image_part(draw(make_scene(rng, 2), seed)), "What is in this picture?")
        body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 16}
        answer = http.post("/v1/chat/completions/render", json=body)
        assert answer.status_code == 200, answer.text
        found[name] = answer.json()
    return found


def by_hash(body: dict[str, Any]) -> dict[str, Any]:
    """The same request without the picture's data."""
    return body | {"features": body["features"] | {"kwargs_data": None, "mm_metadata": None}}


def tokens(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"][0]["token_ids"])


def check_is_asked_for(answer: httpx.Response) -> None:
    assert answer.status_code == 400, answer.text
    assert "send it again" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "features.image.0"


def test_a_picture_that_was_pushed_out_is_asked_for_and_then_the_same(http: httpx.Client, rendered: dict[str, Any]) -> None:
    first = tokens(http.post(GENERATE, json=rendered["A"]))
    assert tokens(http.post(GENERATE, json=by_hash(rendered["A"]))) == first
    assert tokens(http.post(GENERATE, json=rendered["B"])) != first
    check_is_asked_for(http.post(GENERATE, json=by_hash(rendered["A"])))
    assert tokens(http.post(GENERATE, json=rendered["A"])) == first


def test_many_clients_each_get_their_own_picture(http: httpx.Client, small: Settings, rendered: dict[str, Any]) -> None:
    expected = {name: tokens(http.post(GENERATE, json=body)) for name, body in rendered.items()}
    assert len(set(map(tuple, expected.values()))) == len(PICTURES)
    rng = random.Random("many")
    asked = [(rng.choice(PICTURES), rng.random() < 0.4) for _ in range(REQUESTS)]

    def ask(one: tuple[str, bool]) -> str:
        name, is_by_hash = one
        body = by_hash(rendered[name]) if is_by_hash else rendered[name]
        answer = http.post(GENERATE, json=body)
        if is_by_hash and answer.status_code != 200:
            check_is_asked_for(answer)
            return "asked for"
        assert tokens(answer) == expected[name]
        return "by hash" if is_by_hash else "with data"

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        ends = Counter(pool.map(ask, asked))
    shown = metrics(f"http://127.0.0.1:{small.triton_metrics_port}")
    print(dict(ends), {name[0]: value for name, value in shown.items() if "encoder_cache" in name[0]})
    assert all(ends[kind] for kind in ("asked for", "by hash", "with data"))
    assert shown[("triton_renderer_encoder_cache_bytes",)] <= ROOM_BYTES
    assert shown[("triton_renderer_encoder_cache_items",)] == 1
    assert http.get("/health").status_code == 200
