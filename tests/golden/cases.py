"""What a case is, and the requests that stand for one: pictures and videos by name, long texts by how often they repeat."""

import base64
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.golden import videos
from tests.golden.pictures import picture

CHAT = "/v1/chat/completions/render"
COMPLETION = "/v1/completions/render"
RESPONSES = "/v1/responses/render"
MESSAGES = "/v1/messages/render"
DERENDER_CHAT = "/v1/chat/completions/derender"
DERENDER_COMPLETION = "/v1/completions/derender"

DATA_URL = "data:image/png;base64,"
VIDEO_URL = "data:video/mp4;base64,"
FRAMES_URL = "data:video/jpeg;base64,"

Body = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A request to one of `servers.SERVERS`. In `body`, {"$picture": name}, {"$video": name}, {"$frames": names} and {"$repeat": text, "times": n} stand
    for texts."""

    server: str
    name: str
    route: str
    body: Body
    calls: tuple[Body, ...] = ()
    """Of a stream: what each of its calls has besides `body`. The state is handed on from an answer to the next call."""

    @property
    def kind(self) -> str:
        """`render` or `derender`."""
        return self.route.rpartition("/")[2]


def expanded(value: Any) -> Any:
    """A body as it is sent: names of pictures become data URLs (`header` is what to put before the base64), repeats texts."""
    if isinstance(value, dict):
        if "$picture" in value:
            return value.get("header", DATA_URL) + base64.b64encode(picture(value["$picture"])).decode()
        if "$video" in value:
            return value.get("header", VIDEO_URL) + base64.b64encode(videos.video(value["$video"])).decode()
        if "$frames" in value:
            return FRAMES_URL + ",".join(base64.b64encode(picture(name)).decode() for name in value["$frames"])
        if "$base64" in value:
            return base64.b64encode(picture(value["$base64"])).decode()
        if "$repeat" in value:
            return value["$repeat"] * value["times"]
        return {key: expanded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [expanded(item) for item in value]
    return copy.deepcopy(value)


def text(value: Any) -> Body:
    """A text part."""
    return {"type": "text", "text": value}


def image(name: str, header: str | None = None, **fields: Any) -> Body:
    """A picture part."""
    url = {"$picture": name} | ({"header": header} if header else {})
    return {"type": "image_url", "image_url": {"url": url}, **fields}


def video(name: str, header: str | None = None, **fields: Any) -> Body:
    """A video part, from a file."""
    url = {"$video": name} | ({"header": header} if header else {})
    return {"type": "video_url", "video_url": {"url": url}, **fields}


def frames(*names: str) -> Body:
    """A video part whose frames are these pictures."""
    return {"type": "video_url", "video_url": {"url": {"$frames": list(names)}}}


def user(*content: Any, **fields: Any) -> Body:
    """A user message: one string, or parts."""
    return message("user", *content, **fields)


def message(role: str, *content: Any, **fields: Any) -> Body:
    """A message with one string or parts as its content."""
    plain = bool(content) and (isinstance(content[0], str) or "$repeat" in content[0])
    return {"role": role, "content": content[0] if plain else list(content), **fields}


def repeat(words: str, times: int) -> Body:
    """A long text."""
    return {"$repeat": words, "times": times}


def features_of(route: str, body: Body, calls: Sequence[Body] = ()) -> Iterator[str]:
    """What a request varies, by name: for the table of how often each was recorded."""
    yield f"route {route}"
    if "derender" in route:
        yield from _features_of_outputs(body, calls)
        body = body.get("chat_request") or body.get("completion_request") or {}
    for name, value in body.items():
        if name in ("messages", "prompt", "input", "system"):
            yield from (f"{name}: {form}" for form in sorted(set(_forms(value))))
        elif name in ("tool_choice", "reasoning_effort", "truncation_side", "mm_payload", "response_format"):
            kind = value.get("type") if isinstance(value, dict) else value
            yield f"{name}={kind}"
        elif name in ("chat_template_kwargs", "structured_outputs", "media_io_kwargs", "mm_processor_kwargs") and isinstance(
            value, dict
        ):
            yield from (f"{name}.{key}" for key in value)
        else:
            yield name


def _features_of_outputs(body: Body, calls: Sequence[Body]) -> Iterator[str]:
    """The same for what was generated."""
    yield from (f"derender {name}" for name in body)
    chunks = [call["generate_chunk"] for call in calls if "generate_chunk" in call]
    responses = chunks or body.get("generate_responses") or [body.get("generate_response") or {}]
    choices = [choice for response in responses for choice in response.get("choices", [])]
    if len({choice.get("index") for choice in choices}) > 1:
        yield "derender several choices"
    for response in responses:
        yield from (f"derender response.{name}" for name in response)
    for choice in choices:
        yield from (f"derender choice.{name}" for name in choice)
        yield f"derender finish_reason={choice.get('finish_reason')}"
    if calls:
        sizes = {len(choice["token_ids"]) for chunk in chunks[:-1] for choice in chunk["choices"]}
        yield f"derender chunks of {sizes.pop() if len(sizes) == 1 else 'several'} tokens" if sizes else "derender one chunk"
        yield from (
            "derender chunk without tokens" for chunk in chunks for choice in chunk["choices"] if not choice["token_ids"]
        )
        yield from ("derender chunk without choices" for chunk in chunks if not chunk["choices"])


def _forms(value: Any) -> Iterator[str]:
    if isinstance(value, str) or (isinstance(value, dict) and "$repeat" in value):
        yield "text"
    elif not isinstance(value, list):
        yield type(value).__name__
    elif value and all(isinstance(item, dict) and "role" in item for item in value):
        yield "several turns" if sum(item["role"] == "user" for item in value) > 1 else "one turn"
        for item in value:
            yield f"role {item['role']}"
            yield from ("tool calls",) * bool(item.get("tool_calls"))
            yield from ("reasoning",) * ("reasoning" in item or "reasoning_content" in item)
            content = item.get("content")
            yield f"content {'parts' if isinstance(content, list) else type(content).__name__}"
            for part in content if isinstance(content, list) else ():
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                yield f"part {kind}"
                url = part.get("image_url") if isinstance(part, dict) else None
                url = url.get("url") if isinstance(url, dict) else url
                if isinstance(url, dict) and "$picture" in url:
                    yield f"picture {url['$picture'].partition('-')[0]}"
                video_url = part["video_url"].get("url") if isinstance(part, dict) and "video_url" in part else None
                if isinstance(video_url, dict):
                    yield f"video of {'a file' if '$video' in video_url else 'frames'}"
                if isinstance(part, dict) and "uuid" in part:
                    yield "uuid"
    else:
        yield f"list of {len(value)} {type(value[0]).__name__ if value else ''}".strip()
