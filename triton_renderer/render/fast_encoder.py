"""Token ids without the cost of `tokenizers`: a drop-in that is used only where it proves equal.

`fastokens` reads a `tokenizer.json` and gives the same ids, on long texts about a hundred times as fast. It gives no
offsets, and does not know every kind of tokenizer; so each one is tried at load, and where it does not read the file or
answers anything else, `tokenizers` itself does the work.
"""

import logging
import random

import fastokens
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

# What tokenizers treat in ways of their own: case, digits, runs of spaces, line ends, quotes, code, markup, composed and
# decomposed letters, compatibility forms, scripts with and without spaces, emoji of several code points, invisible and
# control characters, private use.
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    " \t\n\r\u00a0\u3000\u2028\v\f",
    "'\"`’“”.,;:!?…-–_/\\|()[]{}<>@#$%^&*+=~",
    "äöüßéèñçøåœﬁﬀ①½Ⅷ²",
    "e\u0301o\u0308n\u0303\u0327\u200d\u200b\ufeff\u00ad",
    "абвгдежЖЮя αβγΩ אבג עברית ابجد हिन्दी ไทย",
    "你好世界日本語のテキスト한국어",
    "🙂🎉👩‍👩‍👧🇩🇪👍🏽",
    "\x00\x01\x07\x1b\x7f\ue000\U0010ffff",
)
_WORDS = (
    "Hello",
    "I'll",
    "don't",
    "WE'VE",
    "don’t",
    "def",
    "return",
    "http://",
    "&amp;",
    "    ",
    "\r\n\r\n",
    "1234567",
    "3.14",
)
_SAMPLES = 200


def samples(special: list[str]) -> list[str]:
    """Texts to compare two tokenizers on, the same in every process; `special` are tokens with names to write out."""
    rng = random.Random(0)
    texts = ["", " ", "a"]
    for _ in range(_SAMPLES):
        pieces = []
        for _ in range(rng.randint(1, 12)):
            choice = rng.random()
            if choice < 0.65:
                alphabet = rng.choice(_ALPHABETS)
                pieces.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 9))))
            elif choice < 0.9 or not special:
                pieces.append(rng.choice(_WORDS))
            else:
                pieces.append(rng.choice(special))
            if rng.random() < 0.5:
                pieces.append(" ")
        texts.append("".join(pieces))
    return texts


class FastEncoder:
    """Texts to token ids, equal to those of `tokenizers`. Safe to use from several threads."""

    def __init__(self, native: fastokens.Tokenizer) -> None:
        self._native = native

    @classmethod
    def proven_equal(cls, tokenizer: Tokenizer) -> "FastEncoder | None":
        """One that gives what `tokenizer` gives, on each of `samples` with and without special tokens; else None."""
        try:
            encoder = cls(fastokens.Tokenizer.from_json_str(tokenizer.to_str()))
        except Exception as error:  # it has no error class of its own; whatever it cannot read, `tokenizers` can
            logger.info("prompts are tokenized by `tokenizers`: fastokens does not read this tokenizer: %s", error)
            return None
        special = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values())
        for text in samples(special[:64]):
            for add_special_tokens in (False, True):
                expected = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
                if encoder.encode(text, add_special_tokens).tolist() != expected:
                    logger.info("prompts are tokenized by `tokenizers`: fastokens differs on %r", text)
                    return None
        return encoder

    def encode(self, text: str, add_special_tokens: bool = False) -> npt.NDArray[np.int64]:
        """The text's token ids, [tokens] int64."""
        ids, _ = self._native.encode_batch_flat([text], add_special_tokens=add_special_tokens)
        return np.frombuffer(ids, np.uint32).astype(np.int64)
