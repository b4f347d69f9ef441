"""Arguments of a call in the manner of Python, `city="Paris", days=3`, held to a JSON schema as far as Python can say it.

A value is written as Python would, or as JSON, which the parser reads as well.
"""

import json
from typing import Any

from triton_renderer.render.tags import Tag, either, grammar, json_schema, maybe, regex, sequence, text

_ANY = r"""
root ::= (argument (", " argument)*)?
argument ::= [a-zA-Z_] [a-zA-Z0-9_]* "=" value
value ::= string | number | "True" | "False" | "None" | list | dict
list ::= "[" (value (", " value)*)? "]"
dict ::= "{" (string ": " value (", " string ": " value)*)? "}"
number ::= "-"? ("0" | [1-9] [0-9]{0,17}) ("." [0-9]{1,17})?
string ::= "\"" ([^"\\\n\r\x00] | "\\" [\\"'nrtbf])* "\"" | "'" ([^'\\\n\r\x00] | "\\" [\\"'nrtbf])* "'"
"""
"""Any arguments, each with a keyword."""

_CHARACTER = r'([^"\\\x00-\x1f]|\\["\\nrtbf])'
_OF_OBJECTS = frozenset(
    {"type", "properties", "required", "additionalProperties", "title", "description", "$defs", "definitions", "$schema", "$id"}
)
"""Keywords of a schema for arguments that are held to, or that say nothing of a value."""
_PLAIN = frozenset({"type", "title", "description", "default", "examples"})
"""Keywords of a text of any form."""


def is_callable(name: str) -> bool:
    """A tool of this name can be called in Python."""
    return all(part.isidentifier() for part in name.split("."))


def arguments_in_python(schema: dict[str, Any] | None) -> Tag:
    """What stands between the parentheses: any arguments without a schema, and with one that asks for more than Python's
    keywords can say (alternatives of the whole, names by a pattern). Those that may be left out come last."""
    found = _parameters(schema) if schema is not None else None
    if found is None:
        return grammar(_ANY)
    required, optional = found
    further = [maybe(sequence(text(", "), argument)) for argument in optional]
    if required:
        return sequence(required[0], *(sequence(text(", "), argument) for argument in required[1:]), *further)
    if not optional:
        return text("")
    return maybe(either(*(sequence(argument, *further[place + 1 :]) for place, argument in enumerate(optional))))


def _parameters(schema: dict[str, Any]) -> tuple[list[Tag], list[Tag]] | None:
    """The required arguments and the others, each with its keyword; None for a schema that says more than those."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not (schema.keys() <= _OF_OBJECTS and isinstance(properties, dict) and isinstance(required, list)):
        return None
    defined: dict[str, Any] = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    arguments = {
        name: sequence(text(f"{name}="), _value(value, defined)) for name, value in properties.items() if name.isidentifier()
    }
    if not all(isinstance(name, str) and name in arguments for name in required):
        return None
    return [arguments[name] for name in dict.fromkeys(required)], [
        argument for name, argument in arguments.items() if name not in required
    ]


def _value(schema: Any, defined: dict[str, Any]) -> Tag:
    """A value of this schema, which may refer to what is `defined` around it."""
    match schema:
        case {"const": str() | int() | float() | None as value}:
            return text(_literal(value))
        case {"enum": [_, *_] as values} if all(isinstance(value, str | int | float | None) for value in values):
            return either(*(text(_literal(value)) for value in values))
        case {"type": "boolean"}:
            return either(text("True"), text("False"))
        case {"type": "null"}:
            return text("None")
        case {"type": "string"} if schema.keys() <= _PLAIN:
            return regex(f'"{_CHARACTER}*"')
    return json_schema(schema | defined if isinstance(schema, dict) else schema)


def _literal(value: str | float | bool | None) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
