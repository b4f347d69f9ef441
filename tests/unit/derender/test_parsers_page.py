"""docs/parsers.md is true: it names every parser, and its example is one."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.derender.parsing import Found, numbered_ids, parse
from triton_renderer.derender.parsers import tool_parser
from triton_renderer.text.formats import REASONING_FORMATS, TOOL_FORMATS

PAGE = (Path(__file__).parents[3] / "docs" / "parsers.md").read_text(encoding="utf-8")


def table(heading: str) -> list[str]:
    """The names in the first column of the table with this heading."""
    rows = PAGE.partition(f"| `{heading}` |")[2].partition("\n\n")[0].splitlines()
    return [name[1] for row in rows if (name := re.match(r"\| `(\w+)` \|", row))]


def test_every_parser_is_in_its_table() -> None:
    assert table("TOOL_CALL_PARSER") == list(TOOL_FORMATS)
    assert table("REASONING_PARSER") == list(REASONING_FORMATS)


def test_the_example_is_a_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("my_format")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "triton_renderer.derender.parsers.my_format", module)
    monkeypatch.setitem(TOOL_FORMATS, "my_format", "my_format:MyTools")
    parser = tool_parser("my_format")
    text = 'a <call>{"name": "f", "arguments": {"b": "</call>"}}</call><call>oops</call>'
    for pieces in ([text], list(text)):
        found = parse(parser(numbered_ids()), *pieces)
        assert found == Found("", "a <call>oops</call>", [("f", '{"b": "</call>"}')], ["call_0"])
