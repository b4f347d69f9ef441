from pathlib import Path

import pytest

from triton_renderer.launcher import packaged_models
from triton_renderer.launcher.packaged_models import PACKAGED_MODELS, with_packaged_model
from triton_renderer.settings import load_settings


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    folders: list[Path] = []
    monkeypatch.setattr(packaged_models, "unpack_once", lambda wheel, folder, finish: folders.append(folder))
    return folders


def test_packaged_model_becomes_a_folder_of_the_environment_and_keeps_its_name(tmp_path: Path, unpacked: list[Path]) -> None:
    settings = with_packaged_model(load_settings(model="smollm2", max_model_len=100), tmp_path)
    assert unpacked == [tmp_path / "models" / "smollm2"]
    assert (settings.model, settings.model_name, settings.max_model_len) == (str(unpacked[0]), "smollm2", 100)
    named = with_packaged_model(load_settings(model="smollm2", served_model_name="small"), tmp_path)
    assert named.model_name == "small"


@pytest.mark.parametrize("model", ["org/model", "smollm2/other"])
def test_other_names_are_left_alone(tmp_path: Path, unpacked: list[Path], model: str) -> None:
    settings = load_settings(model=model)
    assert with_packaged_model(settings, tmp_path) is settings
    assert not unpacked


def test_a_folder_of_that_name_comes_first(tmp_path: Path, unpacked: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in PACKAGED_MODELS:
        Path(name).mkdir()
        settings = load_settings(model=name)
        assert with_packaged_model(settings, tmp_path) is settings
    assert not unpacked
