"""Where a picture may come from, and what is said where it cannot be had."""

import base64
from typing import Any

import pytest

from tests.unit.render.helpers import chat, chat_job, data_url, encoded, image_part, noise, png, settings, text_part, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.render import Rendered, Renderer
from triton_renderer.settings import BUNDLED_MODEL

PICTURE = png()


def by_url(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def refusal(renderer: Renderer, url: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(renderer, user("first"), user(text_part("look"), by_url(url)))
    return caught.value


@pytest.fixture(scope="module")
def expected(renderer: Renderer) -> Rendered:
    return chat(renderer, user(image_part(PICTURE)))


@pytest.mark.parametrize(
    "header",
    [
        "data:image/png;base64",
        "data:;base64",
        "data:image/png;charset=utf-8;base64",
        "DATA:IMAGE/PNG;BASE64",
        "data:text/plain;base64",
        "data:image/jpeg;name=a%2Cb.jpg;base64",
    ],
)
def test_every_legal_data_url_is_read_whatever_it_declares(renderer: Renderer, expected: Rendered, header: str) -> None:
    assert chat(renderer, user(by_url(data_url(PICTURE, header)))).items == expected.items


def test_a_url_may_stand_without_its_object(renderer: Renderer, expected: Rendered) -> None:
    assert chat(renderer, user({"type": "image_url", "image_url": data_url(PICTURE)})).items == expected.items
    assert chat(renderer, user({"type": "input_image", "image_url": data_url(PICTURE)})).items == expected.items


def test_base64_may_be_wrapped_or_escaped(renderer: Renderer, expected: Rendered) -> None:
    text = base64.b64encode(PICTURE).decode()
    wrapped = "\r\n".join(text[start : start + 76] for start in range(0, len(text), 76))
    escaped = text.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    for payload in (wrapped, escaped):
        assert chat(renderer, user(by_url(f"data:image/png;base64,{payload}"))).items == expected.items


def test_a_large_data_url_is_read(renderer: Renderer) -> None:
    data = encoded(noise(700, 500))
    assert len(data) > 1_000_000
    assert chat(renderer, user(image_part(data))).items


def test_attachments_are_read_by_their_number(renderer: Renderer) -> None:
    pictures = [png(seed=1), png(seed=2)]
    job = chat_job(user(by_url("attached:1"), by_url("attached:0")))
    attached = renderer.render(job, [memoryview(data) for data in pictures])
    inline = chat(renderer, user(*(image_part(data) for data in reversed(pictures))))
    assert attached.items == inline.items
    assert attached.context.features == inline.context.features


@pytest.mark.parametrize("number", ["1", "-1", "+0", "0x0", "²", "", " 0", "99999999999999999999", "0.0"])
def test_an_attachment_that_is_not_there_is_refused(renderer: Renderer, number: str) -> None:
    with pytest.raises(InvalidRequest, match="no attachment") as caught:
        renderer.render(chat_job(user(by_url(f"attached:{number}"))), [memoryview(PICTURE)])
    assert caught.value.param == "messages.0.content.0"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64", "has no comma"),
        ("data:image/png,abc", "only data URLs in base64"),
        ("data:,", "only data URLs in base64"),
        ("data:image/png;base64,@@@", "base64 is not valid"),
        ("data:image/png;base64,iVBORw0", "base64 is not valid"),
        ("data:image/png;base64,ïVBO", "base64 is not valid"),
        ("data:image/png;base64,", "has no bytes"),
        (data_url(b"hello world"), "not a picture"),
        (data_url(PICTURE[:-128]), "cut off or damaged"),
        (data_url(encoded(noise(64, 64), "JPEG")[:-128]), "cut off or damaged"),
        ("file:///etc/passwd", "reads no files of its own"),
        ("FILE:///etc/passwd", "reads no files of its own"),
        ("/etc/passwd", "must be http, https, file, or a data URL"),
        ("https://example.com/x.png", "does not fetch media from example.com"),
        ("attached-frames:0,1", "frames of a video are not a picture"),
    ],
)
def test_what_is_wrong_and_with_which_part_is_said(renderer: Renderer, url: str, message: str) -> None:
    error = refusal(renderer, url)
    assert message in error.message
    assert error.param == "messages.1.content.1"
    assert error.message.startswith("messages.1.content.1: ")
    assert error.status == 400
    assert "Traceback" not in error.message
    assert str(BUNDLED_MODEL.parent) not in error.message


def test_pictures_are_counted() -> None:
    renderer = Renderer.load(settings(max_images=2))
    assert len(chat(renderer, user(image_part(), image_part())).items) == 4
    with pytest.raises(InvalidRequest, match="3 pictures are more than the limit of 2"):
        chat(renderer, user(image_part(), image_part()), user(image_part()))


def test_the_pixel_limit_holds_for_each_picture_and_for_all_together() -> None:
    renderer = Renderer.load(settings(max_image_pixels=10_000))
    pictures = [image_part(png(100, 90, seed)) for seed in range(5)]
    assert len(chat(renderer, user(*pictures[:2])).items) == 4
    with pytest.raises(InvalidRequest, match="larger than the limit of 10000") as caught:
        chat(renderer, user(image_part(png(50, 50, 9)), image_part(png(101, 100))))
    assert caught.value.param == "messages.0.content.1"
    fresh = Renderer.load(settings(max_image_pixels=10_000))
    with pytest.raises(InvalidRequest, match="20000 pixels together") as caught:
        chat(fresh, user(*pictures))
    assert caught.value.param == "messages.0.content.2"


def test_a_request_that_is_too_large_altogether_is_refused_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    monkeypatch.setattr("triton_renderer.render.media_renderer.decode", decoded.append)
    fresh = Renderer.load(settings(max_image_pixels=10_000))
    with pytest.raises(InvalidRequest, match="pixels together"):
        chat(fresh, user(*[image_part(png(100, 90, seed)) for seed in range(3)]))
    assert decoded == []


def test_the_same_file_twice_in_a_request_is_rendered_once(renderer: Renderer) -> None:
    part = image_part(png(64, 96, 4711))
    items = chat(renderer, user(part, part)).items
    assert items[:2] == items[2:]


def test_a_bad_picture_does_not_harm_the_next_request(renderer: Renderer, expected: Rendered) -> None:
    refusal(renderer, data_url(b"no picture"))
    assert chat(renderer, user(image_part(PICTURE))).items == expected.items
