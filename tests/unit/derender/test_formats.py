"""What holds for every registered parser."""

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.derender.formats import CONVERTED, WRITTEN, dumped, outputs
from tests.unit.derender.parsing import OUTPUTS, Found, numbered_ids, parse, parse_in_parts
from tests.unit.text.tokenizers_for_tests import cuttings
from triton_renderer.derender.parsers import reasoning_parser, tool_parser
from triton_renderer.derender.parsers.base import LOOK_BACK, OutputParser, ToolParser
from triton_renderer.derender.parsers.message import MessageParser
from triton_renderer.text.formats import REASONING_FORMATS, TOOL_FORMATS

TYPES = {name: {"n": ["integer"], "list": ["array"], "any": ["null", "string"]} for name in ("f", "g.h")}


def tools(name: str) -> ToolParser:
    return tool_parser(name)(numbered_ids(), TYPES)


PARSERS = [
    *(pytest.param(lambda name=name: tools(name), outputs(name), id=name) for name in TOOL_FORMATS),
    *(pytest.param(lambda name=name: reasoning_parser(name)(False), OUTPUTS, id=name) for name in REASONING_FORMATS),
    *(pytest.param(lambda name=name: reasoning_parser(name)(True), OUTPUTS, id=f"{name} open") for name in REASONING_FORMATS),
    pytest.param(lambda: reasoning_parser("openai_gptoss")(False), outputs("openai"), id="openai_gptoss on its own format"),
]
every_parser = pytest.mark.parametrize(("make", "texts"), PARSERS)
every_tool_format = pytest.mark.parametrize("name", TOOL_FORMATS)


def test_the_tests_know_every_format():
    assert set(WRITTEN) == set(TOOL_FORMATS)


@every_parser
def test_an_output_without_markup_is_passed_on(make, texts):
    for text in ("Hello, world. 🙂", "a < b, c > d\n", "1. {x}\n2. [y]", "\n\n", ""):
        found = parse(make(), text)
        assert (found.reasoning or found.content, found.calls) == (text, [])


@every_parser
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_cutting_changes_nothing(make, texts, data):
    text = data.draw(texts)
    whole, parts = parse(make(), text), parse_in_parts(make, text, data.draw(cuttings(len(text))))
    assert (parts.reasoning, parts.content, parts.calls) == (whole.reasoning, whole.content, whole.calls)
    assert parse(make(), *text) == whole


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["f", "g.h"]),
        st.fixed_dictionaries(
            {},
            optional={
                "a": st.text("ab <>/{}[]()\"'\\,=\n🙂", max_size=12),
                "n": st.integers(-999, 999),
                "list": st.lists(VALUES, max_size=2),
            },
        ),
    ),
    min_size=1,
    max_size=3,
)


@every_tool_format
@settings(max_examples=40, deadline=None)
@given(st.data(), CALLS)
def test_calls_that_are_written_as_they_should_be_are_found_in_any_cutting(name, data, calls):
    before, behind = ("", "") if name == "pythonic" else ("", " bye") if name == "llama4_pythonic" else ("Hi ", " bye")
    markers = tools(name).markers
    text = WRITTEN[name](calls)
    if name == "openai":
        text = f"<|channel|>commentary<|message|>{before}<|end|><|start|>assistant{text}"
        text += f"<|start|>assistant<|channel|>final<|message|>{behind}<|return|>"
        behind = f"\n{behind}"
    else:
        text = f"{before}{text}{behind}"
    found = parse_in_parts(lambda: tools(name), text, data.draw(cuttings(len(text))))
    assert [found_name for found_name, _ in found.calls] == [call_name for call_name, _ in calls]
    for (_, written), (_, arguments) in zip(calls, found.calls, strict=True):
        assert json.loads(arguments) == written
        assert name in CONVERTED or arguments == dumped(written)
    assert "".join(found.content.split()) == "".join(f"{before}{behind}".split())
    assert not any(marker in found.content for marker in markers)


@every_tool_format
def test_content_around_calls_is_kept_and_separating_space_is_not(name):
    text = WRITTEN[name]([("f", {"n": 1}), ("g.h", {})])
    parser = MessageParser(None, tools(name))
    assert parse(parser, text, "\n") == Found("", "", [("f", '{"n": 1}'), ("g.h", "{}")], parse(tools(name), text).ids)


@every_tool_format
def test_only_the_first_call_counts_where_one_is_allowed(name):
    text = WRITTEN[name]([("f", {"n": 1}), ("g.h", {"a": "x"})])
    assert parse(MessageParser(None, tools(name), parallel_tool_calls=False), text).calls == [("f", '{"n": 1}')]


@every_tool_format
def test_every_call_has_an_id_of_its_own(name):
    parser = tool_parser(name)()
    ids = parse(parser, WRITTEN[name]([("f", {})] * 20)).ids
    assert len(set(ids)) == 20
    assert all(id_.isascii() and (len(id_) == 9) == (name == "mistral") for id_ in ids)


@every_tool_format
def test_ids_are_the_same_for_a_piece_that_is_read_twice_and_others_for_another_message(name):
    text = WRITTEN[name]([("f", {"n": 1}), ("g.h", {})])
    first = tool_parser(name)()
    first.push(text[:3])
    ids = [parse(tool_parser(name)().restore(first.state()), text[3:]).ids for _ in range(2)]
    assert ids[0] == ids[1]
    assert len({*ids[0], *parse(tool_parser(name)(), text).ids}) == 4


@every_tool_format
def test_arguments_are_out_before_they_have_ended(name):
    """Of a format that has to be converted, as soon as the first value has ended."""
    text = WRITTEN[name]([("f", {"n": 1, "a": "x" * 500})])
    parser = tools(name)
    events = list(itertools.chain.from_iterable(parser.push(character) for character in text[: text.rindex("xxx")]))
    arguments = "".join(event.text for event in events if hasattr(event, "index") and hasattr(event, "text"))
    assert arguments.startswith('{"n": 1')
    assert name in ("pythonic", "llama4_pythonic") or arguments.count("x") > 450


@every_parser
@pytest.mark.parametrize("state", [None, [], "text", {"unknown": 1}, {"held": 1}, {"held": None}, {"phase": "no such"}])
def test_what_is_no_state_is_refused(make, texts, state):
    with pytest.raises(ValidationError):
        make().restore(state)


JSON = st.none() | st.booleans() | st.integers(-3, 2**60) | st.text(max_size=5) | st.lists(st.text(max_size=5), max_size=2)


@every_parser
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_an_altered_state_is_refused_or_harmless(make, texts, data):
    parser: OutputParser = make()
    parser.push(data.draw(texts))
    state = parser.state()
    for name in data.draw(st.lists(st.sampled_from(list(vars(parser.new_state()))), max_size=3)):
        state[name] = data.draw(JSON | st.sampled_from(_values_of(parser, name)))
    try:
        parser = make().restore(state)
    except ValidationError:
        return
    parser.push(data.draw(texts))
    parser.state()
    parser.finish()


def _values_of(parser: OutputParser, name: str) -> list[object]:
    """What a field can be by its type: the strings of its Literal, or texts that markup may be in."""
    literals = getattr(type(parser).new_state.__dataclass_fields__[name].type, "__args__", ())
    return [value for value in literals if isinstance(value, str)] or [True, 2, "f", "<", ["<tool_call>"], ['{"a'], ["[f("]]


@every_parser
def test_a_state_is_small_however_long_the_output(make, texts):
    endless = (
        "text " * 20_000,
        "\n" * 100_000,
        "{" * 50_000,
        "<" * 50_000,
        "[" * 50_000,
        "<tool_call>" * 9_000,
        '{"a": [' * 9_000,
    )
    for text in endless:
        parser = make()
        parser.push(text)
        assert len(json.dumps(parser.state())) < 3 * LOOK_BACK


@every_tool_format
def test_time_grows_with_the_length_of_the_output_only(name):
    written = WRITTEN[name]([("f", {"a": '{"name": "x'})])
    beginnings = [written[:length] for length in range(1, len(written), 7)]
    nested = ['{"arguments": ', '{"parameters":{"a":[', '{"name":', "[f(a=[", "<function=f><parameter=n>"]
    for beginning in [written, *beginnings[-4:], *nested]:
        start = time.process_time()
        parse(tools(name), beginning * (50_000 // len(beginning)))
        assert time.process_time() - start < 3, beginning
