"""Encode and prefill asked apart, as a coordinator does, give the tokens of the single call."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.asking import MODEL, image_part, noise, png, user
from triton_renderer.launcher.supervisor import Stack

COORDINATOR = Path(__file__).parents[2] / "client" / "examples" / "coordinator.py"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_coordinator_gives_the_tokens_of_the_single_call(stack: Stack, http: httpx.Client, tmp_path: Path, seed: int) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(png(noise(seed, 120, 90)))
    prompt = "What is in this picture?"
    urls = [part for role in ("render", "encode", "prefill") for part in (f"--{role}-url", stack.shim_url)]
    command = [sys.executable, str(COORDINATOR), MODEL, str(picture), "--prompt", prompt, *urls]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert result.returncode == 0, result.stderr
    single = http.post(
        "/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": user(image_part(noise(seed, 120, 90)), prompt),
            "temperature": 0,
            "max_tokens": 64,
            "return_token_ids": True,
        },
    ).json()
    assert json.loads(result.stdout) == single["choices"][0]["token_ids"]
