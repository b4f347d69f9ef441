"""The example that splits one question over three servers."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from client.examples.coordinator import Coordinator, CoordinatorError, main
from triton_renderer.protocol.generate import GenerateRequest

RENDERED: dict[str, Any] = {
    "token_ids": [1, 2, 3],
    "features": {
        "mm_hashes": {"image": ["aa"]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 1}]},
        "kwargs_data": {"image": ["cGl4ZWxz"]},
        "mm_metadata": {"image": ["Z3JpZA=="]},
    },
}
EC_PARAMS = {"ec_items": [{"mm_hash": "aa"}]}
ENCODED = {"choices": [{"token_ids": [9]}], "ec_transfer_params": EC_PARAMS}
GENERATED = {"choices": [{"token_ids": [7, 8]}]}

Answers = dict[str, Any]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    path.write_bytes(b"pixels")
    return path


def coordinator(asked: list[tuple[str, Any]], answers: Answers) -> Coordinator:
    """A coordinator whose servers give these answers, by host; a callable answers for itself."""

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append((f"{request.url.host}{request.url.path}", json.loads(request.content)))
        answer = answers[request.url.host]
        return answer(request) if callable(answer) else httpx.Response(200, json=answer)

    http = httpx.Client(transport=httpx.MockTransport(handle))
    return Coordinator(http, render="http://render/", encode="http://encode", prefill="http://prefill")


def test_each_server_gets_what_it_needs_and_nothing_else(picture: Path) -> None:
    asked: list[tuple[str, Any]] = []
    answers = {"render": RENDERED, "encode": ENCODED, "prefill": GENERATED}
    assert coordinator(asked, answers).answer("m", picture, "How many?", 5) == [7, 8]
    (render, question), (encode, encoding), (prefill, generation) = asked
    assert render == "render/v1/chat/completions/render"
    assert encode == "encode/inference/v1/generate"
    assert prefill == "prefill/inference/v1/generate"
    part, text = question["messages"][0]["content"]
    assert part["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(b"pixels").decode()
    assert text["text"] == "How many?"
    assert encoding["features"]["kwargs_data"] == RENDERED["features"]["kwargs_data"]
    assert "mm_metadata" not in encoding["features"]
    assert encoding["sampling_params"]["max_tokens"] == 1
    assert generation["features"]["mm_metadata"] == RENDERED["features"]["mm_metadata"]
    assert "kwargs_data" not in generation["features"]
    assert generation["ec_transfer_params"] == EC_PARAMS
    assert generation["sampling_params"] == {"temperature": 0, "max_tokens": 5}
    for body in (encoding, generation):
        GenerateRequest.model_validate(body)


def refused(status: int, body: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(status, json=body)


def unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"render": refused(403, {"error": {"message": "switched off"}})}, "render: .*answered 403: switched off"),
        ({"encode": refused(500, ["odd"])}, "encode: .*answered 500: .*odd"),
        ({"prefill": unreachable}, "prefill: .*cannot be asked: connection refused"),
        ({"render": RENDERED | {"features": None}}, "found no picture"),
        ({"encode": ENCODED | {"ec_transfer_params": None}}, "no ec_transfer_params"),
        ({"prefill": lambda request: httpx.Response(200, text="<html>")}, "did not answer with JSON"),
    ],
)
def test_a_step_that_fails_is_named(picture: Path, changes: Answers, said: str) -> None:
    answers = {"render": RENDERED, "encode": ENCODED, "prefill": GENERATED} | changes
    with pytest.raises(CoordinatorError, match=said):
        coordinator([], answers).answer("m", picture, "?", 5)


def test_a_picture_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["m", str(tmp_path / "none.png")]) == 1
    assert "none.png cannot be read" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_line_and_status_1(picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["m", str(picture), "--render-url", "http://127.0.0.1:1", "--timeout", "5"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("render: http://127.0.0.1:1/v1/chat/completions/render cannot be asked")
    assert captured.err.count("\n") == 1
