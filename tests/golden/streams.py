"""Streamed derendering: calls in sequence, and how their answers are kept small."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import httpx

from tests.golden.cases import Body, expanded


def stream_of(ask: Callable[[Body], httpx.Response], body: Body, calls: Sequence[Body]) -> Iterator[tuple[int, Any]]:
    """Status and answer, without its state, of each of `calls`, which have `body` in common.

    As a client does, each call takes the state that the call before for the same choice answered; one without a choice takes
    the newest. Whoever wants a state of its own, or none, has a `stream_state` in the call.
    """
    states: dict[int, Any] = {}
    index = 0
    for call in calls:
        chunk = (body | call).get("generate_chunk", {})
        index = next((choice["index"] for choice in chunk.get("choices", [])), index)
        state = {"stream_state": states[index]} if index in states else {}
        reply = ask(state | expanded(body | call))
        answer = reply.json()
        if "stream_state" in answer:
            states[index] = answer.pop("stream_state")
        yield reply.status_code, answer


def shortened(answers: Sequence[Any]) -> list[Any]:
    """The first answer, and of each further one what differs from the one before it, for `lengthened`. No field is called "="."""
    return [answers[0], *(_changes(before, answer) for before, answer in pairwise(answers))]


def lengthened(answers: Sequence[Any]) -> list[Any]:
    """The answers that `shortened` made smaller."""
    whole: list[Any] = []
    for answer in answers:
        whole.append(_changed(whole[-1], answer) if whole else answer)
    return whole


def _changes(before: Any, after: Any) -> Any:
    """{"=": value} where nothing of `before` remains, else what is to be changed in an object or list by its key or place."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        return {key: _changes(before[key], after[key]) for key in after if before[key] != after[key]}
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return {str(place): _changes(*pair) for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]}
    return {"=": after}


def _changed(before: Any, changes: dict[str, Any]) -> Any:
    if changes.keys() == {"="}:
        return changes["="]
    if isinstance(before, list):
        return [_changed(item, changes[str(place)]) if str(place) in changes else item for place, item in enumerate(before)]
    return {key: _changed(value, changes[key]) if key in changes else value for key, value in before.items()}
