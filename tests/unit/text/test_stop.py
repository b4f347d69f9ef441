import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.text.tokenizers_for_tests import cuttings
from triton_renderer.text.stop import StopMatcher, beginning_at_end, first_of


def feed(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    """The text passed on, and the match."""
    text = ""
    for piece in pieces:
        emitted, matched = matcher.push(piece)
        text += emitted
        if matched is not None:
            return text, matched
    return text + matcher.flush(), None


@pytest.mark.parametrize(("include", "expected"), [(False, "a"), (True, "aEND")])
def test_a_stop_string_over_several_pieces_ends_the_text(include, expected):
    assert feed(StopMatcher(["END"], include), ["a", "E", "N", "D", "b"]) == (expected, "END")


def test_what_turns_out_to_be_no_stop_string_is_delivered():
    matcher = StopMatcher(["ENX"])
    assert [matcher.push(piece)[0] for piece in ["a", "E", "N", "D", "b"]] == ["a", "", "", "END", "b"]
    assert matcher.flush() == ""


def test_what_may_be_a_stop_string_is_delivered_at_the_end():
    matcher = StopMatcher(["END"])
    assert matcher.push("xEN") == ("x", None)
    assert matcher.flush() == "EN"


def test_nothing_is_held_back_where_the_stop_string_is_included():
    matcher = StopMatcher(["END"], include=True)
    assert matcher.push("xEN") == ("xEN", None)
    assert matcher.push("Dy") == ("D", "END")


def test_the_string_that_is_complete_first_wins():
    assert feed(StopMatcher(["bcd", "c"]), ["abcd"]) == ("ab", "c")


def test_of_strings_that_end_together_the_first_in_the_list_wins():
    assert feed(StopMatcher(["cd", "bcd"]), ["abcd"]) == ("ab", "cd")
    assert feed(StopMatcher(["bcd", "cd"]), ["abcd"]) == ("a", "bcd")


def test_a_stop_string_may_begin_but_not_end_before_it_is_armed():
    matcher = StopMatcher(["END"])
    assert matcher.push("aEND", armed=False) == ("aEND", None)
    assert matcher.push("bEN", armed=False) == ("b", None)
    assert matcher.push("Dc") == ("", "END")


def test_what_ended_before_it_was_armed_never_matches():
    matcher = StopMatcher(["XENDY", "END"])
    assert matcher.push("XEND", armed=False) == ("", None)
    assert matcher.push("Z") == ("XENDZ", None)


def test_without_stop_strings_everything_passes():
    assert feed(StopMatcher([]), ["a", "", "b"]) == ("ab", None)
    assert feed(StopMatcher([""]), ["a"]) == ("a", None)


def by_definition(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """Looks at ever longer beginnings of the text."""
    for end in range(1, len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return text[: end if include else end - len(string)], string
    return text, None


@settings(deadline=None)
@given(st.data(), st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.booleans())
def test_any_cutting_gives_what_the_definition_says(data, text, stop, include):
    cuts = data.draw(cuttings(len(text)))
    matcher = StopMatcher(stop, include)
    emitted, matched = "", None
    for start, end in itertools.pairwise(cuts):
        piece, matched = matcher.push(text[start:end])
        emitted += piece
        matcher = StopMatcher.from_state(matcher.state(), stop, include)
        if matched:
            break
    assert (emitted + matcher.flush(), matched) == by_definition(text, stop, include)


def test_the_beginning_at_the_end_is_the_longest_and_not_all():
    assert beginning_at_end("xabab", ["ababc", "abx"]) == 4
    assert beginning_at_end("xab", ["ab"]) == 0
    assert beginning_at_end("", ["ab"]) == 0


def test_the_first_of_several_strings_is_found():
    assert first_of("xabc", ["bc", "abc", "ab"]) == (1, "abc")
    assert first_of("x", ["a"]) is None
