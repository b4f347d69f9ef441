import os
import re
import subprocess
from pathlib import Path

import pytest

from triton_renderer.settings import Settings

PROJECT = Path(__file__).resolve().parents[3]


def make(*arguments: str, **environment: str) -> str:
    command = ["make", "--no-print-directory", *arguments]
    variables = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        command, cwd=PROJECT, env=variables | environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def test_help_lists_every_target_and_every_setting() -> None:
    text = make("help")
    targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    for name in [*(f"make {target}" for target in targets), *map(str.upper, Settings.model_fields)]:
        assert re.search(rf"^  {name}\b", text, re.MULTILINE), name


def test_help_needs_no_environment(tmp_path: Path) -> None:
    assert "SHIM_PORT" in make("help", f"VENV={tmp_path / 'none'}")


@pytest.mark.parametrize("given", ["command line", "environment"])
def test_settings_reach_the_server_whichever_way_they_are_given(given: str, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    for stamp in (".created", ".installed"):
        (venv / stamp).touch()
    program = venv / "bin" / "triton-renderer"
    program.write_text('#!/bin/sh\necho "$1 MODEL=$MODEL SHIM_PORT=${SHIM_PORT-unset}"\n')
    program.chmod(0o755)
    if given == "command line":
        text = make("serve", f"VENV={venv}", "MODEL=some/model")
    else:
        text = make("serve", f"VENV={venv}", MODEL="some/model")
    assert "serve MODEL=some/model SHIM_PORT=unset" in text


def test_no_pip_runs_when_all_is_installed_and_pyproject_is_older(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    for stamp in (".created", ".installed"):
        (venv / stamp).touch()
    assert "pip install" not in make("--dry-run", "serve", f"VENV={venv}")
    os.utime(venv / ".installed", (0, 0))
    assert "pip install" in make("--dry-run", "serve", f"VENV={venv}")


@pytest.mark.parametrize(("python", "words"), [("", "Python 3.11 is needed"), ("/no/such/python3.11", "No such file")])
def test_a_missing_python_is_reported(python: str, words: str, tmp_path: Path) -> None:
    text = make("serve", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}")
    assert words in text
    assert not (tmp_path / "venv").exists()
