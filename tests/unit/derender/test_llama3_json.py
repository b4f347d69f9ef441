"""Llama 3's calls, which are JSON and nothing else."""

import pytest

from tests.unit.derender.parsing import numbered_ids, parse
from triton_renderer.derender.parsers.base import LOOK_BACK
from triton_renderer.derender.parsers.llama3_json import Llama3JsonTools

CALL = '{"name": "f", "parameters": {"a": 1}}'


def found(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, the same for the whole text and for single characters."""
    result = parse(Llama3JsonTools(numbered_ids()), text)
    assert parse(Llama3JsonTools(numbered_ids()), *text) == result
    return result.content, result.calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [("f", '{"a": 1}')]),
        (f"<|python_tag|>{CALL}", "", [("f", '{"a": 1}')]),
        (f'{CALL}; {{"name": "g", "arguments": {{}}}}', " ", [("f", '{"a": 1}'), ("g", "{}")]),
        (f"{CALL}{CALL}", "", [("f", '{"a": 1}'), ("f", '{"a": 1}')]),
        (f"{CALL}<|python_tag|>{CALL}", "", [("f", '{"a": 1}'), ("f", '{"a": 1}')]),
        (f"Sure: {CALL} done;", "Sure:  done;", [("f", '{"a": 1}')]),
        ('{"type": "function", "name": "f", "parameters": {"a": "}"}}', "", [("f", '{"a": "}"}')]),
        ('{"parameters": {"x": [1]}, "name": "f"}', "", [("f", '{"x": [1]}')]),
        ('{"name": "f", "parameters": {"a": 1}, "id": {"b": "}"}} x', " x", [("f", '{"a": 1}')]),
        ('{\n  "name": "f",\n  "parameters": {\n    "a": 1\n  }\n}', "", [("f", '{\n    "a": 1\n  }')]),
    ],
)
def test_an_object_with_a_name_and_arguments_is_a_call_wherever_it_stands(text, content, calls):
    assert found(text) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f"}',
        '{"name": "f", "args": {}}',
        '{"name": "Bob", "age": 3}',
        '{"parameters": {"a": 1}}',
        '{"type": "function", "function": {"name": "f", "parameters": {}}}',
        '{"tools": [{"name": "f", "parameters": {}}]}',
        "[1, 2]",
        "{}",
        "void f() { return {1}; }",
        "{x}",
        '{"a": "unfinished',
        '{"name": "f", ',
        '{"name": 1, "parameters": {}}',
        '{"a": {"b": "\\"}"}, "c": [1, null]}',
        "<|python_tag|>print(1)",
        "<|python_tag|>",
    ],
)
def test_anything_else_is_content_with_all_that_is_in_it(text):
    assert found(text) == (text, [])
    assert found(f"{CALL}\n{text}") == (f"\n{text}", [("f", '{"a": 1}')])


@pytest.mark.parametrize("text", ['{"a": 1}', "{x}", "{ ", '{"a ', '{"f": {"a\n', '{"f": {"a": x} ', "<|python_tag|>"])
def test_what_is_no_call_harms_no_good_one_behind_it(text):
    content, calls = found(text + CALL)
    assert (content, calls) == (text.removesuffix("<|python_tag|>"), [("f", '{"a": 1}')])


@pytest.mark.parametrize("arguments", ['{"a": }', "[1]]", '"x', "12", "null"])
def test_behind_the_name_arguments_pass_valid_or_not(arguments):
    (name, passed), *_ = found(f'{{"name": "f", "parameters": {arguments}}}')[1]
    assert name == "f"
    assert passed.startswith(arguments.removesuffix("]]"))


def test_a_call_cut_by_length_has_what_came():
    assert found('{"name": "f", "parameters": {"a": "x') == ("", [("f", '{"a": "x')])


def test_a_call_that_takes_too_long_to_become_one_is_content():
    arguments = f'{{"a": "{"x" * LOOK_BACK}"}}'
    assert found(f'{{"name": "f", "parameters": {arguments}}}')[1] == [("f", arguments)]
    text = f'{{"parameters": {arguments}, "name": "f"}}'
    assert found(text) == (text, [])
    content, calls = found(text + CALL)
    assert (content, calls) == (text, [("f", '{"a": 1}')])
