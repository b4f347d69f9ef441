"""The served description of the API."""

from typing import Any

import pytest

from .conftest import Running

ROUTES = {
    "/v1/chat/completions": "post",
    "/v1/completions": "post",
    "/v1/responses": "post",
    "/v1/messages": "post",
    "/v1/messages/count_tokens": "post",
    "/v1/models": "get",
    "/v1/chat/completions/render": "post",
    "/v1/completions/render": "post",
    "/v1/responses/render": "post",
    "/v1/messages/render": "post",
    "/v1/responses/derender": "post",
    "/v1/messages/derender": "post",
    "/v1/chat/completions/derender": "post",
    "/v1/completions/derender": "post",
    "/inference/v1/generate": "post",
    "/inference/v1/abort_requests": "post",
    "/health": "get",
    "/version": "get",
    "/metrics": "get",
}


def references(node: Any) -> set[str]:
    """Every $ref below `node`."""
    if isinstance(node, dict):
        here = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return here.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


async def test_it_has_every_route_and_no_other(running: Running) -> None:
    document = (await running.http.get("/openapi.json")).json()
    assert {path: list(methods) for path, methods in document["paths"].items()} == {
        path: [method] for path, method in ROUTES.items()
    }


async def test_each_post_says_what_it_takes(running: Running) -> None:
    paths = (await running.http.get("/openapi.json")).json()["paths"]
    for path, method in ROUTES.items():
        if method == "post":
            assert references(paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"])


async def test_every_reference_leads_somewhere(running: Running) -> None:
    document = (await running.http.get("/openapi.json")).json()
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= schemas


async def test_it_tells_of_nothing_that_is_only_there_to_be_refused(running: Running) -> None:
    schemas = (await running.http.get("/openapi.json")).json()["components"]["schemas"]
    assert [name for name in schemas if name.startswith("_")] == []
    branches = schemas["MessagesRequest"]["properties"]["messages"]["items"]["oneOf"]
    assert [branch["$ref"].rpartition("/")[2] for branch in branches] == ["UserMessage", "AssistantMessage", "SystemMessage"]


@pytest.mark.parametrize("path", ["/docs"])
async def test_it_can_be_read_in_a_browser(running: Running, path: str) -> None:
    assert (await running.http.get(path)).status_code == 200
