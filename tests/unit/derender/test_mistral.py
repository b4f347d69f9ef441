"""Mistral's calls, in the forms of all its tokenizers."""

import re

import pytest

from tests.unit.derender.parsing import numbered_ids, parse
from triton_renderer.derender.parsers.message import MessageParser
from triton_renderer.derender.parsers.mistral import MistralTools

OBJECT = '{"name": "f", "arguments": {"a": [1]}}'


def found(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, the same for the whole text and for single characters."""
    result = parse(MistralTools(numbered_ids()), text)
    assert parse(MistralTools(numbered_ids()), *text) == result
    return result.content, result.calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"[TOOL_CALLS] [{OBJECT}]", "", [("f", '{"a": [1]}')]),
        (
            f'[TOOL_CALLS][{OBJECT}, {{"arguments": {{}}, "name": "g", "id": "123456789"}}]',
            "",
            [("f", '{"a": [1]}'), ("g", "{}")],
        ),
        (f"[TOOL_CALLS]{OBJECT}", "", [("f", '{"a": [1]}')]),
        (f"[TOOL_CALLS][{OBJECT}] bye", " bye", [("f", '{"a": [1]}')]),
        (f"[TOOL_CALLS][{OBJECT}][TOOL_CALLS]g{{}}", "", [("f", '{"a": [1]}'), ("g", "{}")]),
        ('hi[TOOL_CALLS]f[ARGS]{"a": 1}', "hi", [("f", '{"a": 1}')]),
        ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{"b": "}"} bye', " bye", [("f", '{"a": 1}'), ("g", '{"b": "}"}')]),
        ('[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
        ('[TOOL_CALLS]get_weather {"a": [[]]}', "", [("get_weather", '{"a": [[]]}')]),
        ("[TOOL_CALLS][TOOL_CALLS]f{}", "", [("f", "{}")]),
        ("[TOOL_CALLS]f[ARGS][TOOL_CALLS]g{}", "", [("f", "{}"), ("g", "{}")]),
        ('[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}', "", [("f", '{"a": "[TOOL_CALLS]"}')]),
        ('[TOOL_CALLS]f[ARGS]{"a": 1[TOOL_CALLS]g{}', "", [("f", '{"a": 1'), ("g", "{}")]),
        ('[TOOL_CALLS]f[ARGS]{"a": [', "", [("f", '{"a": [')]),
        ('[TOOL_CALLS]f[ARGS]{"a": 1[TOOL_', "", [("f", '{"a": 1')]),
    ],
)
def test_calls_are_found_in_every_form(text, content, calls):
    assert found(text) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] I think {so}",
        "[TOOL_CALLS][1]",
        "[TOOL_CALLS][]",
        '[TOOL_CALLS]{"name": 1}',
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[CALL_ID]abc",
        "[TOOL_CALLS]f[1]",
        '[TOOL_CALLS]["f", {"a": 1}]',
        "[TOOL",
        "[ARGS]",
    ],
)
def test_what_is_no_call_is_content_and_harms_no_good_one(text):
    assert found(text) == (text, [])
    assert found(f'{text} [TOOL_CALLS]g[ARGS]{{"a": 1}}')[1] == [("g", '{"a": 1}')]
    assert found(f'[TOOL_CALLS]g[ARGS]{{"a": 1}} {text}') == (f" {text}", [("g", '{"a": 1}')])


@pytest.mark.parametrize("text", [f"[TOOL_CALLS][{', '.join([OBJECT] * 50)}]", "[TOOL_CALLS]f{}" * 50])
@pytest.mark.parametrize("cut", [False, True])
def test_ids_are_nine_letters_and_digits_and_distinct(text, cut):
    ids = parse(MessageParser(None, MistralTools()), *(text if cut else [text])).ids
    assert len(set(ids)) == 50
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call_id) for call_id in ids)
