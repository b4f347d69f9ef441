"""The name that a model is served under is the only one that clients see, whatever its folder is called."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.unit.derender.answers import derenderer, model
from tests.unit.render.helpers import settings
from triton_renderer.render import Renderer

from .clients import Clients, clients
from .in_process import Says

NAME = "as-it-is-served"
SAID = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": SAID, "max_tokens": 5},
}
REQUESTS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}


@pytest.fixture(scope="module")
def renamed() -> Renderer:
    return Renderer.load(settings(served_model_name=NAME))


@pytest.fixture
async def api(renamed: Renderer) -> AsyncIterator[Clients]:
    async with clients(renamed, served_model_name=NAME) as connected:
        connected.stages.derenderer = derenderer(replace(model(), name=NAME))
        yield connected


def names(document: Any) -> set[str]:
    """All values called `model` in a document, at any depth."""
    values = document.values() if isinstance(document, dict) else document if isinstance(document, list) else []
    found = {name for value in values for name in names(value)}
    return found | ({document["model"]} if isinstance(document, dict) and "model" in document else set())


WAYS = [(path, {"model": NAME}) for path in BODIES] + [(path, {}) for path in BODIES if path != "/v1/messages"]
"""The Messages API alone asks for a name."""


@pytest.mark.parametrize(("path", "named"), WAYS)
async def test_answers_and_their_streams_have_it(api: Clients, path: str, named: dict[str, str]) -> None:
    answer = await api.post(path, BODIES[path] | named)
    assert names(answer.json()) == {NAME}
    assert answer.json()["usage"]
    streamed = await api.post(path, BODIES[path] | named | {"stream": True})
    lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert {name for line in lines for name in names(orjson.loads(line))} == {NAME}


@pytest.mark.parametrize(("path", "named"), WAYS)
async def test_derendered_answers_have_it(api: Clients, path: str, named: dict[str, str]) -> None:
    asked = BODIES[path] | named
    rendered = (await api.post(f"{path}/render", asked)).json()
    generated = {"request_id": "r", "choices": [{"index": 0, "token_ids": Says("hello").token_ids, "finish_reason": "stop"}]}
    if path == "/v1/completions":
        body = {"generate_responses": [generated], "completion_request": asked, "prompt_token_ids": [rendered[0]["token_ids"]]}
    else:
        known = {"prompt_token_ids": rendered["token_ids"], "sampling_params": rendered["sampling_params"]}
        body = known | {"generate_response": generated, f"{REQUESTS[path]}_request": asked}
    answer = await api.post(f"{path}/derender", body | named)
    assert names(answer.json()) == {NAME}
    assert answer.json()["usage"]


@pytest.mark.parametrize("path", BODIES)
async def test_its_folders_name_is_not_found(api: Clients, path: str) -> None:
    for route in (path, f"{path}/render"):
        answer = await api.post(route, BODIES[path] | {"model": "shapes-vl"})
        assert (answer.status_code, answer.json().get("error", {}).get("code", 404)) == (404, 404)
