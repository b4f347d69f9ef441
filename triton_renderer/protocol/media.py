"""Data URLs leave a request's JSON before it becomes a tensor: their bytes travel beside it, not as base64 within."""

import binascii
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

ATTACHED = "attached:"
"""`attached:3` stands for the fourth slice of the `media` tensor."""

_URL_PARTS = ("image_url", "video_url", "audio_url")


def detach_media(body: dict[str, Any]) -> list[bytes]:
    """Takes the data URLs out of a chat request's messages, in place, and returns their bytes in order.

    A data URL that is not well formed stays where it is: render refuses it and says where.
    """
    attached: list[bytes] = []
    for holder in _url_holders(body):
        data = decode_data_url(holder["url"])
        if data is not None:
            holder["url"] = f"{ATTACHED}{len(attached)}"
            attached.append(data)
    return attached


def decode_data_url(url: str) -> bytes | None:
    """The bytes of a base64 data URL, whatever media type and parameters it declares; None where it is malformed."""
    header, comma, payload = url.partition(",")
    if not comma or header[:5].lower() != "data:" or header.rpartition(";")[2].strip().lower() != "base64":
        return None
    try:
        encoded = payload.encode("ascii")
        if b"%" in encoded:
            encoded = unquote_to_bytes(encoded)
        return binascii.a2b_base64(b"".join(encoded.split()), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        return None


def _url_holders(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every {"url": "data:…"} of the messages' parts; a bare string is first made such a map."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            if not isinstance(part, dict):
                continue
            for key in _URL_PARTS:
                value = part.get(key)
                if isinstance(value, str):
                    value = part[key] = {"url": value}
                if isinstance(value, dict) and isinstance(value.get("url"), str) and value["url"][:5].lower() == "data:":
                    yield value
