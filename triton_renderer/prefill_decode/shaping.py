"""What a choice's sampling parameters do to its logits, worked out once, and kept up to date token by token."""

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from triton_renderer.prefill_decode.structured import packed
from triton_renderer.protocol.sampling import SamplingParams

Ids = npt.NDArray[np.int64]


class TokenCounts:
    """The different tokens that the penalties of a choice look at, and how often the output has each."""

    def __init__(self, prompt: Ids) -> None:
        """`prompt`: the tokens to know from the start, with a count of zero."""
        unique = np.unique(prompt)
        self._size = len(unique)
        self._ids = np.concatenate([unique, np.zeros(self._size + 16, np.int64)])
        self._counts = np.zeros(len(self._ids), np.float32)
        self._places = dict(zip(unique.tolist(), range(self._size), strict=True))

    def push(self, token_id: int) -> None:
        """The output has this token once more."""
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = self._size
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token_id
            self._size += 1
        self._counts[place] += 1

    @property
    def ids(self) -> Ids:
        """[tokens], each once."""
        return self._ids[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """[tokens], of `ids`."""
        return self._counts[: self._size]


class BadWords:
    """Sequences of tokens that the output must not have: the last token is forbidden behind all the others."""

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._always: list[int] = []
        self._by_newest: dict[int, list[tuple[list[int], int]]] = {}
        for word in words:
            *before, last = word
            if before:
                self._by_newest.setdefault(before[-1], []).append((before, last))
            else:
                self._always.append(last)

    def forbidden(self, output_ids: list[int]) -> list[int]:
        """The tokens that must not come next."""
        begun = self._by_newest.get(output_ids[-1], ()) if output_ids else ()
        return self._always + [last for before, last in begun if output_ids[-len(before) :] == before]


class Shaping:
    """One choice's part in the shaping of a batch's logits."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Ids,
        ending_ids: Collection[int],
        bad_words: Iterable[Sequence[int]] = (),
        vocab_size: int | None = None,
    ) -> None:
        """`ending_ids`: tokens that `min_tokens` keeps away. `vocab_size` is needed for `allowed_token_ids` only."""
        self.repetition_penalty = params.repetition_penalty
        self.presence_penalty = params.presence_penalty
        self.frequency_penalty = params.frequency_penalty
        self.counts: TokenCounts | None = None
        if params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty:
            # Only repetition_penalty looks at the prompt.
            self.counts = TokenCounts(prompt if params.repetition_penalty != 1 else prompt[:0])
        bias = params.logit_bias or {}
        self.bias_ids: Ids = np.array(list(bias), np.int64)
        self.biases = np.array(list(bias.values()), np.float32)
        self.bad_words = BadWords(bad_words) if bad_words else None
        self.min_tokens = params.min_tokens
        self.ending_ids = sorted(ending_ids) if params.min_tokens else []
        self._num_words = -(-(vocab_size or 0) // 32)
        self.allowed = packed(params.allowed_token_ids, self._num_words) if params.allowed_token_ids and vocab_size else None
        """Bitmask of `allowed_token_ids`, as `structured.fill_bitmask` writes them."""
        self.ending = packed(self.ending_ids, self._num_words) if self.ending_ids and vocab_size else None
        """Bitmask of `ending_ids`."""
        self.is_none = not (self.counts or bias or self.bad_words or self.ending_ids or self.allowed is not None)
        """Nothing is ever done."""

    def push(self, token_id: int) -> None:
        """The output has a new token."""
        if self.counts is not None:
            self.counts.push(token_id)

    def forbidden(self, output_ids: list[int]) -> list[int]:
        """Tokens that must not come next; not those before `min_tokens`."""
        return self.bad_words.forbidden(output_ids) if self.bad_words is not None else []

    def ends_too_early(self, num_output: int) -> bool:
        """The output must not end with the next token."""
        return bool(self.ending_ids) and num_output < self.min_tokens

    def leaves_only_endings(self, bits: torch.Tensor) -> bool:
        """Of the tokens in this bitmask, all would end the output. bits: [words] int32."""
        return self.ending is not None and not bool((bits & ~self.ending).any())


def tokens_of_bad_words(words: Iterable[str], encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Each word as it is tokenized at the start of a text and behind a space.

    The latter counts only where it is another token in the same number, as in the reference. Raises ValueError for a word
    that has no token.
    """
    found: list[list[int]] = []
    for word in words:
        plain, spaced = encode(word.lstrip()), encode(" " + word.lstrip())
        if not plain:
            raise ValueError(f"{word!r} has no token")
        found.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(spaced)
    return found
