"""Errors about a translated document, in terms of the original."""

import pytest

from triton_renderer.errors import InvalidRequest, NotFound
from triton_renderer.protocol.places import Places, within

PLACES = Places({"messages": "input", "messages.0": "instructions", "messages.1.content": "input.2.output"})


@pytest.mark.parametrize(
    ("path", "original"),
    [
        ("messages", "input"),
        ("messages.0", "instructions"),
        ("messages.0.content", "instructions.content"),
        ("messages.1.content.3.text", "input.2.output.3.text"),
        ("messages.7", "input.7"),
        ("temperature", "temperature"),
    ],
)
def test_the_longest_known_path_decides(path: str, original: str) -> None:
    assert PLACES.original(path) == original


def test_an_error_keeps_its_class_and_its_words() -> None:
    error = PLACES.restored(NotFound("messages.0: no such thing", "messages.0"))
    assert type(error) is NotFound
    assert (error.message, error.param) == ("instructions: no such thing", "instructions")


def test_a_message_that_does_not_begin_with_the_place_is_left_alone() -> None:
    error = PLACES.restored(InvalidRequest("the template raised", "messages"))
    assert (error.message, error.param) == ("the template raised", "input")


def test_an_error_without_a_place_stays_as_it_is() -> None:
    error = InvalidRequest("no")
    assert PLACES.restored(error) is error


@pytest.mark.parametrize(
    ("error", "message", "param"),
    [
        (InvalidRequest("input: no", "input"), "asked.input: no", "asked.input"),
        (InvalidRequest("no"), "no", "asked"),
    ],
)
def test_within_another_document(error: InvalidRequest, message: str, param: str) -> None:
    moved = within(error, "asked")
    assert (moved.message, moved.param) == (message, param)
