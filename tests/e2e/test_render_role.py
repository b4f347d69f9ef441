"""ROLE=render: a real tritonserver with two stages, from a folder without weights, beside the whole server of the other tests."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.asking import MODEL, image_part, noise, user
from triton_renderer.launcher.supervisor import Stack, free_ports, serve
from triton_renderer.settings import BUNDLED_MODEL, load_settings

CHAT = "/v1/chat/completions"
WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")
BACK_WITHIN_S = 60.0
MAX_REQUEST_BYTES = 2**20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model's configuration, tokenizer and processor files, and nothing else."""
    folder = tmp_path_factory.mktemp("model") / MODEL
    shutil.copytree(BUNDLED_MODEL, folder, ignore=shutil.ignore_patterns(*WEIGHTS))
    assert not [path for pattern in WEIGHTS for path in folder.glob(pattern)]
    return folder


@pytest.fixture(scope="module")
def render_stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = load_settings(
        role="render",
        model=str(model),
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
        max_request_bytes=MAX_REQUEST_BYTES,
        **free_ports(),
    )
    with serve(settings, tmp_path_factory.mktemp("logs")) as stack:
        yield stack


@pytest.fixture(scope="module")
def renderer(render_stack: Stack) -> Iterator[httpx.Client]:
    """A client of the server that only renders."""
    with httpx.Client(base_url=render_stack.shim_url, timeout=60) as client:
        yield client


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == status
    return error


def test_two_stages_run_and_no_other_is_waited_for(render_stack: Stack, renderer: httpx.Client) -> None:
    assert render_stack.stub_pids().keys() == {"render", "derender"}
    assert renderer.get("/health").status_code == 200
    (card,) = renderer.get("/v1/models").json()["data"]
    assert card["id"] == MODEL
    assert card["max_model_len"] > 0


def test_a_picture_is_rendered_here_generated_there_and_derendered_here(http: httpx.Client, renderer: httpx.Client) -> None:
    request = {"model": MODEL, "messages": user(image_part(noise(71)), "How many squares?"), "temperature": 0, "max_tokens": 8}
    rendered = renderer.post(f"{CHAT}/render", json=request)
    assert rendered.status_code == 200, rendered.text
    document = rendered.json()
    there = http.post(f"{CHAT}/render", json=request).json()
    assert document["token_ids"] == there["token_ids"]
    assert document["features"]["kwargs_data"] == there["features"]["kwargs_data"]
    generated = http.post("/inference/v1/generate", json=document)
    assert generated.status_code == 200, generated.text
    body = {"generate_response": generated.json(), "prompt_token_ids": document["token_ids"], "chat_request": request}
    derendered = renderer.post(f"{CHAT}/derender", json=body)
    assert derendered.status_code == 200, derendered.text
    assert derendered.json()["choices"] == http.post(CHAT, json=request).json()["choices"]


def test_completions_are_rendered(renderer: httpx.Client) -> None:
    (document,) = renderer.post("/v1/completions/render", json={"prompt": "Hello", "max_tokens": 3}).json()
    assert document["token_ids"]
    assert document["sampling_params"]["max_tokens"] == 3


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/inference/v1/generate", "/inference/v1/abort_requests"])
def test_routes_of_other_stages_are_not_found(renderer: httpx.Client, path: str) -> None:
    error = error_of(renderer.post(path, json={"messages": user("Hello")}), 404)
    assert "ROLE=render" in error["message"]


def test_requests_are_bounded_and_bring_no_templates(renderer: httpx.Client) -> None:
    large = {"messages": [{"role": "user", "content": "x" * MAX_REQUEST_BYTES}]}
    assert str(MAX_REQUEST_BYTES) in error_of(renderer.post(f"{CHAT}/render", json=large), 413)["message"]
    own = {"messages": user("Hello"), "chat_template": "{{ messages }}"}
    assert error_of(renderer.post(f"{CHAT}/render", json=own), 400)["param"] == "chat_template"
    assert renderer.get("/health").status_code == 200


def test_a_killed_stage_is_named_and_comes_back(render_stack: Stack, renderer: httpx.Client) -> None:
    os.kill(render_stack.stub_pids()["derender"], signal.SIGKILL)
    deadline = time.monotonic() + BACK_WITHIN_S
    while (answer := renderer.get("/health")).status_code == 200:
        assert time.monotonic() < deadline, "the death was not noticed"
        time.sleep(0.05)
    assert "`derender`" in error_of(answer, 503)["message"]
    assert renderer.post(f"{CHAT}/render", json={"messages": user("Hello")}).status_code == 200
    while renderer.get("/health").status_code != 200:
        assert time.monotonic() < deadline, "the stage did not come back"
        time.sleep(0.2)


def test_switched_off_routes_and_the_role_do_not_go_together(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "triton_renderer.launcher.cli", "serve", "--role", "render", "--model", str(model)]
    ended = subprocess.run(
        command,
        env=os.environ | {"VLLM_ENABLE_SCALE_OUT_ENDPOINTS": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "ROLE=render serves nothing but the render and derender routes" in ended.stderr
    assert ended.stderr.count("\n") == 1
