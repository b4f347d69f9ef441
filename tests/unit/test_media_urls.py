"""Data URLs are taken out of a request's JSON, and their bytes are the ones that were in them."""

import base64
import copy
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from triton_renderer.protocol.media import ATTACHED, decode_data_url, detach_media, detach_sources


def url(data: bytes, header: str = "data:image/png;base64") -> str:
    return f"{header},{base64.b64encode(data).decode()}"


def body(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def image(address: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}


# Reading


HEADERS = ["data:;base64", "data:image/png;base64", "DATA:Image/PNG;BASE64", "data:a/b;charset=utf-8;base64", "data:x; base64 "]


@given(st.binary(max_size=300), st.sampled_from(HEADERS))
def test_a_data_url_gives_its_bytes(data: bytes, header: str) -> None:
    text = base64.b64encode(data).decode()
    assert decode_data_url(f"{header},{text}") == data
    assert decode_data_url(f"{header},{quote(text, safe='')}") == data
    assert decode_data_url(f"{header},{chr(10).join(text)}\r\n ") == data


@pytest.mark.parametrize(
    "text",
    [
        "", "data:", "data:,", "data:image/png;base64", "data:image/png,AAAA", "data:base64,AAAA", "data:image/png;base64;x,AAAA",
        "data:;base64,A", "data:;base64,AA", "data:;base64,AAA", "data:;base64,A===", "data:;base64,AA==AA==",
        "data:;base64,@@@@", "data:;base64,AA%", "data:;base64,AA%3", "data:;base64,ÄÄÄÄ", "data:;base64,AAAA\x00", "data:;base64,-_-_",
        "http://x/;base64,AAAA", "xdata:;base64,AAAA", "datа:;base64,AAAA",
    ],
)  # fmt: skip
def test_what_is_no_base64_data_url_gives_nothing(text: str) -> None:
    assert decode_data_url(text) is None


@given(st.text(max_size=60))
def test_any_text_gives_bytes_or_nothing(text: str) -> None:
    for candidate in (text, f"data:{text}", f"data:;base64,{text}"):
        assert isinstance(decode_data_url(candidate), bytes | None)


# Taking out


def test_bytes_leave_in_order_and_numbers_stay() -> None:
    document = body(image(url(b"first")), {"type": "text", "text": url(b"no")}, image(url(b"second")))
    document["messages"].append({"role": "user", "content": [image(url(b"third"))]})
    assert detach_media(document) == [b"first", b"second", b"third"]
    urls = [part["image_url"]["url"] for message in document["messages"] for part in message["content"] if "image_url" in part]
    assert urls == [f"{ATTACHED}{index}" for index in range(3)]
    assert document["messages"][0]["content"][1]["text"] == url(b"no")


def test_empty_bytes_are_attached_too() -> None:
    document = body(image("data:;base64,"))
    assert detach_media(document) == [b""]


def test_a_bare_string_becomes_an_object() -> None:
    document = body({"type": "image_url", "image_url": url(b"x")}, {"type": "input_image", "image_url": "https://host/x.png"})
    assert detach_media(document) == [b"x"]
    assert document["messages"][0]["content"][0]["image_url"] == {"url": "attached:0"}
    assert document["messages"][0]["content"][1]["image_url"] == {"url": "https://host/x.png"}


def test_other_fields_of_a_part_stay() -> None:
    document = body({"type": "image_url", "image_url": {"url": url(b"x"), "detail": "high"}, "uuid": "cat"})
    detach_media(document)
    expected = {"type": "image_url", "image_url": {"url": "attached:0", "detail": "high"}, "uuid": "cat"}
    assert document["messages"][0]["content"][0] == expected


@pytest.mark.parametrize("broken", ["data:image/png,AAAA", "data:;base64,@", "data:nothing", "DATA:;base64,A"])
def test_a_broken_data_url_stays_for_render_to_refuse(broken: str) -> None:
    document = body(image(broken), image(url(b"x")))
    assert detach_media(document) == [b"x"]
    assert document["messages"][0]["content"][0]["image_url"]["url"] == broken


@pytest.mark.parametrize("address", ["https://host/x.png", "attached:0", "attached:9", "file:///etc/passwd", None, 5, [], {}])
def test_everything_else_stays_as_it_is(address: Any) -> None:
    document = body(image(address))
    before = copy.deepcopy(document)
    assert detach_media(document) == []
    assert document == before


def test_what_a_client_calls_attached_is_only_its_own() -> None:
    document = body(image("attached:0"), image(url(b"own")))
    assert detach_media(document) == [b"own"]


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.sampled_from([url(b"x"), "data:,", "attached:0"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["messages", "content", "image_url", "video_url", "audio_url", "url", "type", "x"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@hypothesis_settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["messages", "x"]), JSON, max_size=2))
def test_no_document_is_an_accident(document: dict[str, Any]) -> None:
    attached = detach_media(document)
    text = json.dumps(document)
    assert all(f'"{ATTACHED}{index}"' in text for index in range(len(attached)))


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_putting_the_bytes_back_gives_the_request(media: list[bytes]) -> None:
    document = body(*(image(url(data)) for data in media))
    original = copy.deepcopy(document)
    attached = detach_media(document)
    for part in document["messages"][0]["content"]:
        index = int(part["image_url"]["url"].removeprefix(ATTACHED))
        part["image_url"]["url"] = url(attached[index])
    assert document == original


# Of the other APIs


def test_pictures_of_a_responses_request_are_in_messages_and_in_outputs_of_calls() -> None:
    def picture(data: bytes) -> dict[str, Any]:
        return {"type": "input_image", "image_url": url(data), "detail": "auto"}

    output = {"type": "function_call_output", "call_id": "a", "output": [picture(b"two")]}
    request = {"input": [{"role": "user", "content": [picture(b"one")]}, output]}
    assert detach_media(request) == [b"one", b"two"]
    message, result = request["input"]
    assert message["content"] == [{"type": "input_image", "image_url": {"url": f"{ATTACHED}0"}, "detail": "auto"}]
    assert result["output"][0]["image_url"] == {"url": f"{ATTACHED}1"}
    assert detach_media({"input": "a text"}) == []


def source(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def test_pictures_of_a_messages_request_are_in_turns_and_in_results_of_tools() -> None:
    one, two = (base64.b64encode(data).decode() for data in (b"one", b"two"))
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}, source(two)]}
    request = body(source(one), result)
    assert detach_sources(request) == [b"one", b"two"]
    first, second = request["messages"][0]["content"]
    assert first == {"type": "image", "source": {"type": "url", "url": f"{ATTACHED}0"}}
    assert second["content"][1] == {"type": "image", "source": {"type": "url", "url": f"{ATTACHED}1"}}


@pytest.mark.parametrize(
    "part",
    [source("not base64!"), {"type": "image"}, {"type": "image", "source": {"type": "url", "url": "data:,x"}}, "text", None, 5],
    ids=str,
)
def test_what_holds_no_base64_stays_as_it_is(part: Any) -> None:
    request = body(part)
    before = copy.deepcopy(request)
    assert detach_sources(request) == []
    assert request == before


@pytest.mark.parametrize("document", [{}, {"messages": 5}, {"messages": [5]}, {"messages": [{"content": "x"}]}], ids=str)
def test_no_messages_request_is_an_accident(document: dict[str, Any]) -> None:
    assert detach_sources(document) == []
