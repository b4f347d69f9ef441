"""Whatever the size of a picture: render reserves as many tokens in the prompt as encode makes rows."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.unit.render.helpers import chat, image_part, png, settings, user
from triton_renderer import tensors
from triton_renderer.encode import Encoder
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.stages import FeatureItem
from triton_renderer.render import Rendered, Renderer

PATCH = 16
SIDES = st.one_of(
    st.integers(1, 320),
    st.sampled_from([7, 31, 61, 97, 127, 161, 184, 199, 257, 307]),
    st.builds(lambda patches, off: patches * PATCH + off, st.integers(1, 16), st.sampled_from([-1, 0, 1])),
)


@cache
def encoder() -> Encoder:
    loaded = Encoder.load(settings())
    assert isinstance(loaded, Encoder)
    return loaded


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.load(settings())


def rows_of(rendered: Rendered) -> list[int]:
    """How many rows the encoder made for each picture, counted by the bytes of all."""
    mm_data, mm_offsets = tensors.concatenate(rendered.items)
    made = encoder().encode(mm_data, mm_offsets, rendered.context)
    document = json.loads(made.encoded.model_dump_json())
    rows = [item["rows"] for item in document["items"]]
    row_bytes = document["hidden"] * (1 + document["deepstack"]) * 4
    assert document["dtype"] == "float32"
    assert made.embeddings.numel() == sum(rows) * row_bytes
    return rows


@hypothesis_settings(max_examples=40, deadline=None)
@given(SIDES, SIDES)
@example(161, 184)
@example(1, 1)
@example(200, 1)
def test_slots_that_are_reserved_are_rows_that_are_made(renderer: Renderer, width: int, height: int) -> None:
    assume(max(width, height) <= 200 * min(width, height))
    rendered = chat(renderer, user(image_part(png(width, height)), image_part(png(96, 96, seed=1))))
    slots = [feature.placeholder.length for feature in rendered.context.features]
    assert rows_of(rendered) == slots
    token_id = rendered.token_ids[rendered.context.features[0].placeholder.offset]
    assert np.count_nonzero(rendered.token_ids == token_id) == sum(slots)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_slot_too_many_or_too_few_fails_that_request_alone(renderer: Renderer, off: int) -> None:
    rendered = chat(renderer, user(image_part(png(161, 184)), image_part(png(64, 64))))
    first, second = rendered.context.features
    length = second.placeholder.length
    placeholder = {"offset": second.placeholder.offset, "length": length + off}
    wrong = FeatureItem(modality=second.modality, mm_hash="x", placeholder=placeholder)  # type: ignore[arg-type]
    context = rendered.context.model_copy(update={"features": [first, wrong]})
    with pytest.raises(
        InvalidRequest, match=rf"features\.image\.1: .*reserves {length + off} tokens, the item has {length} rows"
    ):
        encoder().encode(*tensors.concatenate(rendered.items), context)
    assert rows_of(rendered) == [first.placeholder.length, length]
