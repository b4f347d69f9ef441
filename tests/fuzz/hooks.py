"""Loaded by schemathesis: brings most random requests past what they would be refused for first.

Left alone, hardly one of those that name a model or hold tokens gets behind the checks of its body.
"""

import zlib
from typing import Any

import schemathesis

from triton_renderer.settings import load_settings

MODEL = load_settings().model_name
TOKENS = frozenset({"token_ids", "prompt_token_ids", "stop_token_ids", "allowed_token_ids"})
NUM_IDS = 256
"""Fewer than the bundled model's vocabulary has."""
TURNS = [{"role": "user", "content": "x"}]
CHOICES = [{"index": 0, "token_ids": [65, 66], "finish_reason": "stop"}]
INSTEAD_OF_NOTHING: dict[str, Any] = {
    "messages": TURNS,
    "choices": CHOICES,
    "generate_responses": [{"request_id": "r", "choices": CHOICES}],
}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions/derender": {"chat_request": {"messages": TURNS}, "prompt_token_ids": [65]},
    "/v1/responses/derender": {"prompt_token_ids": [65]},
    "/v1/messages/derender": {"prompt_token_ids": [65]},
}
"""What derender needs to know where parsers are configured, and the schema does not ask for."""


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Three bodies of four, mended."""
    if not isinstance(body, dict) or zlib.crc32(repr(body).encode(errors="replace")) % 4 == 0:
        return body
    asked = ASKED.get(context.operation.path, {})
    return mended(body | {name: value for name, value in asked.items() if body.get(name) is None})


def mended(value: Any, name: Any = None) -> Any:
    """`value`, called `name`, with the served model's name, ids of its vocabulary, and no empty list where one is refused."""
    if name == "model" and isinstance(value, str):
        return MODEL
    if name in TOKENS and isinstance(value, list):
        return [token % NUM_IDS if type(token) is int else token for token in value] or [65]
    if isinstance(value, dict):
        return {key: mended(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [mended(each) for each in value] or INSTEAD_OF_NOTHING.get(name, [])
    return value
