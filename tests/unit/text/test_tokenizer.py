import pytest
from transformers import ByT5Tokenizer

from triton_renderer.settings import BUNDLED_MODEL, SettingsError
from triton_renderer.text.tokenizer import load_tokenizer


def test_loads_the_bundled_tokenizer():
    assert load_tokenizer(str(BUNDLED_MODEL)).encode("a", add_special_tokens=False)


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"MODEL=.*cannot be loaded"):
        load_tokenizer(str(tmp_path / "none"))


def test_a_slow_tokenizer_is_refused(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(SettingsError, match=r"ByT5Tokenizer is a slow tokenizer; one with a tokenizer\.json is needed"):
        load_tokenizer(str(tmp_path))
