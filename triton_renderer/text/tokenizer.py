"""The tokenizer of the served model, and the tokens that end an output."""

from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast

from triton_renderer.settings import SettingsError


def load_tokenizer(model: str) -> PreTrainedTokenizerFast:
    """The fast tokenizer of `model`, a Hugging Face id or a folder.

    Raises SettingsError where it cannot be loaded, or exists only in its slow form: incremental detokenization reads
    the pieces and the decoder of `tokenizer.json`, which a slow tokenizer does not have.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise SettingsError(f"MODEL={model!r}: its tokenizer cannot be loaded: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise SettingsError(
            f"MODEL={model!r}: {type(tokenizer).__name__} is a slow tokenizer; one with a tokenizer.json is needed"
        )
    return tokenizer


def eos_token_ids(model: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """The tokens at which generation ends by itself: those of generation_config.json, and the tokenizer's own.

    `config` is that of `model`, a Hugging Face id or a folder: where there is no generation_config.json, it tells.
    """
    try:
        generation_config = GenerationConfig.from_pretrained(model)
    except OSError:  # it is optional
        generation_config = GenerationConfig.from_model_config(config)
    eos = generation_config.eos_token_id
    listed = eos if isinstance(eos, list) else [eos]
    return frozenset(token_id for token_id in [*listed, tokenizer.eos_token_id] if token_id is not None)
