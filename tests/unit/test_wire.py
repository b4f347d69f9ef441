"""Serialized multimodal items: round trips, the reference's bytes, and hostile input."""

import base64
import random
import struct
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from triton_renderer.wire import DTYPES, Field, Item, decode_item, encode_item, metadata_of

GRID = np.array([1, 6, 6], np.int64)
KEEP = {"keep_on_cpu": True}


def qwen_item(patches: int = 36) -> Item:
    pixels = np.arange(patches * 1536, dtype=np.uint32).astype(np.uint8).reshape(patches, 1536)
    flat = {"keep_on_cpu": False, "slices": [[[0, patches, None]]], "dim": 0}
    return {"pixel_values": Field(pixels, "flat", flat), "image_grid_thw": Field(GRID, "batched", KEEP)}


def raw(data: bytes, code: int = 3) -> msgpack.ExtType:
    return msgpack.ExtType(code, data)


def packed(data: Any, field: Any = ("batched", {"keep_on_cpu": False})) -> bytes:
    result: bytes = msgpack.packb({"x": {"data": data, "field": list(field)}})
    return result


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and one.tobytes() == other.tobytes()
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return repr(one) == repr(other)  # not a number is not equal to itself


def same(one: Item, other: Item) -> bool:
    return one.keys() == other.keys() and all(
        (one[name].kind, dict(one[name].options)) == (other[name].kind, dict(other[name].options))
        and equal(one[name].data, other[name].data)
        for name in one
    )


# Round trips


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray:
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    content = draw(st.binary(min_size=64 * 8 * 4, max_size=64 * 8 * 4))
    count = int(np.prod(shape))
    values = np.frombuffer((content * 4)[: count * dtype.itemsize], np.uint8)
    return (values & 1 if dtype == np.bool_ else values).copy().view(dtype).reshape(shape)


DATA = st.recursive(
    st.one_of(tensors(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.none()),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
FIELDS = st.one_of(
    st.builds(lambda data, keep: Field(data, "batched", {"keep_on_cpu": keep}), DATA, st.booleans()),
    st.builds(
        lambda data, dim: Field(data, "flat", {"keep_on_cpu": False, "slices": [[[0, 1, None]]], "dim": dim}),
        DATA,
        st.integers(0, 3),
    ),
    st.builds(lambda data, size: Field(data, "shared", {"keep_on_cpu": False, "batch_size": size}), DATA, st.integers(1, 9)),
)


def depth(data: Any) -> int:
    return 1 + max(map(depth, data), default=0) if isinstance(data, list) else 0


@hypothesis_settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=12), FIELDS, min_size=1, max_size=3))
def test_items_survive_the_wire(item: Item) -> None:
    if max(depth(value.data) for value in item.values()) > 4:
        with pytest.raises(ValueError, match="data must be"):
            decode_item(encode_item(item))
        return
    again = decode_item(encode_item(item))
    assert same(item, again)
    assert encode_item(again) == encode_item(item)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_goes_by_torchs_name(name: str) -> None:
    values = np.array([[0, 1], [1, 0]]).astype(DTYPES[name])
    document = msgpack.unpackb(encode_item({"x": Field(values)}))
    assert document["x"]["data"][:2] == [name, [2, 2]]
    assert equal(decode_item(encode_item({"x": Field(values)}))["x"].data, values)


def test_bfloat16_keeps_its_bits() -> None:
    values = np.array([1.5, -2.25, float("inf")], ml_dtypes.bfloat16)
    again = decode_item(encode_item({"x": Field(values)}))["x"].data
    assert isinstance(again, np.ndarray)
    assert again.dtype == ml_dtypes.bfloat16
    assert again.tolist() == [1.5, -2.25, float("inf")]


def test_arrays_that_are_not_contiguous_are_written_in_order() -> None:
    values = np.arange(12, dtype=np.int32).reshape(3, 4).T
    again = decode_item(encode_item({"x": Field(values)}))["x"].data
    assert isinstance(again, np.ndarray)
    assert again.tolist() == values.tolist()


def test_scalars_and_empty_tensors() -> None:
    for values in (np.array(7, np.int64), np.zeros((0, 3), np.float32)):
        assert equal(decode_item(encode_item({"x": Field(values)}))["x"].data, values)


def test_the_bytes_are_the_references() -> None:
    """`mm_metadata` of a 96×96 picture as vLLM 0.32 answered it."""
    recorded = (
        "ga5pbWFnZV9ncmlkX3Rod4KkZGF0YZOlaW50NjSRA8cYAwEAAAAAAAAABgAAAAAAAAAGAAAAAAAAAKVmaWVsZJKnYmF0Y2hlZIGra2VlcF9vbl9jcHXD"
    )
    assert encode_item({"image_grid_thw": Field(GRID, "batched", KEEP)}) == base64.b64decode(recorded)
    assert same(decode_item(base64.b64decode(recorded)), {"image_grid_thw": Field(GRID, "batched", KEEP)})


def test_metadata_are_the_fields_kept_on_the_cpu() -> None:
    item = qwen_item()
    assert metadata_of(item) == {"image_grid_thw": item["image_grid_thw"]}
    assert metadata_of(decode_item(encode_item(item))).keys() == {"image_grid_thw"}
    assert Field(None, "batched", {}).keep_on_cpu is False


def test_decoded_tensors_cannot_be_written_to() -> None:
    data = decode_item(encode_item(qwen_item()))["pixel_values"].data
    assert isinstance(data, np.ndarray)
    with pytest.raises(ValueError, match="read-only"):
        data[0, 0] = 1


def test_a_memoryview_is_read_as_well() -> None:
    assert same(decode_item(memoryview(encode_item(qwen_item()))), qwen_item())


# Hostile input


@pytest.mark.parametrize("code", [1, 2, 0, 4, 5, 42, 127])
def test_pickles_and_other_extensions_are_refused(code: int) -> None:
    for data in (raw(b"", code), ["uint8", [0], raw(b"", code)], [[raw(b"x", code)]]):
        with pytest.raises(ValueError, match=r"extension code|not a serialized"):
            decode_item(packed(data))


def test_messagepacks_own_timestamps_are_refused() -> None:
    with pytest.raises(ValueError, match="field x"):
        decode_item(b"\x81\xa1x\x82\xa4data\xd6\xff\x00\x00\x00\x01\xa5field\x92\xa7batched\x80")


@pytest.mark.parametrize(
    "data",
    [
        ["float8", [1], raw(b"x")],
        ["object", [1], raw(b"12345678")],
        ["O", [1], raw(b"12345678")],
        ["<i8", [1], raw(b"12345678")],
        ["uint8", [2], raw(b"x")],
        ["uint8", [0], raw(b"x")],
        ["int64", [1], raw(b"1234567")],
        ["uint8", [-1], raw(b"x")],
        ["uint8", [-1, -1], raw(b"x")],
        ["uint8", [2**62, 2**62], raw(b"x")],
        ["uint8", [2**63, 2], raw(b"")],
        ["uint8", [0, 2**63], raw(b"x")],
        ["uint8", [1.0], raw(b"x")],
        ["uint8", [True], raw(b"x")],
        ["uint8", ["1"], raw(b"x")],
        ["uint8", [1] * 9, raw(b"x")],
        ["uint8", [1], b"x"],
        ["uint8", [1], "x"],
        ["uint8", [1], None],
        ["uint8", 1, raw(b"x")],
        ["uint8", [1]],
        raw(b"x"),
        "text",
        b"bytes",
        {"a": 1},
        [[[[[[1]]]]]],
    ],
)
def test_tensors_that_are_not_what_they_say_are_refused_by_the_fields_name(data: Any) -> None:
    with pytest.raises(ValueError, match="field x"):
        decode_item(packed(data))


def test_a_shape_with_a_zero_and_something_huge_allocates_nothing() -> None:
    item = decode_item(packed(["uint8", [0, 2**40], raw(b"")]))
    assert isinstance(item["x"].data, np.ndarray)
    assert item["x"].data.nbytes == 0


@pytest.mark.parametrize(
    "field",
    [
        ("wobble", {}),
        ("batched", {"slices": []}),
        ("flat", {"batch_size": 1}),
        ("shared", {"dim": 0}),
        ("batched", None),
        ("batched",),
        (1, {}),
        ("batched", {}, {}),
    ],
)
def test_kinds_and_options_that_are_not_known_are_refused(field: Any) -> None:
    with pytest.raises(ValueError, match="field x: its kind"):
        decode_item(packed(None, field))


@pytest.mark.parametrize(
    "document",
    [None, 5, "x", [], {}, {"x": 1}, {"x": {"data": 1}}, {"x": {"field": ["batched", {}]}}, {1: {}}, {b"x": {}}, [["x", 1]]],
)
def test_documents_of_another_form_are_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"not a serialized|field"):
        decode_item(msgpack.packb(document))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x81\xa1x",
        b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x03",
        b"\x91" * 2000,
        b"\xdd\x7f\xff\xff\xff",
    ],
)
def test_bytes_that_are_no_messagepack_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a serialized"):
        decode_item(data)


def test_bytes_behind_the_document_are_refused() -> None:
    with pytest.raises(ValueError, match="not a serialized"):
        decode_item(encode_item(qwen_item()) + b"x")


def test_an_item_that_is_cut_off_is_refused_wherever_it_is_cut() -> None:
    whole = encode_item({"image_grid_thw": Field(GRID, "batched", KEEP)})
    for length in range(len(whole)):
        with pytest.raises(ValueError, match="not a serialized"):
            decode_item(whole[:length])


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_damaged_items_are_read_or_refused_and_nothing_else(seed: int, changes: int) -> None:
    rng, data = random.Random(seed), bytearray(encode_item(qwen_item(1)))
    interesting = [*range(60), *range(len(data) - 120, len(data))]
    for _ in range(changes):
        data[rng.choice(interesting)] = rng.choice([0x00, 0x80, 0x90, 0xC0, 0xC7, 0xD4, 0xDC, 0xFF, rng.randrange(256)])
    try:
        item = decode_item(bytes(data))
    except ValueError:
        return
    assert all(isinstance(value, Field) for value in item.values())


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    try:
        decode_item(data)
    except ValueError:
        return


def test_extension_lengths_beyond_the_data_are_refused_at_once() -> None:
    header = b"\x81\xa1x\x82\xa4data\x93\xa5uint8\x91\x01" + b"\xc9" + struct.pack(">I", 2**32 - 1) + b"\x03"
    with pytest.raises(ValueError, match="not a serialized"):
        decode_item(header + b"x")
