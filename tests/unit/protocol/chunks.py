"""Chat streams as derender makes them, of runs of reasoning, text and calls that are cut anywhere."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from triton_renderer.protocol.forms import JsonObject, Translator

HEAD = {"id": "resp_1", "object": "chat.completion.chunk", "created": 1700000000, "model": "served"}


@dataclass(frozen=True)
class Run:
    """A stretch of one kind. `name` is that of a called function, whose arguments are the text."""

    kind: str
    text: str
    name: str = "f"


def usage(completion_tokens: int, cached: int = 0) -> JsonObject:
    details = {"cached_tokens": cached} if cached else None
    return {
        "prompt_tokens": 11,
        "completion_tokens": completion_tokens,
        "total_tokens": 11 + completion_tokens,
        "prompt_tokens_details": details,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def deltas(runs: Sequence[Run], size: int) -> list[JsonObject]:
    """The deltas of runs, each cut into texts of `size` characters; a call's first one has its id and its name."""
    found: list[JsonObject] = []
    calls = 0
    for run in runs:
        pieces = [run.text[start : start + size] for start in range(0, len(run.text), size)]
        if run.kind == "call":
            opening = {
                "index": calls,
                "id": f"call-{calls}",
                "type": "function",
                "function": {"name": run.name, "arguments": ""},
            }
            found.append({"tool_calls": [opening]})
            found += [{"tool_calls": [{"index": calls, "function": {"arguments": piece}}]} for piece in pieces]
            calls += 1
        else:
            found += [{run.kind: piece} for piece in pieces]
    return found


def chunks(runs: Sequence[Run], size: int = 3, finish: str | None = "stop", stop_reason: Any = None) -> list[JsonObject]:
    """A stream: the role, the deltas, then the end."""
    all_deltas = [{"role": "assistant", "content": ""}, *deltas(runs, size)]
    stream = [
        HEAD | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": usage(number)}
        for number, delta in enumerate(all_deltas)
    ]
    if finish is not None:
        end = {"index": 0, "delta": {}, "finish_reason": finish, "stop_reason": stop_reason}
        stream.append(HEAD | {"choices": [end], "usage": usage(len(stream))})
    return stream


def events(translator: Translator, stream: Sequence[JsonObject]) -> list[JsonObject]:
    """All events of a stream. They are JSON."""
    found = [event for chunk in stream for event in translator.push(chunk)]
    assert json.loads(json.dumps(found)) == found
    return found


def carried(new: Any, stream: Sequence[JsonObject]) -> list[JsonObject]:
    """The same, with a new translator for each chunk, that goes on from the state of the one before as JSON."""
    found: list[JsonObject] = []
    state: JsonObject = {}
    for chunk in stream:
        translator: Translator = new()
        translator.restore(state)
        found += translator.push(chunk)
        state = json.loads(json.dumps(translator.state()))
    return found


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
ARGUMENTS = st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.lists(TEXTS, max_size=2)), max_size=3).map(json.dumps)
RUNS = st.lists(
    st.one_of(
        st.builds(Run, st.just("reasoning"), TEXTS),
        st.builds(Run, st.just("content"), TEXTS),
        st.builds(Run, st.just("call"), ARGUMENTS),
    ),
    max_size=6,
).filter(lambda runs: all(a.kind != b.kind or a.kind == "call" for a, b in pairwise(runs)))
SIZES = st.integers(1, 9)
