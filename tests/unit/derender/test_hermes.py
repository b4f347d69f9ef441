import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.derender.parsing import OUTPUTS, Found, call, numbered_ids, parse, parse_in_parts
from tests.unit.text.tokenizers_for_tests import cuttings
from triton_renderer.derender.parsers.hermes import HermesTools


def hermes() -> HermesTools:
    return HermesTools(numbered_ids())


def found(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, the same for the whole text and for single characters."""
    result = parse(hermes(), text)
    assert parse(hermes(), *text) == result
    return result.content, result.calls


@pytest.mark.parametrize(
    "arguments",
    [
        "{}",
        '{"city": "Paris"}',
        '{"numbers":[{"a":1}]}',
        '{"a": "{a,b and }", "b": ["]", {"c": "\\"}\\\\"}]}',
        '{"text": "use </tool_call> and <tool_call> tags"}',
        '{"a": "über 🙂"}',
        '{\n  "a": 1,\n  "b": null\n}',
        "[1, 2]",
        '"a string, {quoted}"',
        "null",
        "-1.5e3",
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        '<tool_call>\n{{"name": "f", "arguments": {0}}}\n</tool_call>',
        '<tool_call>{{"name":"f","arguments":{0}}}</tool_call>',
        '<tool_call>\n{{"arguments": {0}, "name": "f"}}\n</tool_call>',
        '<tool_call>\n{{"id": [1, {{"x": "}}"}}], "name": "f", "arguments": {0}, "extra": {{"name": "g"}}}}\n</tool_call>',
        '<tool_call>\n{{"name": "f", "arguments": {0} }}',
    ],
)
def test_arguments_come_as_they_are_written(form, arguments):
    content, calls = found(form.format(arguments))
    assert (content, calls) == ("", [("f", arguments)])
    json.loads(calls[0][1])


def test_text_around_and_between_calls_is_kept():
    assert found(f"a {call('f')}\n{call('g')} b") == ("a \n b", [("f", "{}"), ("g", "{}")])


def test_each_call_has_an_id_of_its_own():
    assert parse(hermes(), call() + call()).ids == ["call_0", "call_1"]


def test_arguments_are_streamed_while_they_come():
    parser = hermes()
    parser.push('<tool_call>\n{"name": "f", "arguments": ')
    assert [[event.text for event in parser.push(text)] for text in ('{"a"', ": 1", "}")] == [['{"a"'], [": 1"], ["}"]]
    assert parser.push("}\n</tool_call>") == parser.finish() == []


def test_the_name_is_out_before_the_arguments():
    parser = hermes()
    assert parser.push('<tool_call>\n{"name": "f') == []
    (event,) = parser.push('"')
    assert (event.index, event.id, event.name) == (0, "call_0", "f")


@pytest.mark.parametrize("text", ["<", "<tool", "<tool_call", "a <tool_cal"])
def test_what_may_be_a_marker_is_delivered_at_the_end(text):
    assert found(text) == (text, [])


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>\nnot JSON\n</tool_call>",
        '<tool_call>\n{"name": "f',
        '<tool_call>\n{"name": 1, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "\\x", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": "x\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 1}</tool_call>',
        '<tool_call>\n{"arguments": ], "name": "f"}</tool_call>',
        '<tool_call>\n{"id": , "name": "f"}</tool_call>',
        '<tool_call>\n{"id": oops, "name": "f"}</tool_call>',
        '<tool_call>\n[{"name": "f", "arguments": {}}]\n</tool_call>',
        '<tool_call>\n{name: "f"}\n</tool_call>',
        '<tool_call>\n{"arguments": 12 ',
        '<tool_call>\n{"arguments": "a\\',
        "<tool_call></tool_call>",
    ],
)
def test_a_call_without_a_name_is_content_and_harms_no_good_one(broken):
    assert found(broken) == (broken, [])
    assert found(f"{broken}\n{call('g')}")[1] == [("g", "{}")]
    assert found(f"{call('g')}{broken}") == (broken, [("g", "{}")])


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"a": }', '{"a": }'),
        ('{"a": "x}', '{"a": "x}}\n'),
        ('{"a": [1, 2}', '{"a": [1, 2}}'),
        ('{"a": 1', '{"a": 1}'),
        ('{"a": {', '{"a": {}\n'),
        ("foo bar", "foo bar"),
        ("1 < 2", "1 < 2"),
        ('{"a": "line\nbreak"}', '{"a": "line\nbreak"}'),
        ("[1]]", "[1]"),
        ("", ""),
    ],
)
def test_behind_the_name_arguments_pass_valid_or_not_and_harm_no_good_call(body, arguments):
    assert found(f"{call('f', body)}\n{call('g')}") == ("\n", [("f", arguments), ("g", "{}")])


def test_a_marker_ends_an_unfinished_call():
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    assert found(text) == ("", [("f", '{"a": 1'), ("g", "{}")])
    text = f'<tool_call>\n{{"name": "f", "arguments": {{"a": "x\n{call("g")}'
    assert found(text) == ("", [("f", '{"a": "x\n'), ("g", "{}")])


def test_a_call_cut_by_length_has_what_came():
    assert found('<tool_call>\n{"name": "f", "arguments": {"a": "x') == ("", [("f", '{"a": "x')])
    assert found('<tool_call>\n{"name": "f"') == ("", [("f", "")])
    assert found('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_c') == ("", [("f", "{}")])


def test_a_call_without_arguments_has_an_empty_object():
    assert found('<tool_call>\n{"name": "f"}\n</tool_call>') == ("", [("f", "{}")])
    assert found('<tool_call>\n{"name": "f"\n</tool_call>') == ("", [("f", "{}")])


def test_a_closing_brace_too_many_is_dropped():
    assert found('<tool_call>\n{"name": "f", "arguments": {}}}\n</tool_call>') == ("", [("f", "{}")])


def test_a_call_without_its_end_marker_leaves_the_text_behind_it():
    assert found('<tool_call>\n{"name": "f", "arguments": {}}\nDone.') == ("Done.", [("f", "{}")])


def test_a_second_name_or_second_arguments_are_ignored():
    text = '<tool_call>{"name": "f", "name": "g", "arguments": {"a": 1}, "arguments": {}}</tool_call>'
    assert found(text) == ("", [("f", '{"a": 1}')])


def test_escapes_in_names_are_read():
    assert found('<tool_call>{"na\\u006de": "f\\u00fc", "arguments": {}}</tool_call>') == ("", [("fü", "{}")])


@settings(deadline=None)
@given(st.data(), OUTPUTS)
def test_the_cutting_changes_nothing(data, text):
    cuts = data.draw(cuttings(len(text)))
    ids = numbered_ids()
    assert parse_in_parts(lambda: HermesTools(ids), text, cuts) == parse(hermes(), text)


@settings(deadline=None)
@given(OUTPUTS)
def test_without_a_call_the_content_is_the_output(text):
    result = parse(hermes(), text)
    if not result.calls:
        assert result == Found(content=text)


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_json_value_passes_unchanged(value):
    for ascii_only in (True, False):
        arguments = json.dumps(value, ensure_ascii=ascii_only)
        assert parse(hermes(), f"a{call('f', arguments)}b") == Found("", "ab", [("f", arguments)], ["call_0"])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 10_000,
        '<tool_call>{"a":"' * 10_000,
        '<tool_call>{"' + "\\n" * 100_000,
        '<tool_call>{"arguments": [' + '"<",' * 30_000,
        call("f", f'{{"a": "{"x<" * 30_000}"}}'),
    ],
    ids=range(5),
)
def test_time_grows_with_the_length_of_the_output_only(text):
    start = time.process_time()
    parse(hermes(), text)
    assert time.process_time() - start < 5
