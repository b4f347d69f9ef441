"""A real tritonserver with the real model and the shim in front, started once on free ports."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import tritonclient.grpc
import tritonclient.http

from triton_renderer.launcher.supervisor import Stack, free_ports, serve
from triton_renderer.settings import Settings, load_settings

TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def settings() -> Settings:
    return load_settings(dtype="float32", enable_scale_out=True, **free_ports())


@pytest.fixture(scope="session")
def stack(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    log_dir: Path = tmp_path_factory.mktemp("logs")
    with serve(settings, log_dir) as stack:
        yield stack


@pytest.fixture(scope="session")
def http(stack: Stack) -> Iterator[httpx.Client]:
    """A client of the shim."""
    with httpx.Client(base_url=stack.shim_url, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.shim_url}/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def grpc(stack: Stack) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    with tritonclient.grpc.InferenceServerClient(stack.triton_grpc) as client:
        yield client


@pytest.fixture(scope="session")
def triton_http(stack: Stack) -> Iterator[tritonclient.http.InferenceServerClient]:
    client = tritonclient.http.InferenceServerClient(
        stack.triton_http.removeprefix("http://"), network_timeout=TIMEOUT_S, connection_timeout=TIMEOUT_S
    )
    yield client
    client.close()
