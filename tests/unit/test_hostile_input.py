"""Hours of an attacker in minutes: good documents, damaged in every way, through the models as Triton calls them.

Whatever comes is answered rightly or refused as the client's mistake, and nothing of it is ever loaded as a pickle.
"""

import importlib.util
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit import fake_pb_utils
from tests.unit.derender.answers import logprobs_of, model, tokens
from tests.unit.derender.formats import WRITTEN
from tests.unit.derender.streams import TOOLS, call
from tests.unit.encode.test_encoder import picture, rows_of
from tests.unit.hostile import JSON_VALUES, MESSAGEPACK_VALUES, as_json, damaged, damaged_bytes, no_pickle
from tests.unit.test_wire import same
from triton_renderer import tensors
from triton_renderer.derender.derenderer import Derenderer
from triton_renderer.derender.open_requests import OpenRequests
from triton_renderer.derender.parsers import reasoning_parser, tool_parser
from triton_renderer.errors import from_wire
from triton_renderer.tensors import CHUNK, CONTEXT, MM_DATA, MM_OFFSETS, RESPONSE
from triton_renderer.text.formats import REASONING_FORMATS, TOOL_FORMATS
from triton_renderer.wire import Item, decode_item, encode_item, metadata_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def many(examples: int) -> settings:
    """As many, of which none is kept for the next run."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """An unexpected error is logged with its traceback, which then is in the report; what is refused says nothing."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@cache
def triton_model(stage: str) -> Any:
    """The model as Triton has it, with the fake of its module."""
    spec = importlib.util.spec_from_file_location(f"model_of_{stage}", REPOSITORY / stage / "1" / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["triton_python_backend_utils"] = fake_pb_utils
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["triton_python_backend_utils"]
    loaded = module.TritonPythonModel()
    loaded.initialize({})
    return loaded


def execute(stage: str, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The outputs of one request; None where it is refused, which has to be as the client's mistake."""
    loaded = triton_model(stage)
    with no_pickle():
        (response,) = loaded.execute([fake_pb_utils.Request(inputs)])
    if response.error is None:
        return dict(response.outputs)
    refusal = from_wire(response.error.message)
    assert 400 <= refusal.status < 500, response.error.message
    return None


# wire.py


ITEMS: list[Item] = [picture(0), picture(1, 2, 2), metadata_of(picture(2))]


@many(40_000)
@given(data=st.data())
def test_serialized_items_are_read_as_they_are_written_or_refused(data: st.DataObject) -> None:
    good = encode_item(data.draw(st.sampled_from(ITEMS[1:])))
    if data.draw(st.booleans()):
        packed = data.draw(damaged_bytes(good))
    else:
        packed = _packed(data.draw(damaged(msgpack.unpackb(good), MESSAGEPACK_VALUES)))
    with no_pickle():
        try:
            item = decode_item(packed)
        except ValueError:
            return
    assert same(decode_item(encode_item(item)), item)


def _packed(document: Any) -> bytes:
    packed: bytes = msgpack.packb(document, unicode_errors="surrogatepass")
    return packed


# encode


@cache
def rows_of_good(seed: int) -> bytes:
    outputs = execute("encode", _request(seed, encode_item(picture(seed)), b""))
    assert outputs is not None
    return bytes(outputs["embeddings"])


def _context(seed: int) -> dict[str, Any]:
    placeholder = {"offset": 1, "length": rows_of(picture(seed)), "is_embed": None}
    features = [{"modality": "image", "mm_hash": f"p{seed}", "placeholder": placeholder}]
    return {"id": "r", "features": features, "ec_transfer_params": None, "cache_salt": None}


def _request(seed: int, *parts: bytes) -> dict[str, Any]:
    mm_data, mm_offsets = tensors.concatenate(list(parts))
    return {MM_DATA.name: mm_data, MM_OFFSETS.name: mm_offsets, CONTEXT.name: fake_pb_utils.document(as_json(_context(seed)))}


@many(25_000)
@given(data=st.data())
def test_what_encode_is_sent_becomes_its_own_rows_or_is_refused(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 3))
    kwargs, metadata = encode_item(picture(seed)), encode_item(metadata_of(picture(seed)))
    expected = rows_of_good(seed)
    is_damaged = data.draw(st.sampled_from(["kwargs", "metadata", "context", "offsets", "arrays"]))
    context: Any = _context(seed)
    if is_damaged == "kwargs":
        metadata = data.draw(st.sampled_from([metadata, b""]))
        kwargs = _hostile_item(data, kwargs)
    elif is_damaged == "metadata":
        context["ec_transfer_params"] = {"ec_items": [{"mm_hash": f"p{seed}"}]}
        kwargs, metadata = b"", _hostile_item(data, metadata)
    elif is_damaged == "context":
        context["ec_transfer_params"] = {"ec_items": [{"mm_hash": f"p{seed}", "peer_port": 8001, "digest": "0" * 64}]}
        context = data.draw(damaged(context, JSON_VALUES))
        kwargs, metadata = data.draw(st.sampled_from([(kwargs, metadata), (b"", metadata), (b"", b"")]))
    inputs = _request(seed, kwargs, metadata)
    document = as_json(context)
    if is_damaged == "context" and data.draw(st.booleans()):
        document = data.draw(damaged_bytes(document))
    inputs[CONTEXT.name] = fake_pb_utils.document(document)
    if is_damaged == "offsets":
        numbers = st.integers(-3, len(kwargs) + 3) | st.sampled_from([-(2**63), 2**63 - 1, 2**31, len(kwargs)])
        inputs[MM_OFFSETS.name] = np.array(data.draw(st.lists(numbers, max_size=5)), np.int64)
    if is_damaged == "arrays":
        name = data.draw(st.sampled_from(sorted(inputs)))
        inputs[name] = data.draw(st.sampled_from(_odd_arrays(inputs[name])))
    outputs = execute("encode", inputs)
    if outputs is None:
        assert execute("encode", _request(seed, encode_item(picture(seed)), b"")) is not None, "the next request works"
        return
    embeddings, encoded = outputs["embeddings"], json.loads(outputs["encoded"][0])
    if not encoded.get("items"):
        assert embeddings.size == 0
        return
    (item,) = encoded["items"]
    assert embeddings.nbytes == item["rows"] * encoded["hidden"] * (1 + encoded["deepstack"]) * _size(encoded["dtype"])
    assert item["rows"] == rows_of(picture(seed))
    if is_damaged != "kwargs":
        assert bytes(embeddings) == expected, "rows of another picture"


def _hostile_item(data: st.DataObject, good: bytes) -> bytes:
    if data.draw(st.booleans()):
        return data.draw(damaged_bytes(good))
    return _packed(data.draw(damaged(msgpack.unpackb(good), MESSAGEPACK_VALUES)))


def _size(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


def _odd_arrays(good: Any) -> list[Any]:
    """The same in other types and shapes, and none of it."""
    number = np.arange(4)
    return [
        good.reshape(1, -1),
        good[:0],
        np.concatenate([good, good]),
        *(number.astype(dtype) for dtype in (np.uint8, np.int32, np.int64, np.float32, np.float64, np.bool_)),
        np.full(4, np.nan),
        np.array(["{}", "x"], dtype=np.object_),
        np.array(7),
        np.array([b"\x80\x04N.", b"cos\nsystem\n(S'true'\ntR."], dtype=np.object_),
    ]


# derender


@cache
def derenderer(reasoning: str | None, tools: str | None) -> Derenderer:
    """The bundled model as if it wrote these formats."""
    served = replace(
        model(),
        reasoning_parser=reasoning_parser(reasoning) if reasoning else None,
        tool_parser=tool_parser(tools) if tools else None,
    )
    return Derenderer(served, OpenRequests(4, 60))


FORMATS = [
    *(("qwen3", name) for name in TOOL_FORMATS),
    *((name, "hermes") for name in REASONING_FORMATS),
    (None, "hermes"),
    ("qwen3", None),
    (None, None),
]
CALLS = [("f", {"a": "{x} y", "n": 1}), ("g.h", {})]
ASKED = {"tools": TOOLS, "stop": ["END"], "logprobs": True, "top_logprobs": 1}


def derender(body: Any, formats: tuple[str | None, str | None]) -> dict[str, Any] | None:
    """The answer to a body, JSON or what is to be damaged of it; None where it is refused."""
    triton_model("derender").derenderer = derenderer(*formats)
    document = body if isinstance(body, bytes) else as_json(body)
    outputs = execute("derender", {CHUNK.name: fake_pb_utils.document(document)})
    if outputs is None:
        return None
    (answer,) = outputs[RESPONSE.name]
    parsed: dict[str, Any] = json.loads(bytes(answer).decode(), parse_constant=_no_json)
    return parsed


def _no_json(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def _operation(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"op": f"derender_{kind}", "body": body}


def _call(kind: str, token_ids: list[int], state: Any, **choice: Any) -> dict[str, Any]:
    body = call(token_ids, state, ASKED, **choice)
    chunk = body["generate_chunk"]
    chunk["choices"][0]["logprobs"] = logprobs_of(token_ids).model_dump()
    chunk["usage"] = {"prompt_tokens": 3, "total_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}
    chunk |= {"kv_transfer_params": {"a": 1}, "ec_transfer_params": {"b": [2]}, "prompt_token_ids": [1, 2, 3]}
    chat_request = body.pop("chat_request")
    messages = chat_request["messages"]
    asked: dict[str, dict[str, Any]] = {
        "chat": {"chat_request": chat_request},
        "completion": {"completion_request": {"prompt": "x", "stop": ["END"], "logprobs": 1}},
        "responses": {"responses_request": {"input": "x", "metadata": {"a": "b"}, "tools": RESPONSES_TOOLS}},
        "messages": {"messages_request": {"model": "shapes-vl", "max_tokens": 9, "messages": messages}},
    }
    return _operation(kind, body | asked[kind])


RESPONSES_TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "custom", "name": "g.h"}]
KINDS = ["chat", "completion", "responses", "messages"]
STATE = {"chat": "chunk", "completion": "chunk", "responses": "events", "messages": "events"}


@many(12_000)
@given(data=st.data())
def test_a_damaged_call_of_a_stream_is_refused_or_answered_and_the_stream_goes_on(data: st.DataObject) -> None:
    formats = data.draw(st.sampled_from(FORMATS))
    kind = data.draw(st.sampled_from(KINDS))
    thought = data.draw(st.sampled_from(["", "<think>", "<think>hm</think>"]))
    output = tokens(thought + WRITTEN[formats[1] or "hermes"](CALLS))
    cut = data.draw(st.integers(0, len(output)))
    first = derender(_call(kind, output[:cut], None), formats)
    assert first is not None
    state = first["stream_state"]
    body = _call(kind, output[cut:], state, finish_reason=data.draw(st.sampled_from([None, "stop", "length"])))
    whole = data.draw(st.booleans())
    damaged_body = (
        data.draw(damaged(body, JSON_VALUES))
        if whole
        else body | {"body": body["body"] | {"stream_state": data.draw(damaged(state, JSON_VALUES))}}
    )
    document = as_json(damaged_body)
    if data.draw(st.integers(0, 3)) == 0:
        document = data.draw(damaged_bytes(document))
    answer = derender(document, formats)
    if answer is not None and "stream_state" in answer and json.loads(document)["body"].get("stream") is True:
        kind = answer["stream_state"]["kind"]
        assert STATE[kind] in answer
        ending = _call(kind, [], answer["stream_state"])
        ending["body"]["generate_chunk"]["choices"] = []
        derender(ending, formats)
    again = derender(body, formats)
    assert again is not None, "the same, undamaged, is answered still"


@many(12_000)
@given(data=st.data())
def test_a_damaged_whole_response_is_refused_or_answered(data: st.DataObject) -> None:
    formats = data.draw(st.sampled_from(FORMATS))
    kind = data.draw(st.sampled_from(KINDS))
    output = tokens(WRITTEN[formats[1] or "hermes"](CALLS))
    body = _call(kind, output, None, finish_reason="stop")
    response = body["body"].pop("generate_chunk")
    body["body"] |= {"stream": False}
    if kind == "completion":
        body["body"] |= {"generate_responses": [response], "prompt_token_ids": [body["body"]["prompt_token_ids"]]}
    else:
        body["body"]["generate_response"] = response
    assert derender(body, formats) is not None
    document = as_json(data.draw(damaged(body, JSON_VALUES)))
    if data.draw(st.integers(0, 3)) == 0:
        document = data.draw(damaged_bytes(document))
    derender(document, formats)
