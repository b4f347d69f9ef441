"""One question about a picture, answered by three servers: one renders, one encodes, one generates.

    .venv/bin/python -m client.examples.coordinator shapes-vl picture.png --prompt "How many squares?"

The pixels go to the encode server alone. What the prefill server gets is the tokens, the place and the grid of the
picture in them, and where its embeddings are to be had. All three roles may be the same server, started with
VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1. Prints the generated token ids as a JSON list.
"""

import argparse
import base64
import json
import mimetypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

GENERATE = "/inference/v1/generate"
SERVER = "http://localhost:9000"

Document = dict[str, Any]


class CoordinatorError(Exception):
    """A step failed; the message names it and the server."""


class Coordinator:
    """Asks the three servers in turn. `http` carries the time limits and the API key."""

    def __init__(self, http: httpx.Client, *, render: str, encode: str, prefill: str) -> None:
        self._http = http
        self._render, self._encode, self._prefill = render, encode, prefill

    def answer(self, model: str, picture: Path, prompt: str, max_tokens: int) -> list[int]:
        """The token ids that answer `prompt` about `picture`. Raises CoordinatorError."""
        rendered = self._post("render", self._render, "/v1/chat/completions/render", _question(model, picture, prompt))
        features = rendered["features"]
        if features is None:
            raise CoordinatorError(f"render: {self._render} found no picture in the request; is {model} a model that sees?")
        places = {"mm_hashes": features["mm_hashes"], "mm_placeholders": features["mm_placeholders"]}
        tokens = {"model": model, "token_ids": rendered["token_ids"]}

        encoded = self._post(
            "encode",
            self._encode,
            GENERATE,
            {**tokens, "features": {**places, "kwargs_data": features["kwargs_data"]}, "sampling_params": {"max_tokens": 1}},
        )
        if not encoded.get("ec_transfer_params"):
            raise CoordinatorError(f"encode: {self._encode} does not say where its embeddings are (no ec_transfer_params)")

        generated = self._post(
            "prefill",
            self._prefill,
            GENERATE,
            {
                **tokens,
                "features": {**places, "mm_metadata": features["mm_metadata"]},
                "ec_transfer_params": encoded["ec_transfer_params"],
                "sampling_params": {"temperature": 0, "max_tokens": max_tokens},
            },
        )
        token_ids: list[int] = generated["choices"][0]["token_ids"]
        return token_ids

    def _post(self, step: str, server: str, path: str, body: Document) -> Document:
        url = server.rstrip("/") + path
        try:
            response = self._http.post(url, json=body)
            response.raise_for_status()
            document: Document = response.json()
        except httpx.HTTPStatusError as error:
            raise CoordinatorError(f"{step}: {url} answered {error.response.status_code}: {_reason(error.response)}") from error
        except httpx.HTTPError as error:
            raise CoordinatorError(f"{step}: {url} cannot be asked: {error or type(error).__name__}") from error
        except ValueError as error:
            raise CoordinatorError(f"{step}: {url} did not answer with JSON") from error
        return document


def _question(model: str, picture: Path, prompt: str) -> Document:
    try:
        data = base64.b64encode(picture.read_bytes()).decode("ascii")
    except OSError as error:
        raise CoordinatorError(f"{picture} cannot be read: {error.strerror}") from error
    media_type = mimetypes.guess_type(picture.name)[0] or "application/octet-stream"
    content = [
        {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}},
        {"type": "text", "text": prompt},
    ]
    return {"model": model, "messages": [{"role": "user", "content": content}]}


def _reason(response: httpx.Response) -> str:
    """The message of an error body; the body itself where it has none."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:500]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 1 after one line on standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="name of the served model")
    parser.add_argument("picture", type=Path, help="picture file")
    parser.add_argument("--prompt", default="What is in this picture?", help="the question (default: %(default)s)")
    parser.add_argument("--render-url", default=SERVER, help="server that renders (default: %(default)s)")
    parser.add_argument("--encode-url", default=SERVER, help="server that encodes (default: %(default)s)")
    parser.add_argument("--prefill-url", default=SERVER, help="server that generates (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds that each step may take (default: %(default)s)")
    options = parser.parse_args(arguments)
    key = os.environ.get("API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(timeout=options.timeout, headers=headers) as http:
            coordinator = Coordinator(http, render=options.render_url, encode=options.encode_url, prefill=options.prefill_url)
            token_ids = coordinator.answer(options.model, options.picture, options.prompt, options.max_tokens)
    except CoordinatorError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(token_ids))
    return 0


if __name__ == "__main__":
    sys.exit(main())
