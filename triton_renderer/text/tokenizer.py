"""Loading the tokenizer of the served model."""

from transformers import AutoTokenizer, PreTrainedTokenizerFast

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
