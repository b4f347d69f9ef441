"""What each token id stands for, in bytes.

A token is a sequence of bytes, and only all of them together are UTF-8: one emoji may be spread over four tokens. Text
is therefore put together from bytes, and a character can be neither lost nor torn, however the ids arrive.
"""

import json
import re
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's byte-level alphabet: printable bytes stand for themselves, the others for U+0100 onwards in order."""
    alphabet = set(ByteLevel.alphabet())
    hidden = (byte for byte in range(256) if chr(byte) not in alphabet)
    return {chr(byte): byte for byte in range(256) if chr(byte) in alphabet} | {
        chr(0x100 + position): byte for position, byte in enumerate(hidden)
    }


_BYTE_OF = _byte_alphabet()


class TokenPieces:
    """The bytes of every token of one tokenizer.

    Knows the byte-level alphabet and byte-fallback tokens, whose bytes may be a part of a character; any other token is
    decoded by the tokenizer's own decoder, and is whole characters.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer
        decoder = self._backend.decoder
        decoders = _decoder_types(json.loads(decoder.__getstate__())) if decoder else set[str]()
        added = self._backend.get_added_tokens_decoder()
        self._byte_level = "ByteLevel" in decoders
        self._byte_fallback = "ByteFallback" in decoders
        self._added: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """The ids that `skip_special_tokens` leaves out."""
        self._special_ids_without: dict[frozenset[int], frozenset[int]] = {frozenset(): self.special_ids}
        self._anchor = self._find_anchor()
        self._cache: dict[int, bytes] = {}

    def knows(self, token_id: int) -> bool:
        """False for the ids behind the vocabulary with which some models are padded: they stand for no text."""
        return self._token(token_id) is not None

    def special_ids_without(self, kept: frozenset[int]) -> frozenset[int]:
        """`special_ids` but for those `kept`: there are few such sets, those of the parsers' markers."""
        ids = self._special_ids_without.get(kept)
        if ids is None:
            ids = self._special_ids_without[kept] = self.special_ids - kept
        return ids

    def is_added(self, token_id: int) -> bool:
        """The token is no piece of the model's vocabulary: a special token, or markup such as <think>."""
        return token_id in self._added

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token behind others; none for an id that the tokenizer does not know."""
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._bytes_of(token_id)
        return piece

    def first_bytes_of(self, token_id: int) -> bytes:
        """The bytes of the first token of a text: SentencePiece decoders take the space off a word's front there."""
        if self._byte_level or self._byte_value(token_id) is not None:
            return self.bytes_of(token_id)
        return self._decode([token_id]).encode()

    def content_of(self, token_id: int) -> bytes:
        """The bytes of an added token as it is written, untouched by the decoder."""
        return self._added[token_id].encode()

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            return self._byte_level_bytes(token_id, token)
        value = self._byte_value(token_id)
        if value is not None:
            return bytes([value])
        before = self._decode(self._anchor)
        return self._decode([*self._anchor, token_id]).removeprefix(before).encode()

    def _byte_level_bytes(self, token_id: int, token: str) -> bytes:
        """As the byte-level decoder does it: a token with a character from outside the alphabet is text as it stands.

        An added token is written in plain text, so one whose letters happen to lie in the alphabet («é») and then make
        no UTF-8 is text as well.
        """
        values = [_BYTE_OF.get(character) for character in token]
        if None in values:
            return token.encode()
        piece = bytes(value for value in values if value is not None)
        if token_id in self._added:
            try:
                piece.decode()
            except UnicodeDecodeError:
                return token.encode()
        return piece

    def _byte_value(self, token_id: int) -> int | None:
        """The value of a byte-fallback token `<0xE2>`."""
        found = _BYTE_TOKEN.fullmatch(self._token(token_id) or "") if self._byte_fallback else None
        return int(found[1], 16) if found else None

    def _find_anchor(self) -> list[int]:
        """An ordinary token to decode another one behind, so that it is not taken for the first of a text."""
        for token_id in range(self._backend.get_vocab_size()):
            if token_id not in self._added and self._byte_value(token_id) is None and self._decode([token_id]).strip():
                return [token_id]
        return []

    def _token(self, token_id: int) -> str | None:
        try:
            token: str | None = self._backend.id_to_token(token_id)
        except OverflowError:  # ids are 32 bits wide there
            return None
        return token

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._backend.decode(token_ids, skip_special_tokens=False)
        return text


_pieces: WeakKeyDictionary[PreTrainedTokenizerFast, TokenPieces] = WeakKeyDictionary()


def pieces_of(tokenizer: PreTrainedTokenizerFast) -> TokenPieces:
    """The pieces of `tokenizer`, made once."""
    pieces = _pieces.get(tokenizer)
    if pieces is None:
        pieces = _pieces[tokenizer] = TokenPieces(tokenizer)
    return pieces


def _decoder_types(decoder: dict[str, Any]) -> set[str]:
    """The decoder steps of a tokenizer.json, sequences unfolded."""
    if decoder["type"] != "Sequence":
        return {decoder["type"]}
    return {name for step in decoder["decoders"] for name in _decoder_types(step)}
