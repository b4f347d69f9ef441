import pytest
from transformers import ByT5Tokenizer

from tests.unit.render.helpers import model_folder, settings
from triton_renderer.checkpoint import load_config
from triton_renderer.settings import BUNDLED_MODEL, SettingsError
from triton_renderer.text.tokenizer import eos_token_ids, load_tokenizer


def test_loads_the_bundled_tokenizer():
    assert load_tokenizer(str(BUNDLED_MODEL)).encode("a", add_special_tokens=False)


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"MODEL=.*cannot be loaded"):
        load_tokenizer(str(tmp_path / "none"))


def test_a_slow_tokenizer_is_refused(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(SettingsError, match=r"ByT5Tokenizer is a slow tokenizer; one with a tokenizer\.json is needed"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "further"),
    [
        ({"generation_config": {"eos_token_id": [5, 6]}}, {5, 6}),
        ({"generation_config": {"eos_token_id": 5}}, {5}),
        ({"generation_config": {}}, set()),
        (None, {7}),
    ],
)
def test_an_output_ends_by_the_generation_config_and_by_the_tokenizer(tmp_path, files, further):
    folder = model_folder(tmp_path / "m", **(files or {}))
    config = load_config(settings(model=str(folder)))
    if files is None:
        (folder / "generation_config.json").unlink()
        config.get_text_config().eos_token_id = config.eos_token_id = 7
    tokenizer = load_tokenizer(str(folder))
    assert eos_token_ids(str(folder), config, tokenizer) == {tokenizer.eos_token_id, *further}
