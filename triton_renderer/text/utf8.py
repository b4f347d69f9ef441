"""UTF-8 that comes in parts."""

import codecs


def decode(data: bytes) -> tuple[str, bytes]:
    """All that is decided of `data`, and the begun character at its end: at most three bytes.

    Invalid UTF-8 becomes U+FFFD, one for each maximal ill-formed part, as Unicode recommends.
    """
    text, length = codecs.utf_8_decode(data, "replace", False)
    return text, data[length:]


def decode_all(data: bytes) -> str:
    """All of `data`, which nothing follows: a begun character is U+FFFD as well."""
    return data.decode("utf-8", "replace")


def continues(piece: bytes) -> bool:
    """`piece` goes on with a character that was begun before it."""
    return bool(piece) and 0x80 <= piece[0] < 0xC0
