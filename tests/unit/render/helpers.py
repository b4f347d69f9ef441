"""Pictures, requests and model folders for the tests of render."""

import base64
import io
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoImageProcessor

from triton_renderer.protocol.stages import RenderJob
from triton_renderer.render import Rendered, Renderer
from triton_renderer.settings import BUNDLED_MODEL, Settings, load_settings

START, END, PAD = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"
WITHOUT_WEIGHTS = shutil.ignore_patterns("*.safetensors")


def settings(**overrides: Any) -> Settings:
    return load_settings(**{"max_model_len": 600} | overrides)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def png(width: int = 96, height: int = 96, seed: int = 0) -> bytes:
    return encoded(noise(width, height, seed))


@cache
def num_tokens(width: int = 96, height: int = 96) -> int:
    """How many tokens transformers' own processor gives a picture of that size for the bundled model."""
    processor = AutoImageProcessor.from_pretrained(BUNDLED_MODEL)
    grid = processor(Image.new("RGB", (width, height)), return_tensors="np")["image_grid_thw"][0]
    return int(grid.prod()) // processor.merge_size**2


def data_url(data: bytes, header: str = "data:image/png;base64") -> str:
    return f"{header},{base64.b64encode(data).decode()}"


def image_part(data: bytes | None = None, **further: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(png() if data is None else data)}, **further}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if content and isinstance(content[0], str) else list(content)}


def chat_job(*messages: dict[str, Any], for_generate: bool = False, **fields: Any) -> RenderJob:
    body = {"messages": list(messages), **fields}
    return RenderJob(kind="chat", id="internal", external_id="chatcmpl-1", body=body, created=7, for_generate=for_generate)


def completion_job(prompt: Any, for_generate: bool = False, **fields: Any) -> RenderJob:
    body = {"prompt": prompt, **fields}
    return RenderJob(kind="completion", id="internal", external_id="cmpl-1", body=body, for_generate=for_generate)


def chat(renderer: Renderer, *messages: dict[str, Any], for_generate: bool = False, **fields: Any) -> Rendered:
    return renderer.render(chat_job(*messages, for_generate=for_generate, **fields))


def shown(width: int = 96, height: int = 96) -> str:
    """A picture of that size as `text_of` shows it."""
    return f"<|vision_start|>{PAD}*{num_tokens(width, height)}<|vision_end|>"


def text_of(renderer: Renderer, rendered: Rendered) -> str:
    """The prompt's text, each picture's placeholder tokens counted: `<|image_pad|>*9`."""
    tokenizer = renderer._model.tokenizer
    text, begin = "", 0
    for feature in rendered.context.features:
        span = feature.placeholder
        text += f"{tokenizer.decode(rendered.token_ids[begin : span.offset])}{PAD}*{span.length}"
        begin = span.offset + span.length
    return text + tokenizer.decode(rendered.token_ids[begin:])


def model_folder(folder: Path, *, template: str | None = None, **files: dict[str, Any] | str) -> Path:
    """A copy of the bundled model without its weights, with another chat template or other files."""
    shutil.copytree(BUNDLED_MODEL, folder, ignore=WITHOUT_WEIGHTS)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    for name, content in files.items():
        path = folder / f"{name}.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def edited(name: str, **changes: Any) -> dict[str, Any]:
    """A JSON file of the bundled model with these top-level values changed."""
    document: dict[str, Any] = json.loads((BUNDLED_MODEL / f"{name}.json").read_text(encoding="utf-8"))
    return document | changes
