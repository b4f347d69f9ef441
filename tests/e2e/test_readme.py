"""What the README shows is what a reader gets."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx

from triton_renderer.launcher.supervisor import Stack

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_curl_gets_the_answer_that_is_printed(http: httpx.Client) -> None:
    command = next(block for block in blocks("bash") if block.startswith("curl") and "/v1/chat/completions" in block)
    printed = json.loads(blocks("json")[0])
    answer = http.post("/v1/chat/completions", json=json.loads(command.partition("-d '")[2].rpartition("'")[0])).json()
    for document in (printed, answer):
        document.pop("id")
        document.pop("created")
        document["usage"].pop("prompt_tokens_details")  # what the cache knows depends on what was asked before
    assert answer == printed


def test_python_snippets_run(stack: Stack) -> None:
    outputs = []
    for snippet in blocks("python"):
        code = snippet.replace("http://127.0.0.1:9000", stack.shim_url).replace("127.0.0.1:8001", stack.triton_grpc)
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr
        outputs.append(result.stdout.strip())
    assert outputs[0] == json.loads(blocks("json")[0])["choices"][0]["message"]["content"]


def test_generate_stream_of_plain_triton_answers(stack: Stack) -> None:
    command = next(block for block in blocks("bash") if "generate_stream" in block)
    body = json.loads(command.partition("-d '")[2].rpartition("'")[0])
    answer = httpx.post(f"{stack.triton_http}/v2/models/chat/generate_stream", json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.text.startswith("data: {")
