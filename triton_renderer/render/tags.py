"""The parts of a structural tag, in xgrammar's form and with all their fields, as the reference writes them."""

from collections.abc import Sequence
from typing import Any

Tag = dict[str, Any]


def text(value: str) -> Tag:
    """Exactly this."""
    return {"type": "const_string", "value": value}


def any_text(excludes: Sequence[str] = ()) -> Tag:
    """Any text in which none of `excludes` is."""
    return {"type": "any_text", "excludes": list(excludes)}


def regex(pattern: str) -> Tag:
    """What matches `pattern` as a whole."""
    return {"type": "regex", "pattern": pattern}


def grammar(ebnf: str) -> Tag:
    """What this grammar's `root` says."""
    return {"type": "grammar", "grammar": ebnf}


def json_schema(schema: dict[str, Any] | bool, style: str = "json") -> Tag:
    """A value of `schema`; `style` is how it is written."""
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": style,
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": [],
    }


def between(begin: str, content: Tag, end: str) -> Tag:
    """`content` with marks around it: what lists of tags are made of."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: Tag) -> Tag:
    """One after another."""
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Tag) -> Tag:
    """One of these."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def maybe(content: Tag) -> Tag:
    """Once or not at all."""
    return {"type": "optional", "content": content}


def any_number(content: Tag) -> Tag:
    """Not at all, or any number of times."""
    return {"type": "star", "content": content}


def listed(tags: Sequence[Tag], separator: str, *, single: bool) -> Tag:
    """One of `tags` or more, with `separator` between them and nothing else."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def triggered(
    triggers: Sequence[str],
    tags: Sequence[Tag],
    *,
    at_least_one: bool = False,
    single: bool = False,
    excludes: Sequence[str] = (),
) -> Tag:
    """Any text; what begins with one of `triggers` has to be one of `tags`. `at_least_one`: the first with the output's start."""
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        "at_least_one": at_least_one,
        "stop_after_first": single,
        "excludes": list(excludes),
    }
