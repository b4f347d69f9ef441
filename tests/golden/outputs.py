"""What an engine answers to a rendered request: tokens of a text, whole or in chunks, with logprobs."""

import lzma
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle
from typing import Any

from tokenizers import Tokenizer

from tests.golden.cases import Body
from tests.golden.servers import SERVERS, packed_tokenizer

ENDS = {
    "qwen3": "<|im_end|>",
    "smollm2": "<|im_end|>",
    "llama": "<|eot_id|>",
    "gemma": "<end_of_turn>",
    "deepseek_v3": "<｜end▁of▁sentence｜>",
}
"""The token with which a model ends its turn."""

TURNS = {
    "qwen3": "<|im_end|>\n<|im_start|>assistant\n",
    "smollm2": "<|im_end|>\n<|im_start|>assistant\n",
    "llama": "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<end_of_turn>\n<start_of_turn>model\n",
    "deepseek_v3": "<｜User｜>Hi<｜Assistant｜>",
}
"""The end of a rendered prompt: derender needs no more of it."""

THINKING_OFF = "<think>\n\n</think>\n\n"
"""What Qwen3's template puts behind it for `enable_thinking: false`."""
THINKING_ON = "<think>\n"
"""What DeepSeek R1's template puts behind it."""


@cache
def _tokenizer(model: str) -> Tokenizer:
    return Tokenizer.from_str(lzma.decompress(packed_tokenizer(model).read_bytes()).decode())


def tokens(server: str, text: str) -> list[int]:
    """The ids of `text`, special tokens included."""
    ids: list[int] = _tokenizer(SERVERS[server].model).encode(text, add_special_tokens=False).ids
    return ids


def token_text(server: str, token_id: int) -> str:
    """A token as it is written."""
    text: str = _tokenizer(SERVERS[server].model).decode([token_id], skip_special_tokens=False)
    return text


def ended(server: str, text: str) -> str:
    """`text` as a model leaves it that stops by itself."""
    return text + ENDS[SERVERS[server].model]


def prompt(server: str, end: str = "") -> list[int]:
    """The end of a prompt's ids."""
    return tokens(server, TURNS[SERVERS[server].model] + end)


def choice(
    token_ids: Sequence[int],
    finish_reason: str | None = "stop",
    *,
    index: int = 0,
    logprobs: int | None = None,
    **fields: Any,
) -> Body:
    """A choice of a generate response; `logprobs` is the number of candidates a token."""
    said: Body = {"index": index, "token_ids": list(token_ids), "finish_reason": finish_reason, **fields}
    return said if logprobs is None else said | {"logprobs": _logprobs(token_ids, logprobs)}


def _logprobs(token_ids: Sequence[int], count: int) -> Body:
    """The sampled token is not always the likeliest one."""
    entries = []
    for place, token_id in enumerate(token_ids):
        rank = 1 + place % 3
        sampled = {"token_id": token_id, "logprob": -0.25 * rank, "rank": rank}
        others = ({"token_id": 300 + 7 * place + n, "logprob": -0.125 - n, "rank": n + 1} for n in range(count - 1))
        entries.append(sampled | ({"top_logprobs": [sampled, *others]} if count else {}))
    return {"content": entries}


def cut(token_ids: Sequence[int], *sizes: int) -> Iterator[list[int]]:
    """The ids in chunks of these sizes, over and over; a chunk may be empty."""
    position = 0
    for size in cycle(sizes):
        yield list(token_ids[position : position + size])
        position += size
        if position >= len(token_ids):
            return
