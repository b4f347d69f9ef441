"""Requests as a client makes them: pictures as data URLs, conversations of the bundled model's world, SSE, tensors."""

import base64
import io
import json
import queue
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc
from PIL import Image

from client.shim.health import PROBE, PROBE_TENSORS
from training.conversations import Conversation
from training.pictures import Scene, make_picture
from triton_renderer.tensors import MODELS, NUMPY_DTYPES, TensorSpec

MODEL = "shapes-vl"
DEADLINE_S = 60.0


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_part(picture: Image.Image | bytes) -> dict[str, Any]:
    data = picture if isinstance(picture, bytes) else png(picture)
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def noise(seed: int, width: int = 96, height: int = 96) -> Image.Image:
    """A picture that nobody else has."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def draw(scene: Scene, seed: int) -> Image.Image:
    """The scene drawn by the routine that training never saw."""
    return make_picture(scene, "distances", random.Random(seed))


def chat_body(conversation: Conversation, seed: int = 0, **fields: Any) -> dict[str, Any]:
    """The conversation as arguments of the openai client, its pictures drawn in."""
    scenes = iter(conversation.scenes)
    messages = []
    for message in conversation.messages:
        content = message["content"]
        if isinstance(content, list):
            content = [image_part(draw(next(scenes), seed)) if part["type"] == "image" else part for part in content]
        messages.append(message | {"content": content})
    body: dict[str, Any] = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 128} | fields
    if conversation.tools:
        body["tools"] = list(conversation.tools)
    if conversation.thinking:
        body["extra_body"] = {"chat_template_kwargs": {"enable_thinking": True}}
    return body


def user(*parts: dict[str, Any] | str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [text_part(part) if isinstance(part, str) else part for part in parts]}]


def sse(response: httpx.Response) -> Iterator[Any]:
    """The documents of an event stream, which must close with [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.headers
    done = False
    for line in response.iter_lines():
        if not line.startswith("data: "):
            assert not line or line.startswith(":"), f"neither data nor comment: {line!r}"
            continue
        assert not done, f"data behind [DONE]: {line}"
        if line == "data: [DONE]":
            done = True
        else:
            yield json.loads(line.removeprefix("data: "))
    assert done, "the stream ended without [DONE]"


def tensor(spec: TensorSpec, value: Any, module: Any = tritonclient.grpc) -> Any:
    """An input of tritonclient, for gRPC or (`module`) HTTP."""
    array = np.array([value], dtype=np.object_) if spec.dtype == "BYTES" else np.asarray(value, NUMPY_DTYPES[spec.dtype])
    made = module.InferInput(spec.name, list(array.shape), spec.dtype)
    made.set_data_from_numpy(array)
    return made


@dataclass
class Stream:
    """Everything that came back for one request to a decoupled model."""

    results: list[Any] = field(default_factory=list)
    error: Exception | None = None
    num_final: int = 0


def stream(client: tritonclient.grpc.InferenceServerClient, model: str, inputs: list[Any], requests: int = 1) -> Stream:
    """Sends the request over a gRPC stream and waits for its final flag, or its error."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), stream_timeout=DEADLINE_S)
    got = Stream()
    try:
        for _ in range(requests):
            client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        while got.num_final < requests:
            result, error = answers.get(timeout=DEADLINE_S)
            if error is not None:
                got.error = error
                got.num_final += 1
                continue
            response = result.get_response()
            got.num_final += response.parameters["triton_final_response"].bool_param
            if response.outputs:
                got.results.append(result)
    finally:
        client.stop_stream(cancel_requests=True)
    return got


def probe(client: tritonclient.grpc.InferenceServerClient, model: str) -> dict[str, Any]:
    """What a stage says of itself."""
    question, answer = PROBE_TENSORS[model]
    inputs = [tensor(question, PROBE)]
    result = (
        stream(client, model, inputs).results[0] if MODELS[model].decoupled else client.infer(model, inputs, client_timeout=10)
    )
    facts: dict[str, Any] = json.loads(result.as_numpy(answer.name)[0])
    return facts
