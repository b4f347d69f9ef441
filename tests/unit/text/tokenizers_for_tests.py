"""Tokenizers of every kind: byte-level BPE (the bundled model's), SentencePiece with byte fallback, and another one."""

from functools import cache

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from triton_renderer.settings import BUNDLED_MODEL
from triton_renderer.text.tokenizer import load_tokenizer


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """The bundled model's tokenizer; markup such as <think> is added but not special."""
    return load_tokenizer(str(BUNDLED_MODEL))


@cache
def sentencepiece() -> PreTrainedTokenizerFast:
    """As in Llama 2: `▁` for a space, bytes for what is not in the vocabulary, the first space of a text dropped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz.,!?", "▁leading", "▁x", "le", "ad", "ing", "▁le", "▁lead", "lead", "leading"]
    merges = [("l", "e"), ("a", "d"), ("le", "ad"), ("▁", "le"), ("▁le", "ad"), ("lead", "ing"), ("▁lead", "ing"), ("▁", "x")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: token_id for token_id, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@cache
def wordpiece() -> PreTrainedTokenizerFast:
    """As in BERT: the decoder puts a space in front of every word, special tokens included."""
    tokenizer = Tokenizer(models.WordPiece({piece: token_id for token_id, piece in enumerate(["[UNK]", "a", "b", "c", "##c"])}))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[X]"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def ids(tokenizer: PreTrainedTokenizerFast, *pieces: str) -> list[int]:
    """The ids of pieces by their names in the vocabulary."""
    found = [tokenizer.backend_tokenizer.token_to_id(piece) for piece in pieces]
    assert None not in found, pieces
    return found


def byte_ids(tokenizer: PreTrainedTokenizerFast, data: bytes) -> list[int]:
    """One token a byte, in either kind."""
    if tokenizer is sentencepiece():
        return ids(tokenizer, *(f"<0x{byte:02X}>" for byte in data))
    visible = {**{byte: chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}}
    hidden = [byte for byte in range(256) if byte not in visible]
    visible |= {byte: chr(256 + position) for position, byte in enumerate(hidden)}
    return ids(tokenizer, *(visible[byte] for byte in data))


def cuttings(length: int) -> st.SearchStrategy[list[int]]:
    """Where to cut a list of this length."""
    return st.lists(st.integers(0, length), max_size=8).map(lambda cuts: sorted({0, length, *cuts}))


TEXTS = st.text(st.sampled_from("ab le ading x.\n🙂é中<>\u200d👨👩"), max_size=30)
