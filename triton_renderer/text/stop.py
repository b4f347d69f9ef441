"""Stop strings, found in text that comes piece by piece."""

from collections.abc import Sequence
from typing import Self


class StopMatcher:
    """Passes text on until one of the `stop` strings is complete.

    The string that is complete first in the text wins; of two that end at the same place the one that stands first in
    the list, as in the reference. Text that may be the beginning of a stop string is held back, and nothing else.
    With `include` the stop string itself is passed on, so there nothing is held back. The cutting of the text changes
    nothing.
    """

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        self._stop = [text for text in stop if text]
        self._include = include
        self._beginning = ""  # the end of the text so far, where it may be the beginning of a stop string

    def push(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """The text to pass on, and the stop string that is now complete, if any.

        After a match the rest of `text` is gone: the output ends there. While not `armed` (fewer than `min_tokens` are
        generated) a stop string that ends in this text is text like any other; one that only begins in it may still match.
        """
        if not self._stop and not self._beginning:
            return text, None
        seen = len(self._beginning)
        passed_on = seen if self._include else 0
        text = self._beginning + text
        match = self._first_match(text, seen) if armed else None
        if match:
            start, found = match
            self._beginning = ""
            return text[passed_on : start + len(found) if self._include else start], found
        end = len(text) - beginning_at_end(text, self._stop)
        self._beginning = text[end:]
        return text[passed_on:] if self._include else text[:end], None

    def flush(self) -> str:
        """The text that is held back: the output has ended, so it is no stop string."""
        beginning, self._beginning = self._beginning, ""
        return "" if self._include else beginning

    def state(self) -> str:
        """The state as a short text, for `from_state`."""
        return self._beginning

    @classmethod
    def from_state(cls, state: str, stop: Sequence[str], include: bool = False) -> Self:
        """The matcher that had this `state` and these options."""
        matcher = cls(stop, include)
        matcher._beginning = state
        return matcher

    def _first_match(self, text: str, seen: int) -> tuple[int, str] | None:
        """Start and text of the match that ends first, of those that end behind `seen`."""
        matches = []
        for order, stop in enumerate(self._stop):
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), order, start, stop))
        if not matches:
            return None
        _, _, start, found = min(matches)
        return start, found


def beginning_at_end(text: str, strings: Sequence[str]) -> int:
    """The length of the longest end of `text` that is the beginning of one of `strings`, but not all of it."""
    longest = 0
    for string in strings:
        start = text.find(string[0], max(0, len(text) - len(string) + 1))
        while start >= 0:
            if string.startswith(text[start:]):
                longest = max(longest, len(text) - start)
                break
            start = text.find(string[0], start + 1)
    return longest


def first_of(text: str, strings: Sequence[str]) -> tuple[int, str] | None:
    """Where one of `strings` stands first in `text`, and which one; of two at the same place the longer one."""
    found = [(position, -len(string), string) for string in strings if (position := text.find(string)) >= 0]
    if not found:
        return None
    position, _, string = min(found)
    return position, string
