"""Tokenizing prompts so that nobody can type a media token.

A multimodal model marks a picture's place with special tokens, such as `<|image_pad|>`. A tokenizer makes the same ids of a
user who merely types these characters, and the picture would go to the wrong place. So here the tokenizer knows each media
token under a secret name only, and the chat template writes that name. What a user types stays ordinary text, wherever it
stands: in a message, a tool's description, an argument of the template. Other special tokens, such as `<|im_end|>`, remain
what they are, as in the reference.
"""

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from triton_renderer.render.fast_encoder import FastEncoder
from triton_renderer.settings import SettingsError

TokenIds = npt.NDArray[np.int64]

_MEDIA_TOKEN = re.compile(r"(image|img|video|vision|audio|boi|eoi|boa|eoa)(_\w+)?_token_(id|index)")
_SAMPLE = "Hello, wörld! 你好 🙂 1234567\n\n\tdef f(x):  return x  \n <b>&amp;</b>"


def media_token_ids(config: PreTrainedConfig) -> set[int]:
    """The ids that the model's configuration reserves for pictures, videos and sound, and for their start and end."""
    return {value for name, value in config.to_dict().items() if _MEDIA_TOKEN.fullmatch(name) and type(value) is int}


@dataclass(frozen=True)
class Encoded:
    """Token ids, and for each the (start, end) of its characters in the text where that was asked for."""

    token_ids: TokenIds
    offsets: list[tuple[int, int]] | None = None


class PromptTokenizer:
    """The model's tokenizer for prompts. It keeps no state between calls, so that several threads can use it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, media_tokens: Iterable[str] = ()) -> None:
        """Raises SettingsError where one of `media_tokens` cannot be kept apart from typed text."""
        self.hf = tokenizer
        self._plain: Tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.no_truncation()
        self._plain.no_padding()
        # Longer names first: one may be part of another.
        self._secret = {token: f"<{secrets.token_hex(16)}>" for token in sorted(media_tokens, key=len, reverse=True)}
        special = {token.content for token in self._plain.get_added_tokens_decoder().values()}
        if unknown := sorted(self._secret.keys() - special):
            raise SettingsError(f"MODEL: the media token {unknown[0]!r} is not a special token of its tokenizer")
        self._revealed = {secret: token for token, secret in self._secret.items()}
        self._guarded = _renamed(self._plain, self._secret) if self._secret else self._plain
        self._fast = FastEncoder.proven_equal(self._guarded)
        self._check()
        self.max_chars_per_token = max(map(len, self._plain.get_vocab()))
        self.frame = self._frame()
        """How many special tokens go before and behind a text, where they are wanted."""

    def encode(self, text: str, add_special_tokens: bool = False, with_offsets: bool = False) -> Encoded:
        """A prompt's tokens. Media tokens come only of what `hide` or the chat template put in."""
        if self._fast is not None and not with_offsets:
            return Encoded(self._fast.encode(text, add_special_tokens))
        encoding = self._guarded.encode(text, add_special_tokens=add_special_tokens)
        return Encoded(np.array(encoding.ids, np.int64), encoding.offsets if with_offsets else None)

    def decode(self, token_ids: TokenIds) -> str:
        """The text of these tokens, special ones included."""
        text: str = self._plain.decode(token_ids.tolist(), skip_special_tokens=False)
        return text

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name; None where there is none."""
        found: int | None = self._plain.token_to_id(token)
        return found

    def hide(self, text: str) -> str:
        """`text`, which is not a client's, with the media tokens under their secret names."""
        return _replace(text, self._secret)

    def reveal(self, text: str) -> str:
        """`text` with the media tokens under their own names: nothing secret may leave the process."""
        return _replace(text, self._revealed)

    def _frame(self) -> tuple[int, int]:
        text, framed = self.encode(_SAMPLE).token_ids.tolist(), self.encode(_SAMPLE, add_special_tokens=True).token_ids.tolist()
        added = len(framed) - len(text)
        before = next((before for before in range(added + 1) if framed[before : before + len(text)] == text), None)
        if before is None:
            raise SettingsError(f"MODEL: {type(self.hf).__name__} tokenizes a text otherwise where it adds special tokens")
        return before, added - before

    def _check(self) -> None:
        for token, secret in self._secret.items():
            token_id = self.token_id(token)
            typed, hidden = self.encode(f"a{token} b").token_ids, self.encode(f"a{secret} b").token_ids
            if token_id is None or token_id in typed or np.count_nonzero(hidden == token_id) != 1:
                raise SettingsError(f"MODEL: the media token {token!r} cannot be told from typed text")
        for special in (False, True):
            expected = self.hf(_SAMPLE, add_special_tokens=special)["input_ids"]
            if self.encode(_SAMPLE, special).token_ids.tolist() != list(expected):
                raise SettingsError(f"MODEL: {type(self.hf).__name__} does not tokenize as its tokenizer.json says")


def _renamed(tokenizer: Tokenizer, names: dict[str, str]) -> Tokenizer:
    """A copy of `tokenizer` in which these tokens have other names, and the same ids."""
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, dict):
        document["model"]["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocabulary.items()}
    else:  # Unigram: [piece, score] in the order of the ids
        document["model"]["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    return Tokenizer.from_str(json.dumps(document))


def _replace(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text
