"""A prompt in the making: token ids, the places of pictures and videos in them, and what cuts it down."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.protocol.generate import PlaceholderRange
from triton_renderer.render.item_cache import RenderedItem
from triton_renderer.render.tokenizer import TokenIds


@dataclass(frozen=True)
class Prompt:
    """Token ids [tokens] with their placeholders in ascending order; `offsets` are those of a prompt without media.

    `frame`: how many of the first and of the last tokens the tokenizer put around the text.
    """

    token_ids: TokenIds
    placeholders: list[PlaceholderRange]
    offsets: list[tuple[int, int]] | None = None
    frame: tuple[int, int] = (0, 0)


def with_media(prompt: Prompt, slots: TokenIds, items: Sequence[RenderedItem]) -> Prompt:
    """Puts each item's placeholder in the place of its slot. `slots` are positions, as many as there are items."""
    token_ids, frame = prompt.token_ids, prompt.frame
    pieces: list[TokenIds] = []
    placeholders: list[PlaceholderRange] = []
    length = begin = 0
    for slot, item in zip(slots.tolist(), items, strict=True):
        pieces += [token_ids[begin:slot], item.token_ids]
        offset = length + slot - begin
        placeholders.append(PlaceholderRange(offset=offset, length=len(item.token_ids), is_embed=item.is_embed))
        length, begin = offset + len(item.token_ids), slot + 1
    return Prompt(np.concatenate([*pieces, token_ids[begin:]]), placeholders, frame=frame)


def with_written_pictures(prompt: Prompt, embed_token_id: int, images: Sequence[RenderedItem]) -> Prompt:
    """Finds the placeholders in a prompt whose text had them written out: for each picture from its first row to its last.

    Text around the rows may have become part of other tokens, and is not counted in.
    """
    takes_row = prompt.token_ids == embed_token_id
    rows = np.flatnonzero(takes_row)
    ends = np.cumsum([np.count_nonzero(image.token_ids == embed_token_id) for image in images])
    if len(rows) != ends[-1]:
        raise RendererError(f"the prompt has {len(rows)} places for the {ends[-1]} rows of its pictures")
    placeholders = []
    for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        first, last = int(rows[begin]), int(rows[end - 1])
        is_embed = run_lengths(takes_row[first : last + 1])
        placeholders.append(PlaceholderRange(offset=first, length=last + 1 - first, is_embed=is_embed))
    return replace(prompt, placeholders=placeholders, offsets=None)


def run_lengths(is_embed: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int] | None:
    """`PlaceholderRange.is_embed` of a mask: the lengths of its runs, starting with a run of "no"; None where all are yes."""
    if bool(is_embed.all()):
        return None
    changes = np.flatnonzero(np.diff(is_embed)) + 1
    runs: list[int] = np.diff([0, *changes.tolist(), len(is_embed)]).tolist()
    return [0, *runs] if is_embed[0] else runs


def truncated(prompt: Prompt, limit: int | None, side: str | None, max_model_len: int) -> Prompt:
    """The prompt cut to `limit` tokens: the last ones, or with side "right" the first; -1 stands for all that leave room.

    Where no side is asked for, what frames the text stays, so that a prompt still begins with its special token.

    Raises InvalidRequest where a picture or video would be cut, or nothing would be left.
    """
    if limit is None:
        return prompt
    name = "truncate_prompt_tokens"
    if limit > max_model_len:
        raise InvalidRequest(f"{name}: {limit} is more than the context length of {max_model_len} tokens", name)
    keep = max_model_len - 1 if limit == -1 else limit
    if keep == 0:
        raise InvalidRequest(f"{name}: at least one token must be left", name)
    dropped = len(prompt.token_ids) - keep
    if dropped <= 0:
        return prompt
    before, behind = prompt.frame if side is None else (0, 0)
    if keep < before + behind:
        raise InvalidRequest(f"{name}: {keep} tokens do not hold the {before + behind} that frame a prompt", name)
    first = before if side != "right" else len(prompt.token_ids) - behind - dropped  # of those that go
    for index, span in enumerate(prompt.placeholders):
        if span.offset < first + dropped and span.offset + span.length > first:
            raise InvalidRequest(f"{name}: {keep} tokens do not hold the prompt's picture or video {index}", name)
    return Prompt(
        np.delete(prompt.token_ids, slice(first, first + dropped)),
        [
            span if span.offset < first else span.model_copy(update={"offset": span.offset - dropped})
            for span in prompt.placeholders
        ],
        None if prompt.offsets is None else prompt.offsets[:first] + prompt.offsets[first + dropped :],
        prompt.frame,
    )
