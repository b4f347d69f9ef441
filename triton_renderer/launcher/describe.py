"""The table of all settings, read from the source of settings.py.

Standard library only, and nothing is imported: `make help` prints it before anything is installed.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

SETTINGS = Path(__file__).resolve().parent.parent / "settings.py"


@dataclass(frozen=True)
class Setting:
    """One setting as it is documented. `default` is empty where there is none, `choices` where any value does."""

    name: str
    default: str
    choices: tuple[str, ...]
    description: str


def describe() -> list[Setting]:
    """Every field of `Settings`, in the order of the source."""
    tree = ast.parse(SETTINGS.read_text(encoding="utf-8"))
    constants = {"Path": Path, "str": str, "__file__": str(SETTINGS)}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper():
                constants[name] = _value(node.value, constants)
    settings = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    return [
        _setting(node.target.id, node.annotation, node.value, constants)
        for node in settings.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call)
    ]


def _setting(name: str, annotation: ast.expr, field: ast.Call, constants: dict[str, object]) -> Setting:
    default = _value(field.args[0], constants)
    choices: tuple[str, ...] = ()
    match annotation:
        case ast.Subscript(value=ast.Name(id="Literal")):
            choices = _literals(annotation.slice)
    description = next(_value(keyword.value, constants) for keyword in field.keywords if keyword.arg == "description")
    shown = "" if default in (None, ()) else str(int(default)) if isinstance(default, bool) else str(default)
    return Setting(name, shown, choices, str(description))


def _literals(node: ast.expr) -> tuple[str, ...]:
    values = node.elts if isinstance(node, ast.Tuple) else [node]
    return tuple(str(ast.literal_eval(value)) for value in values)


def _value(node: ast.expr, constants: dict[str, object]) -> object:
    """The value of an expression of settings.py over literals and its constants."""
    return eval(compile(ast.Expression(node), str(SETTINGS), "eval"), {"__builtins__": {}}, constants)


def table(settings: list[Setting]) -> str:
    """One line for each setting: variable, default, meaning."""
    lines = []
    for setting in settings:
        default = _short(setting.default) if setting.default else "-"
        choices = f" [{' | '.join(setting.choices)}]" if len(setting.choices) > 1 else ""
        lines.append(f"  {setting.name.upper():<32} {default:<18} {setting.description}{choices}")
    return "\n".join(lines)


def _short(default: str) -> str:
    """A path below the project, as seen from there."""
    path = Path(default)
    project = SETTINGS.parent.parent
    return str(path.relative_to(project)) if path.is_absolute() and path.is_relative_to(project) else default


if __name__ == "__main__":
    print(table(describe()))
