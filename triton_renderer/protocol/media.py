"""Media leave a request's JSON before it becomes a tensor: their bytes travel beside it, not as base64 within."""

import binascii
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

import pybase64

ATTACHED = "attached:"
"""`attached:3` stands for the fourth slice of the `media` tensor."""
ATTACHED_FRAMES = "attached-frames:"
"""`attached-frames:3,4` stands for a video whose frames are the fourth and the fifth slice."""

MAX_FRAMES = 4096
"""Of one video that is sent as frames."""

_URL_PARTS = ("image_url", "video_url", "audio_url")


def detach_media(body: dict[str, Any]) -> list[bytes]:
    """Takes the data URLs out of a chat or a Responses request, in place, and returns their bytes in order.

    A data URL that is not well formed stays where it is: render refuses it and says where.
    """
    attached: list[bytes] = []
    for holder in _url_holders(body):
        frames = decode_frames_url(holder["url"])
        if frames is not None:
            holder["url"] = ATTACHED_FRAMES + ",".join(map(str, range(len(attached), len(attached) + len(frames))))
            attached += frames
            continue
        data = decode_data_url(holder["url"])
        if data is not None:
            holder["url"] = f"{ATTACHED}{len(attached)}"
            attached.append(data)
    return attached


def detach_sources(body: dict[str, Any]) -> list[bytes]:
    """The same for a Messages request, whose pictures hold their base64 without a URL around it."""
    attached: list[bytes] = []
    for block in _image_blocks(body.get("messages")):
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") == "base64" and isinstance(source.get("data"), str):
            data = _decode_base64(source["data"])
            if data is not None:
                block["source"] = {"type": "url", "url": f"{ATTACHED}{len(attached)}"}
                attached.append(data)
    return attached


def decode_data_url(url: str) -> bytes | None:
    """The bytes of a base64 data URL, whatever media type and parameters it declares; None where it is malformed."""
    header, comma, payload = url.partition(",")
    if not comma or header[:5].lower() != "data:" or header.rpartition(";")[2].strip().lower() != "base64":
        return None
    return _decode_base64(payload)


def is_frames_url(url: str) -> bool:
    """A data URL of a video whose frames are sent as pictures: `data:video/jpeg;base64,FRAME,FRAME,…`."""
    return url[:5].lower() == "data:" and url[5:].partition(",")[0].partition(";")[0].strip().lower() == "video/jpeg"


def decode_frames_url(url: str) -> list[bytes] | None:
    """The bytes of each frame of such a URL; None for another one, and where it is malformed or has more than MAX_FRAMES."""
    header, _, payload = url.partition(",")
    if not is_frames_url(url) or payload.count(",") >= MAX_FRAMES or header.rpartition(";")[2].strip().lower() != "base64":
        return None
    frames = [_decode_base64(frame) for frame in payload.split(",")]
    return None if None in frames else [frame for frame in frames if frame is not None]


def _decode_base64(payload: str) -> bytes | None:
    try:
        encoded = payload.encode("ascii")
        if b"%" in encoded:
            encoded = unquote_to_bytes(encoded)
        return pybase64.b64decode(b"".join(encoded.split()), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None


def _url_holders(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every {"url": "data:…"} of the messages' parts; a bare string is first made such a map."""
    for part in _parts(body.get("messages")) + _parts(body.get("input")):
        for key in _URL_PARTS:
            value = part.get(key)
            if isinstance(value, str):
                value = part[key] = {"url": value}
            if isinstance(value, dict) and isinstance(value.get("url"), str) and value["url"][:5].lower() == "data:":
                yield value


def _image_blocks(messages: Any) -> Iterator[dict[str, Any]]:
    """The pictures of all turns, and those within the results of tools."""
    for block in _parts(messages):
        if block.get("type") == "image":
            yield block
        elif block.get("type") == "tool_result":
            yield from _image_blocks([block])


def _parts(messages: Any) -> list[dict[str, Any]]:
    """The parts of the contents of `messages`, and of the outputs of calls."""
    held = [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
    lists = [message.get(key) for message in held for key in ("content", "output")]
    return [part for parts in lists if isinstance(parts, list) for part in parts if isinstance(part, dict)]
