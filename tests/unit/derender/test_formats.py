"""Every registered parser can be loaded, and keeps what all parsers promise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.derender.parsing import OUTPUTS, numbered_ids, parse, parse_in_parts
from tests.unit.text.tokenizers_for_tests import cuttings
from triton_renderer.derender.parsers import reasoning_parser, tool_parser
from triton_renderer.derender.parsers.base import OutputParser
from triton_renderer.text.formats import REASONING_FORMATS, TOOL_FORMATS

PARSERS = [
    *(pytest.param(lambda name=name: tool_parser(name)(numbered_ids()), id=name) for name in TOOL_FORMATS),
    *(pytest.param(lambda name=name: reasoning_parser(name)(False), id=name) for name in REASONING_FORMATS),
    *(pytest.param(lambda name=name: reasoning_parser(name)(True), id=f"{name} open") for name in REASONING_FORMATS),
]


@pytest.mark.parametrize("make", PARSERS)
def test_an_output_without_markup_is_content(make):
    for text in ("Hello, world. 🙂", "a < b, c > d\n"):
        found = parse(make(), text)
        assert (found.reasoning or found.content, found.calls) == (text, [])


@pytest.mark.parametrize("make", PARSERS)
@settings(max_examples=25, deadline=None)
@given(st.data(), OUTPUTS)
def test_the_cutting_changes_nothing_whatever_the_output(make, data, text):
    cuts = data.draw(cuttings(len(text)))
    whole, parts = parse(make(), text), parse_in_parts(make, text, cuts)
    assert (parts.reasoning, parts.content, parts.calls) == (whole.reasoning, whole.content, whole.calls)


@pytest.mark.parametrize("make", PARSERS)
@pytest.mark.parametrize("state", [None, [], "text", {"unknown": 1}, {"held": 1}, {"held": None}, {"phase": "no such"}])
def test_what_is_no_state_is_refused(make, state):
    with pytest.raises(ValidationError):
        make().restore(state)


JSON = st.none() | st.booleans() | st.integers(-3, 2**60) | st.text(max_size=5) | st.lists(st.text(max_size=5), max_size=2)


@pytest.mark.parametrize("make", PARSERS)
@settings(max_examples=50, deadline=None)
@given(st.data(), OUTPUTS, OUTPUTS)
def test_an_altered_state_is_refused_or_harmless(make, data, before, after):
    parser: OutputParser = make()
    parser.push(before)
    state = parser.state()
    for name in data.draw(st.lists(st.sampled_from(list(vars(parser.new_state()))), max_size=3)):
        state[name] = data.draw(JSON | st.sampled_from(_values_of(parser, name)))
    try:
        parser = make().restore(state)
    except ValidationError:
        return
    parser.push(after)
    parser.finish()


def _values_of(parser: OutputParser, name: str) -> list[object]:
    """What a field can be by its type: the strings of its Literal, or nothing special."""
    literals = getattr(parser.new_state.__dataclass_fields__[name].type, "__args__", ())
    return [value for value in literals if isinstance(value, str)] or [True]
