"""The README's table of settings is the one that the settings make."""

import re
from pathlib import Path

from triton_renderer.settings import BUNDLED_MODEL, Settings

README = (Path(__file__).parents[2] / "README.md").read_text()


def default(name: str) -> str:
    value = Settings.model_fields[name].default
    if value == str(BUNDLED_MODEL):
        return "`models/shapes-vl`"
    if value in (None, ()):
        return ""
    return f"`{int(value) if isinstance(value, bool) else value}`"


def test_settings_table_is_complete_and_true() -> None:
    rows = re.findall(r"^\| `([A-Z_0-9]+)` \| (.*?) \| (.*?) \|$", README, re.MULTILINE)
    expected = [(name.upper(), default(name), field.description) for name, field in Settings.model_fields.items()]
    assert rows == expected
