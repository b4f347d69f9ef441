"""A first request to paste."""

import base64
import io
import json
import shlex
from typing import Any

from PIL import Image, ImageDraw

from triton_renderer.settings import Settings


def example_curl(settings: Settings, url: str) -> str:
    """A curl command that asks the served model a question: about a picture where the model is the bundled one.

    A server that only renders is asked for the question's tokens.
    """
    content: Any = "What is the capital of France?"
    if settings.is_bundled_model:
        content = [
            {"type": "image_url", "image_url": {"url": picture()}},
            {"type": "text", "text": "What is in this picture?"},
        ]
    body = {"model": settings.model_name, "messages": [{"role": "user", "content": content}]}
    key = ' -H "Authorization: Bearer $API_KEY"' if settings.api_key else ""
    data = shlex.quote(json.dumps(body, separators=(",", ":")))
    route = "/v1/chat/completions/render" if settings.role == "render" else "/v1/chat/completions"
    return f"curl -s {url}{route}{key} -H 'Content-Type: application/json' -d {data}"


def picture() -> str:
    """A red circle on white, as a data URL of some 300 characters."""
    image = Image.new("P", (96, 96))
    image.putpalette([255, 255, 255, 220, 30, 30])
    ImageDraw.Draw(image).ellipse((24, 24, 72, 72), fill=1)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True, bits=1)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
