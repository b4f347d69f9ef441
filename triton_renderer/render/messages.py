"""From a request's messages to what the chat template takes, and the pictures and videos among them, in their order."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_renderer.errors import BadBody, InvalidRequest
from triton_renderer.protocol.openai import ChatMessage
from triton_renderer.render.item_cache import Modality

MAX_UUID_LENGTH = 256
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
_MEDIA_PARTS: dict[str, tuple[Modality, str]] = {
    "image_url": ("image", "image_url"),
    "input_image": ("image", "image_url"),
    "video_url": ("video", "video_url"),
}
"""Parts with a medium: its modality, and the field with its URL."""
_OTHER_MEDIA = {
    **dict.fromkeys(("audio_url", "input_audio", "audio_embeds"), "this server takes no sound"),
    **dict.fromkeys(("video", "video_embeds"), "send the video itself, as video_url"),
    "image_embeds": "send the picture itself",
    "file": "send its pictures and its text",
}
"""Parts that are refused, with a word on what to do instead."""

TemplateMessage = dict[str, Any]


@dataclass(frozen=True)
class ContentFormat:
    """What the chat template takes as a message's content."""

    takes_lists: bool
    """A list of parts, else one string."""
    places: Mapping[Modality, dict[str, Any]]
    """The part that stands for a picture or a video, a text part where the template places none itself; of those there are."""


@dataclass(frozen=True)
class MediaPart:
    """A picture or video in a message: where its bytes are, and the client's name for it; one of the two may be missing."""

    modality: Modality
    url: str | None
    uuid: str | None
    param: str
    """Its place in the request."""


@dataclass(frozen=True)
class Conversation:
    """Messages for the template. Nothing of a client's parts is passed on but their text."""

    messages: list[TemplateMessage]
    media: list[MediaPart]


def read_conversation(messages: Sequence[ChatMessage], content_format: ContentFormat) -> Conversation:
    """Raises InvalidRequest for parts and tool calls of a form that is not known, or of a medium that the model lacks."""
    media: list[MediaPart] = []
    return Conversation(
        [_read_message(message, f"messages.{index}", content_format, media) for index, message in enumerate(messages)],
        media,
    )


def systems_first(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """For templates that do not know the role: developer messages become system messages, all of them one at the start."""
    if not any(message["role"] == "developer" for message in messages):
        return list(messages)
    instructions = [message for message in messages if message["role"] in ("system", "developer")]
    texts = [text_of(message["content"]) for message in instructions]
    others = [message for message in messages if message["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *others]


def _read_message(message: ChatMessage, param: str, content_format: ContentFormat, media: list[MediaPart]) -> TemplateMessage:
    # Fields that are not ours are the template's to know.
    read: TemplateMessage = {"role": message.role, **(message.model_extra or {})}
    read["content"] = _read_content(message, param, content_format, media)
    calls = read.pop("tool_calls", None)
    reasoning = next((read[key] for key in ("reasoning", "reasoning_content") if read.get(key) is not None), None)
    read = {name: value for name, value in read.items() if name not in ("reasoning", "reasoning_content")}
    if message.role == "assistant":
        if calls:
            read["tool_calls"] = _read_tool_calls(calls, f"{param}.tool_calls")
        if reasoning is not None:
            read["reasoning"] = read["reasoning_content"] = reasoning
    return read


def _read_content(message: ChatMessage, param: str, content_format: ContentFormat, media: list[MediaPart]) -> Any:
    content = message.content if message.content is not None else []
    if message.content is None and "content" in message.model_fields_set and message.role != "assistant":
        raise BadBody(f"{param}.content: a text or a list of parts is expected, not null", f"{param}.content")
    if isinstance(content, dict):
        raise InvalidRequest(f"{param}.content: a text or a list of parts is expected", f"{param}.content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    read: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        where = f"{param}.content.{index}"
        text = _text_of_part(part, where)
        if text is not None:
            read.append({"type": "text", "text": text})
        elif isinstance(part, dict) and (kind := _kind(part)) in _MEDIA_PARTS:
            modality, field = _MEDIA_PARTS[kind]
            if modality not in content_format.places:
                takes = "text and pictures" if content_format.places else "text"
                raise InvalidRequest(f"{where}: {kind} is not supported by this model, which takes {takes} only", where)
            media.append(_read_media(part, modality, field, where))
            read.append(content_format.places[modality])
    if content_format.takes_lists and not (message.role == "tool" and all(part["type"] == "text" for part in read)):
        return read
    # Strings are what a template for strings takes, and what most templates take as the result of a tool.
    return text_of(read)


def _kind(part: dict[str, Any]) -> Any:
    """The type of a part; one that has none but a picture or a video is one of those."""
    return part.get("type", next((name for name in ("image_url", "video_url") if name in part), None))


def _text_of_part(part: dict[str, Any] | str, param: str) -> str | None:
    """The text of a part; None for a medium, and for a text part whose text is null, which is left out."""
    if isinstance(part, str):
        return part
    kind = _kind(part)
    if isinstance(kind, str) and kind in _MEDIA_PARTS:
        return None
    if isinstance(kind, str) and kind in _OTHER_MEDIA:
        raise InvalidRequest(f"{param}: {kind} is not supported: {_OTHER_MEDIA[kind]}", param)
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{param}.type: {kind!r} is not one of {', '.join([*_TEXT_PARTS, *_MEDIA_PARTS])}", f"{param}.type"
        )
    text = part.get(_TEXT_PARTS[kind])
    if text is not None and not isinstance(text, str):
        raise InvalidRequest(f"{param}.{_TEXT_PARTS[kind]}: a text is expected", f"{param}.{_TEXT_PARTS[kind]}")
    return text


def _read_media(part: dict[str, Any], modality: Modality, field: str, param: str) -> MediaPart:
    medium = part.get(field)
    url = medium.get("url") if isinstance(medium, dict) else medium
    uuid = part.get("uuid")
    if isinstance(uuid, int) and not isinstance(uuid, bool):
        uuid = str(uuid)
    if uuid is not None and not (isinstance(uuid, str) and 0 < len(uuid) <= MAX_UUID_LENGTH):
        raise InvalidRequest(f"{param}.uuid: a text of 1 to {MAX_UUID_LENGTH} characters is expected", f"{param}.uuid")
    if url is not None and not isinstance(url, str):
        raise InvalidRequest(f"{param}.{field}.url: a text is expected", f"{param}.{field}.url")
    if url is None and uuid is None:
        raise InvalidRequest(f"{param}.{field}: a URL is expected", f"{param}.{field}")
    return MediaPart(modality, url, uuid, param)


def _read_tool_calls(calls: Any, param: str) -> list[dict[str, Any]]:
    """Calls of earlier turns, with their arguments as objects, which is what templates take."""
    if not isinstance(calls, list):
        raise BadBody(f"{param}: a list is expected", param)
    read = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) and call.get("type", "function") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            where = f"{param}.{index}"
            raise BadBody(f"{where}: a call of type function with a name is expected", where)
        read.append({**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}})
    return read


def _arguments(arguments: Any) -> dict[str, Any]:
    """What a model once wrote may be broken; refusing it would end the conversation for good, so it counts as nothing."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
            json.dumps(arguments, ensure_ascii=False).encode()  # half a surrogate pair: no prompt can have it
        except (ValueError, RecursionError):
            return {}
    return arguments if isinstance(arguments, dict) else {}


def text_of(content: str | list[dict[str, Any]]) -> str:
    """The texts of a read message's content, one a line; pictures, videos and empty texts are left out."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("text"))
