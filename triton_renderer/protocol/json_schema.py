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


def parameter_types(schema: dict[str, Any] | None) -> dict[str, list[str]]:
    """The names of the JSON types that each parameter of a tool may have; sorted, ["string"] where nothing is said."""
    properties = (schema or {}).get("properties")
    return {name: types_of(value) for name, value in properties.items()} if isinstance(properties, dict) else {}


def types_of(schema: Any) -> list[str]:
    """The types of one value by its `type`, the values of its `enum`, and its alternatives."""
    return sorted(_types(schema, _MAX_DEPTH)) or ["string"]


def _types(schema: Any, depth: int) -> set[str]:
    if not isinstance(schema, dict) or not depth:
        return {"string"}
    declared, values = schema.get("type"), schema.get("enum")
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    types = {_ALIASES.get(name.strip().lower(), name.strip().lower()) for name in names if isinstance(name, str)}
    types |= {_TYPE_OF[type(value)] for value in (values if isinstance(values, list) else []) if type(value) in _TYPE_OF}
    for key in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(key)
        for alternative in alternatives if isinstance(alternatives, list) else []:
            types |= _types(alternative, depth - 1)
    return types or {"string"}
