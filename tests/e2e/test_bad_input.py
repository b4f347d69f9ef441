"""Bad requests over HTTP: the right status, a message that says what is wrong, and a server that goes on."""

import base64
import copy
import io
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.asking import MODEL, data_url, image_part, noise, png, sse, user
from triton_renderer.settings import BUNDLED_MODEL
from triton_renderer.wire import decode_item, encode_item

CHAT = "/v1/chat/completions"
VOCAB_SIZE = json.loads((BUNDLED_MODEL / "config.json").read_text())["text_config"]["vocab_size"]


@pytest.fixture(autouse=True)
def _server_goes_on(http: httpx.Client) -> Iterator[None]:
    yield
    answer = http.post(CHAT, json={"model": MODEL, "messages": user("Hello"), "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    assert http.get("/health").status_code == 200


def refused(answer: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == status
    for word in words:
        assert word in error["message"], error
    assert "Traceback" not in answer.text
    assert "/site-packages/" not in answer.text
    return error


def chat(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(CHAT, json={"model": MODEL, "messages": user("Hello"), "max_tokens": 2} | fields)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[1]", b"\xff\xfe", b'{"messages": NaN}', b"[" * 5000])
def test_malformed_json(http: httpx.Client, content: bytes) -> None:
    refused(http.post(CHAT, content=content, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, ["messages"]),
        ({"messages": "hello"}, ["messages"]),
        ({"messages": [{"content": "no role"}]}, ["role"]),
        ({"temperature": "hot"}, ["temperature"]),
        ({"temperature": -1}, ["temperature"]),
        ({"top_p": 2}, ["top_p"]),
        ({"n": 0}, ["n"]),
        ({"n": 1000}, ["n"]),
        ({"max_tokens": 0}, ["max_tokens"]),
        ({"max_tokens": -5}, ["max_tokens"]),
        ({"max_tokens": 10**9}, ["max_tokens"]),
        ({"stop": [1]}, ["stop"]),
        ({"stop_token_ids": [10**9]}, ["stop_token_ids"]),
        ({"stop_token_ids": [VOCAB_SIZE]}, ["stop_token_ids"]),
        ({"logit_bias": {"999999": 1}}, ["logit_bias"]),
        ({"logit_bias": {str(VOCAB_SIZE): 1}}, ["logit_bias"]),
        ({"logit_bias": {"x": 1}}, ["logit_bias"]),
        ({"top_logprobs": 500, "logprobs": True}, ["top_logprobs"]),
        ({"stream": "maybe"}, ["stream"]),
        ({"tools": [{"type": "function"}]}, ["tools"]),
        ({"chat_template": "{{ messages }}"}, ["chat_template"]),
        ({"bad_words": [""]}, ["bad_words"]),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": 5}}}},
            ["response_format"],
        ),
        ({"structured_outputs": {"regex": "("}}, ["structured_outputs"]),
        ({"tool_choice": "required"}, ["tool_choice"]),
        ({"messages": user("word " * 20_000)}, ["8192"]),
        ({"messages": user({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}})}, ["video"]),
        ({"messages": user({"type": "nonsense"})}, ["nonsense"]),
    ],
)
def test_wrong_fields(http: httpx.Client, fields: dict[str, Any], words: list[str]) -> None:
    refused(chat(http, **fields), 400, *words)


def test_unknown_model_is_404(http: httpx.Client) -> None:
    refused(chat(http, model="nobody"), 404, "`nobody`")
    refused(http.post("/v1/completions", json={"model": "nobody", "prompt": "x"}), 404)


def test_unknown_route_and_method(http: httpx.Client) -> None:
    refused(http.get("/v1/nothing"), 404)
    refused(http.get(CHAT), 405)


def test_null_means_false_for_stream(http: httpx.Client) -> None:
    assert chat(http, stream=None).json()["object"] == "chat.completion"


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that declares a huge picture."""

    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", zlib.compress(b"\0" * 5000)) + block(b"IEND", b"")


def jpeg() -> bytes:
    buffer = io.BytesIO()
    noise(3).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("url", "word"),
    [
        (data_url(jpeg()[:-128], "image/jpeg"), ""),
        (data_url(b""), ""),
        (data_url(b"just text"), ""),
        (data_url(bomb(20_000, 20_000)), "pixels"),
        (data_url(png(noise(1, 402, 1))), "200"),
        ("data:image/png;base64,@@@@", "base64"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64", ""),
        ("attached:7", ""),
        ("file:///etc/passwd", ""),
        ("/etc/passwd", ""),
        ("http://example.com/a.png", "does not fetch"),
        ("", ""),
    ],
)
def test_bad_picture_says_which_part(http: httpx.Client, url: str, word: str) -> None:
    messages = user("first", image_part(noise(1)), {"type": "image_url", "image_url": {"url": url}})
    error = refused(chat(http, messages=messages), 400, word)
    assert error["param"] == "messages.0.content.2"


def test_bad_picture_is_the_same_error_in_a_stream(http: httpx.Client) -> None:
    messages = user({"type": "image_url", "image_url": {"url": data_url(b"text")}})
    refused(chat(http, messages=messages, stream=True), 400)


def test_internal_address_is_never_asked(http: httpx.Client) -> None:
    hits = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hits.append(self.path)
            self.send_response(200)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433"):
            url = f"http://{host}:{server.server_port}/a.png"
            refused(chat(http, messages=user({"type": "image_url", "image_url": {"url": url}})), 400)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert hits == []


# What render answers, edited by somebody: /inference/v1/generate takes it for hostile.


@pytest.fixture(scope="module")
def rendered(http: httpx.Client) -> dict[str, Any]:
    body = {"model": MODEL, "messages": user(image_part(noise(9)), "How many squares?"), "temperature": 0, "max_tokens": 4}
    answer = http.post(f"{CHAT}/render", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_render_answer_is_plain_json_and_goes_to_generate_unchanged(http: httpx.Client, rendered: dict[str, Any]) -> None:
    assert json.loads(json.dumps(rendered)) == rendered
    assert all(isinstance(token, int) for token in rendered["token_ids"])
    features = rendered["features"]
    assert (
        len(features["mm_hashes"]["image"])
        == len(features["mm_placeholders"]["image"])
        == len(features["kwargs_data"]["image"])
        == 1
    )
    answer = http.post("/inference/v1/generate", json=rendered)
    assert answer.status_code == 200, answer.text
    chat_answer = chat(
        http, messages=user(image_part(noise(9)), "How many squares?"), temperature=0, max_tokens=4, return_token_ids=True
    )
    assert answer.json()["choices"][0]["token_ids"] == chat_answer.json()["choices"][0]["token_ids"]
    assert answer.json()["ec_transfer_params"]["ec_items"]


def test_a_render_answer_of_a_stream_goes_to_generate_unchanged_and_streams(
    http: httpx.Client, rendered: dict[str, Any]
) -> None:
    messages = user(image_part(noise(9)), "How many squares?")
    asked = {"messages": messages, "temperature": 0, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    streamed = http.post(f"{CHAT}/render", json={"model": MODEL} | asked)
    assert streamed.status_code == 200, streamed.text
    assert streamed.json()["token_ids"] == rendered["token_ids"]
    with http.stream("POST", "/inference/v1/generate", json=streamed.json()) as response:
        *chunks, usage = sse(response)
    whole = http.post("/inference/v1/generate", json=rendered).json()
    tokens = [token for chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"]]
    assert tokens == whole["choices"][0]["token_ids"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], len(tokens))


def edited(rendered: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(rendered)
    *parents, last = path.split(".")
    place: Any = document
    for key in parents:
        place = place[int(key) if key.isdigit() else key]
    place[int(last) if last.isdigit() else last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("token_ids", []),
        ("token_ids", [-1]),
        ("token_ids", [VOCAB_SIZE]),
        ("token_ids", [10**6]),
        ("token_ids", [2**63]),
        ("token_ids", ["a"]),
        ("token_ids", [1.5]),
        ("features.mm_placeholders.image.0.offset", -1),
        ("features.mm_placeholders.image.0.offset", 10**6),
        ("features.mm_placeholders.image.0.length", 0),
        ("features.mm_placeholders.image.0.length", 3),
        ("features.mm_placeholders.image.0.offset", 0),
        ("features.mm_placeholders.image", []),
        ("features.mm_hashes.image", []),
        ("features.mm_hashes", {"audio": ["x"]}),
        ("features.kwargs_data.image.0", "not base64!"),
        ("features.kwargs_data.image.0", "gASVEAAAAAAAAAA="),
        ("features.kwargs_data.image", [None, None]),
        ("sampling_params.stop_token_ids", [10**6]),
        ("sampling_params.stop_token_ids", [VOCAB_SIZE]),
        ("sampling_params.stop_token_ids", [-1]),
        ("sampling_params.logit_bias", {str(VOCAB_SIZE): 1}),
        ("sampling_params.allowed_token_ids", [VOCAB_SIZE]),
        ("sampling_params.max_tokens", -3),
        ("sampling_params", None),
        ("request_id", 5),
    ],
)
def test_edited_render_answer_is_400(http: httpx.Client, rendered: dict[str, Any], path: str, value: Any) -> None:
    refused(http.post("/inference/v1/generate", json=edited(rendered, path, value)), 400)


@pytest.mark.parametrize("grid", [[1, 132, 132], [1, 2, 2], [1, -6, -6], [1, 2**40, 2**40]])
def test_an_edited_grid_is_400(http: httpx.Client, rendered: dict[str, Any], grid: list[int]) -> None:
    item = decode_item(base64.b64decode(rendered["features"]["kwargs_data"]["image"][0]))
    changed = item | {"image_grid_thw": replace(item["image_grid_thw"], data=np.array(grid, np.int64))}
    document = edited(rendered, "features.kwargs_data.image.0", base64.b64encode(encode_item(changed)).decode())
    document = edited(document, "features.mm_hashes.image.0", "e" * 64)
    error = refused(http.post("/inference/v1/generate", json=document), 400, "grid")
    assert error["param"] == "features.image.0"


def test_overlapping_placeholders_are_400(http: httpx.Client, rendered: dict[str, Any]) -> None:
    document = copy.deepcopy(rendered)
    for name in ("mm_hashes", "mm_placeholders", "kwargs_data", "mm_metadata"):
        document["features"][name]["image"] *= 2
    refused(http.post("/inference/v1/generate", json=document), 400, "overlap")


def test_metadata_without_ec_transfer_params_is_400(http: httpx.Client, rendered: dict[str, Any]) -> None:
    document = copy.deepcopy(rendered)
    document["features"]["kwargs_data"] = None
    refused(http.post("/inference/v1/generate", json=document), 400, "ec_transfer_params")


def test_unknown_hash_alone_is_400_and_a_known_one_is_served(http: httpx.Client, rendered: dict[str, Any]) -> None:
    whole = http.post("/inference/v1/generate", json=rendered).json()
    document = copy.deepcopy(rendered)
    document["features"]["kwargs_data"] = document["features"]["mm_metadata"] = None
    again = http.post("/inference/v1/generate", json=document)
    assert again.json()["choices"] == whole["choices"]
    refused(
        http.post("/inference/v1/generate", json=edited(document, "features.mm_hashes.image.0", "f" * 64)), 400, "send it again"
    )


def test_generate_streams_chunks_and_closes(http: httpx.Client, rendered: dict[str, Any]) -> None:
    plain = http.post("/inference/v1/generate", json=rendered).json()
    body = rendered | {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", "/inference/v1/generate", json=body) as response:
        chunks = list(sse(response))
    tokens = [token for chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"]]
    assert tokens == plain["choices"][0]["token_ids"]
    assert chunks[0]["prompt_token_ids"] == rendered["token_ids"]
    assert [chunk.get("prompt_token_ids") for chunk in chunks[1:]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["usage"]["completion_tokens"] == len(tokens)


def test_derender_of_generate_equals_the_coupled_answer(http: httpx.Client, rendered: dict[str, Any]) -> None:
    generated = http.post("/inference/v1/generate", json=rendered).json()
    request = {"model": MODEL, "messages": user(image_part(noise(9)), "How many squares?"), "temperature": 0, "max_tokens": 4}
    body = {"model": MODEL, "generate_response": generated, "prompt_token_ids": rendered["token_ids"], "chat_request": request}
    derendered = http.post(f"{CHAT}/derender", json=body)
    assert derendered.status_code == 200, derendered.text
    coupled = http.post(CHAT, json=request | {"cache_salt": "coupled"}).json()
    assert derendered.json()["choices"] == coupled["choices"]
    assert derendered.json()["usage"] == coupled["usage"]
    assert derendered.json()["id"] == generated["request_id"]
    refused(http.post(f"{CHAT}/derender", json=body | {"chat_request": None}), 400, "chat_request")
    for beyond in (VOCAB_SIZE, 10**9, -1, 2**63, 1.5):
        generated["choices"][0]["token_ids"] = [beyond]
        refused(http.post(f"{CHAT}/derender", json=body | {"generate_response": generated}), 400)
