"""Derender requests, one-shot and streamed."""

from collections.abc import Iterator

from tests.golden.cases import Case


def cases() -> Iterator[Case]:
    """All of them."""
    yield from ()
