"""Render requests with pictures."""

from collections.abc import Iterator
from typing import Any

from tests.golden.cases import CHAT, MESSAGES, RESPONSES, Body, Case, image, message, text, user
from tests.golden.text_cases import WEATHER, call, result

SERVER = "qwen3-vl"
TRUSTING = "qwen3-vl-plain"

FILES = (
    "png", "png-rgba", "png-gray", "png-gray16", "png-rgb16", "png-bilevel", "png-palette", "png-palette-half-transparent", "jpeg",
    "jpeg-progressive", "jpeg-odd-size", "jpeg-gray", "jpeg-cmyk", "webp", "webp-alpha", "webp-animated", "gif", "gif-animated",
    "gif-transparent", "bmp", "tiff", "tiff-lzw", "tiff-cmyk", "jpeg-orientation-6", "jpeg-orientation-5", "png-orientation-3",
    "png-1x1", "png-3x5", "png-1x200", "png-47x111", "png-161x184", "png-1000x50", "jpeg-640x480", "jpeg-1920x1080", "jpeg-4000x3000",
    "noise-97x301",
)  # fmt: skip
"""One of each kind: `test_pixels.py` goes through all."""


def cases() -> Iterator[Case]:
    """All of them."""
    for number, name in enumerate(FILES):
        parts = [image(name), text(f"What is on picture {number}?")]
        yield _chat(name, [user(*(parts if number % 2 else reversed(parts)))])
    yield from _places()
    yield from _options()
    yield from _trusting()
    yield from _other_routes()


def _chat(name: str, messages: list[Body], **fields: Any) -> Case:
    return Case(SERVER, name, CHAT, {"messages": messages, **fields})


def _places() -> Iterator[Case]:
    """Where pictures stand: in any turn, between texts, several and repeated."""
    yield _chat("alone", [user(image("png-64x64"))])
    yield _chat("between-texts", [user(text("A"), image("png-64x64"), text("B"), image("png-96x96"), text("C"))])
    yield _chat("twice-the-same", [user(image("png-64x64"), image("png-64x64"), text("same?"))])
    yield _chat("same-pixels-other-file", [user(image("png"), image("webp-lossless"), image("bmp"))])
    yield _chat("in-system", [message("system", text("Look"), image("png-32x32")), user("And?")])
    yield _chat(
        "in-every-turn",
        [
            user(image("png-32x32"), text("1")),
            message("assistant", "one"),
            user(text("2"), image("jpeg")),
            message("assistant", "two"),
            user(image("png-32x32")),
        ],
    )
    yield _chat(
        "in-a-result",
        [
            user("Show me"),
            {"role": "assistant", "content": "", "tool_calls": [call('{"city": "Rome"}')]},
            result([text("Here:"), image("png-28x28")]),
        ],
        tools=[WEATHER],
    )
    yield _chat("with-tools", [user(image("png-31x33"), text("Weather there?"))], tools=[WEATHER])
    yield _chat("six", [user(*(image(f"jpeg-orientation-{turn}") for turn in range(1, 7)))])
    yield _chat("typed-token-first", [user(text("what does <|image_pad|> mean?"), image("png-64x64"))])
    yield _chat("typed-token-last", [user(image("png-64x64"), text("and <|vision_start|><|image_pad|><|vision_end|>?"))])
    yield _chat("typed-token-only", [user("what does <|image_pad|> mean?")])
    yield _chat("url-as-text", [user({"type": "image_url", "image_url": {"$picture": "png-64x64"}}, text("bare"))])
    yield _chat(
        "input-image",
        [user({"type": "input_image", "image_url": {"$picture": "png-96x96"}}, {"type": "input_text", "text": "kind"})],
    )
    yield _chat(
        "detail",
        [user({"type": "image_url", "image_url": {"url": {"$picture": "png-224x224"}, "detail": "low"}}, text("detail"))],
    )
    yield _chat("without-a-type", [user({"image_url": {"url": {"$picture": "png-15x17"}}}, text("untyped"))])
    yield _chat(
        "continued",
        [user(image("png-16x16"), text("what")), message("assistant", text("It is"))],
        add_generation_prompt=False,
        continue_final_message=True,
    )


def _options() -> Iterator[Case]:
    """What a request says about its pictures."""
    yield _chat("uuid", [user(image("png-97x101", uuid="picture-1"), text("named"))])
    yield _chat("two-uuids", [user(image("png-96x96", uuid="picture-2"), image("png-64x64", uuid="picture-3"))])
    yield _chat("payload-none", [user(image("png-64x64"), text("none"))], mm_payload="none")
    yield _chat("payload-tensors", [user(image("png-96x96"), text("tensors"))], mm_payload="tensors")
    yield _chat("no-kwargs", [user(image("png-64x64"), text("false"))], return_mm_kwargs=False)
    yield _chat("kwargs", [user(image("png-64x64"), text("true"))], return_mm_kwargs=True)
    yield _chat("payload-before-kwargs", [user(image("png-64x64"), text("both"))], return_mm_kwargs=False, mm_payload="tensors")
    yield _chat("uuid-without-payload", [user(image("png-32x32", uuid="picture-4"))], mm_payload="none")
    yield _chat("no-offsets", [user(image("png-32x32"), text("offsets"))], return_token_offsets=True)
    yield _chat("truncation-not-needed", [user(image("png-32x32"), text("short"))], truncate_prompt_tokens=1000)
    yield _chat("thinking-off", [user(image("png-32x32"), text("think"))], chat_template_kwargs={"enable_thinking": False})
    yield _chat(
        "sampling",
        [user(image("png-28x28"), text("hot"))],
        temperature=0,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    for name, header in {
        "label-jpeg": "data:image/jpeg;base64,", "label-text": "data:text/plain;base64,", "label-charset": "data:image/png;charset=utf-8;base64,",
        "no-label": "data:;base64,", "capitals": "DATA:image/png;BASE64,",
    }.items():  # fmt: skip
        yield _chat(f"header-{name}", [user(image("png-47x111", header), text(name))])


def _trusting() -> Iterator[Case]:
    """A server on which a request may change how media are read and processed; it has no parsers."""
    changes: dict[str, Body] = {
        "size": {"mm_processor_kwargs": {"size": {"shortest_edge": 4096, "longest_edge": 16384}}},
        "larger": {"mm_processor_kwargs": {"size": {"shortest_edge": 131072, "longest_edge": 262144}}},
        "pixels": {"mm_processor_kwargs": {"min_pixels": 4096, "max_pixels": 20000}},
        "no-resize": {"mm_processor_kwargs": {"do_resize": False}},
        "background": {"media_io_kwargs": {"image": {"rgba_background_color": [0, 128, 255]}}},
        "empty": {"mm_processor_kwargs": {}, "media_io_kwargs": {}},
    }
    for name, fields in changes.items():
        picture = "png-96x96" if name == "no-resize" else "png-rgba" if name == "background" else "jpeg-odd-size"
        yield Case(TRUSTING, f"trusted-{name}", CHAT, {"messages": [user(image(picture), text(name))], **fields})
    own = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
    for_text = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    yield Case(
        TRUSTING, "own-template", CHAT, {"messages": [user(text("A"), image("png-64x64"), text("B"))], "chat_template": own}
    )
    yield Case(
        TRUSTING,
        "own-template-for-text",
        CHAT,
        {"messages": [user(text("A"), image("png-64x64"), text("B"))], "chat_template": for_text},
    )
    yield Case(
        TRUSTING,
        "own-template-for-text-two",
        CHAT,
        {"messages": [user(image("png-64x64"), text("A"), image("png-96x96"), text("B"))], "chat_template": for_text},
    )


def _other_routes() -> Iterator[Case]:
    url = {"$picture": "png-64x64"}
    yield Case(SERVER, "responses-picture", RESPONSES, {"input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": "see"}]},
    ]})  # fmt: skip
    yield Case(SERVER, "messages-picture", MESSAGES, {"model": SERVER, "max_tokens": 9, "messages": [
        user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": {"$base64": "png-64x64"}}}, text("see")),
    ]})  # fmt: skip
    yield Case(SERVER, "messages-picture-url", MESSAGES, {"model": SERVER, "max_tokens": 10, "messages": [
        user(text("see"), {"type": "image", "source": {"type": "url", "url": url}}),
    ]})  # fmt: skip
