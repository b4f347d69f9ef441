"""Placeholders in a prompt, and cutting it down."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.protocol.generate import PlaceholderRange
from triton_renderer.render.item_cache import RenderedItem
from triton_renderer.render.prompt import Prompt, run_lengths, truncated, with_media, with_written_pictures


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def picture(*token_ids: int, is_embed: list[int] | None = None) -> RenderedItem:
    return RenderedItem("image", "d", b"k", b"m", ids(*token_ids), is_embed)


def test_each_slot_becomes_its_pictures_tokens() -> None:
    prompt = with_media(
        Prompt(ids(1, 9, 2, 9, 9, 3), []), ids(1, 3, 4), [picture(7, 7), picture(8), picture(6, 6, 6, is_embed=[1, 1, 1])]
    )
    assert prompt.token_ids.tolist() == [1, 7, 7, 2, 8, 6, 6, 6, 3]
    assert prompt.placeholders == [
        PlaceholderRange(offset=1, length=2),
        PlaceholderRange(offset=4, length=1),
        PlaceholderRange(offset=5, length=3, is_embed=[1, 1, 1]),
    ]


def test_written_pictures_are_found_by_their_rows_and_text_around_them_is_left_out() -> None:
    images = [picture(5, 7, 7, 5), picture(5, 7, 5, 7, 5, is_embed=[1, 1, 1, 1, 1])]
    prompt = with_written_pictures(Prompt(ids(1, 55, 7, 7, 55, 7, 5, 7, 3), [], [(0, 1)] * 9), 7, images)
    assert prompt.token_ids.tolist() == [1, 55, 7, 7, 55, 7, 5, 7, 3]
    assert prompt.placeholders == [
        PlaceholderRange(offset=2, length=2),
        PlaceholderRange(offset=5, length=3, is_embed=[0, 1, 1, 1]),
    ]
    assert prompt.offsets is None


def test_a_row_that_is_lost_or_too_many_is_never_given_to_another_picture() -> None:
    for token_ids in (ids(7), ids(7, 7, 7)):
        with pytest.raises(RendererError, match="places for the 2 rows"):
            with_written_pictures(Prompt(token_ids, []), 7, [picture(7), picture(7)])


def test_slots_at_both_ends() -> None:
    prompt = with_media(Prompt(ids(9, 9), []), ids(0, 1), [picture(7, 7), picture(8, 8)])
    assert prompt.token_ids.tolist() == [7, 7, 8, 8]
    assert [span.offset for span in prompt.placeholders] == [0, 2]


@given(st.lists(st.integers(0, 5), max_size=8), st.data())
def test_spans_hold_the_pictures_and_the_rest_is_untouched(gaps: list[int], data: st.DataObject) -> None:
    text: list[int] = []
    slots: list[int] = []
    images = []
    for number, gap in enumerate(gaps):
        text += [1] * gap
        slots.append(len(text))
        text.append(9)
        images.append(picture(*[100 + number] * data.draw(st.integers(1, 4))))
    prompt = with_media(Prompt(ids(*text), []), ids(*slots), images)
    for image, span in zip(images, prompt.placeholders, strict=True):
        assert prompt.token_ids[span.offset :][: span.length].tolist() == image.token_ids.tolist()
    assert np.count_nonzero(prompt.token_ids == 1) == sum(gaps)
    assert len(prompt.token_ids) == sum(gaps) + sum(len(image.token_ids) for image in images)


@pytest.mark.parametrize(
    ("mask", "runs"),
    [([1, 1, 1], None), ([0, 1, 1], [1, 2]), ([1, 1, 0], [0, 2, 1]), ([0, 0], [2]), ([1, 0, 1, 0], [0, 1, 1, 1, 1])],
)
def test_run_lengths_begin_with_a_run_of_no(mask: list[int], runs: list[int] | None) -> None:
    assert run_lengths(np.array(mask, bool)) == runs


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_run_lengths_tell_the_mask(mask: list[bool]) -> None:
    runs = run_lengths(np.array(mask))
    rebuilt = [True] * len(mask) if runs is None else [bool(i % 2) for i, length in enumerate(runs) for _ in range(length)]
    assert rebuilt == mask


@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from(["left", "right", None]))
def test_truncation_keeps_one_end_and_its_offsets(length: int, limit: int, side: str | None) -> None:
    whole = Prompt(np.arange(length), [], [(place, place + 1) for place in range(length)])
    cut = truncated(whole, limit, side, max_model_len=100)
    kept = list(range(length))[:limit] if side == "right" else list(range(length))[-limit:]
    assert cut.token_ids.tolist() == kept
    assert cut.offsets == [(place, place + 1) for place in kept]


@given(st.integers(0, 10), st.integers(1, 10), st.integers(0, 10), st.integers(1, 30), st.sampled_from(["left", "right"]))
def test_truncation_keeps_whole_pictures_or_refuses(before: int, size: int, after: int, limit: int, side: str) -> None:
    token_ids = ids(*[1] * before, *[9] * size, *[1] * after)
    whole = Prompt(token_ids, [PlaceholderRange(offset=before, length=size)])
    fits = len(token_ids) <= limit or size + (before if side == "right" else after) <= limit
    if not fits:
        with pytest.raises(InvalidRequest):
            truncated(whole, limit, side, max_model_len=100)
        return
    cut = truncated(whole, limit, side, max_model_len=100)
    span = cut.placeholders[0]
    assert cut.token_ids[span.offset :][: span.length].tolist() == [9] * size
    assert len(cut.token_ids) == min(limit, len(token_ids))
