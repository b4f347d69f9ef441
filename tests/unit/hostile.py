"""Damaging good documents: what a client may send in place of them, and a watch over what would run a client's code."""

import copy
import json
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
from hypothesis import strategies as st

Place = tuple[Any, ...]


MAX_DEPTH = 40
"""Places deeper down are not changed: a document that is only deep holds a thousand of one kind."""


def places(value: Any, path: Place = ()) -> list[Place]:
    """The paths of the values inside `value`, and of itself."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    # An extension value of MessagePack is a tuple too, but one that cannot be taken apart.
    inside = () if isinstance(value, msgpack.ExtType) or len(path) == MAX_DEPTH else inside
    return [path, *(place for name, child in inside for place in places(child, (*path, name)))]


def changed(value: Any, path: Place, new: Any) -> Any:
    """A copy of `value` with another one at `path`."""
    if not path:
        return new
    result, inside = _copied(value, path)
    inside[path[-1]] = new
    return result


def without(value: Any, path: Place) -> Any:
    """A copy of `value` in which what is at `path` is missing; the whole of it stays."""
    if not path:
        return value
    result, inside = _copied(value, path)
    del inside[path[-1]]
    return result


def _copied(value: Any, path: Place) -> tuple[Any, Any]:
    """`value` with a copy of everything that what is at `path` lies in, and the innermost of these."""
    result = inside = copy.copy(value)
    for name in path[:-1]:
        inside[name] = copy.copy(inside[name])
        inside = inside[name]
    return result, inside


class Bomb:
    """Its pickle runs a harmless command of the operating system where it is loaded."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.getpid, ()


PICKLES = [pickle.dumps(Bomb(), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]

_seen: list[str] = []
_watching: list[bool] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event == "pickle.find_class":
        _seen.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_hook)


@contextmanager
def no_pickle() -> Iterator[None]:
    """Fails where anything in it loads a pickle that names a class or a function, as all that do harm must.

    The interpreter itself reports it, whoever asks: Python's loader or C's, torch's or numpy's.
    """
    _seen.clear()
    _watching.append(True)
    try:
        yield
    finally:
        _watching.pop()
    assert not _seen, _seen


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def nested_map(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


NUMBERS = [0, 1, -1, 2, 7, 255, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, -0.0, 1e300, float("nan"), float("inf")]
TEXTS = [
    "",
    "x",
    "é🙂",
    "\x00",
    "a" * 5000,
    "uint8",
    "int64",
    "object",
    "bfloat16",
    "float32",
    "float64",
    "batched",
    "chat",
    "..",
    "1",
]
ANYTHING = st.one_of(
    st.sampled_from([None, True, False, *NUMBERS, *TEXTS, [], {}, [[]], [None], {"a": 1}, {"": {}}]),
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=4),
        lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=4), children, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from([nested(70), nested(900), nested_map(70), nested_map(400)]),
)
JSON_VALUES = ANYTHING | st.sampled_from(["\ud800", "a\udfff", {"\ud800": 1}, 10**30, 10**400, -(10**400)])
"""Also what no JSON document can say rightly: `json.dumps` writes it all the same."""
MESSAGEPACK_VALUES = ANYTHING | st.one_of(
    st.binary(max_size=24),
    st.sampled_from(PICKLES),
    st.builds(msgpack.ExtType, st.sampled_from([0, 1, 2, 3, 3, 3, 4, 127]), st.binary(max_size=24) | st.sampled_from(PICKLES)),
)


@st.composite
def damaged(draw: st.DrawFn, document: Any, values: st.SearchStrategy[Any]) -> Any:
    """`document` with one to three of its parts changed or left out."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(document)))
        document = without(document, place) if draw(st.integers(0, 4)) == 0 else changed(document, place, draw(values))
    return document


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` with bytes overwritten, cut out, put in or moved, one to four times."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from([0, 1, 1, 1, 2, 4, 8, 64])))
        match draw(st.sampled_from(["overwrite", "cut", "end", "insert", "repeat", "pickle"])):
            case "overwrite":
                data[start:end] = draw(st.binary(min_size=end - start, max_size=end - start))
            case "cut":
                del data[start:end]
            case "end":
                del data[start:]
            case "insert":
                data[start:start] = draw(st.binary(min_size=1, max_size=9))
            case "repeat":
                data[start:start] = data[start:end] * draw(st.integers(1, 20))
            case "pickle":
                data[start:end] = draw(st.sampled_from(PICKLES))
    return bytes(data)


def as_json(document: Any) -> bytes:
    """Also what is no JSON: not-a-number, halves of a surrogate pair, integers of hundreds of digits."""
    return json.dumps(document).encode()
