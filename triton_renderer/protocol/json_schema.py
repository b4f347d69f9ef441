"""What a tool's JSON schema says of the types of its parameters."""

from typing import Any

_ALIASES = {
    "str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string",
    "int": "integer", "int32": "integer", "int64": "integer", "uint": "integer", "uint32": "integer", "uint64": "integer",
    "long": "integer", "short": "integer", "unsigned": "integer",
    "float": "number", "float32": "number", "float64": "number", "double": "number",
    "bool": "boolean", "dict": "object", "arr": "array", "list": "array", "sequence": "array",
}  # fmt: skip
"""Names of other languages that schemas are found to have, as in the reference."""
_TYPE_OF = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_MAX_DEPTH = 8

_Known = dict[tuple[str, int], set[str]]
"""The types that references stand for, by how deep those may still go. Definitions that refer to each other are looked into
once each, and not once for every way that leads to them."""


def parameter_types(schema: dict[str, Any] | None) -> dict[str, list[str]]:
    """The names of the JSON types that each parameter of a tool may have; sorted, ["string"] where nothing is said."""
    properties = (schema or {}).get("properties")
    known: _Known = {}
    return {name: _named(value, schema, known) for name, value in properties.items()} if isinstance(properties, dict) else {}


def types_of(schema: Any, root: Any = None) -> list[str]:
    """The types of one value by its `type`, the values of its `enum` or `const`, its alternatives, and what it refers to in
    `root`."""
    return _named(schema, root, {})


def _named(schema: Any, root: Any, known: _Known) -> list[str]:
    return sorted(_types(schema, root, _MAX_DEPTH, known)) or ["string"]


def _types(schema: Any, root: Any, depth: int, known: _Known) -> set[str]:
    if not isinstance(schema, dict) or not depth:
        return {"string"}
    declared, values = schema.get("type"), schema.get("enum")
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    types = {_ALIASES.get(name.strip().lower(), name.strip().lower()) for name in names if isinstance(name, str)}
    values = [*(values if isinstance(values, list) else []), *([schema["const"]] if "const" in schema else [])]
    types |= {_TYPE_OF[type(value)] for value in values if type(value) in _TYPE_OF}
    for key in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(key)
        for alternative in alternatives if isinstance(alternatives, list) else []:
            types |= _types(alternative, root, depth - 1, known)
    if not types and isinstance(reference := schema.get("$ref"), str):
        if (reference, depth) not in known:
            known[reference, depth] = _types(_referred(reference, root), root, depth - 1, known)
        return known[reference, depth]
    return types or {"string"}


def _referred(reference: str, root: Any) -> Any:
    """What `#/$defs/name` stands for; None for what is not there."""
    start, *path = reference.split("/")
    value = root if start == "#" else None
    for name in path:
        value = value.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
    return value
