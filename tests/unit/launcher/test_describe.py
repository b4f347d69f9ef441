import subprocess
import sys
from typing import Any, get_args

from triton_renderer.launcher import describe as module
from triton_renderer.launcher.describe import describe, table
from triton_renderer.settings import Settings


def shown(default: Any) -> str:
    if default is None or default == ():
        return ""
    return str(int(default)) if isinstance(default, bool) else str(default)


def test_the_source_and_the_class_agree_on_every_setting() -> None:
    documented = [(setting.name, setting.default, setting.description) for setting in describe()]
    actual = [(name, shown(field.default), field.description) for name, field in Settings.model_fields.items()]
    assert documented == actual


def test_choices_are_those_of_the_type() -> None:
    choices = {setting.name: setting.choices for setting in describe()}
    assert choices["dtype"] == get_args(Settings.model_fields["dtype"].annotation)
    assert choices["shim_port"] == ()


def test_the_table_shows_the_bundled_model_as_a_path_in_the_project() -> None:
    assert table(describe()).splitlines()[0].split()[:2] == ["MODEL", "models/shapes-vl"]


def test_nothing_but_the_standard_library_is_needed() -> None:
    isolated = [sys.executable, "-I", "-S", module.__file__]
    printed = subprocess.run(isolated, capture_output=True, text=True, check=True, timeout=30).stdout
    assert printed == table(describe()) + "\n"
