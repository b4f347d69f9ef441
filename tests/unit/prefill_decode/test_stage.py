"""What prefill_decode refuses before the model sees it: anybody may call it, with any tensors."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.prefill_decode.fakes import NotingSink
from triton_renderer.checkpoint import load_config
from triton_renderer.errors import InvalidRequest, StageUnavailable
from triton_renderer.prefill_decode import PrefillDecode
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.stages import EncodedItems, RequestContext
from triton_renderer.settings import load_settings

CONFIG = load_config(load_settings())
ROWS, HIDDEN = 6, CONFIG.text_config.hidden_size
DEEPSTACK = len(CONFIG.vision_config.deepstack_visual_indexes)


@pytest.fixture(scope="module")
def stage() -> Iterator[PrefillDecode]:
    torch.set_num_threads(1)
    stage = PrefillDecode.load(load_settings(max_model_len=512))  # a prompt that fills the context is soon prefilled
    yield stage
    stage.close()


def submit(
    stage: PrefillDecode,
    token_ids: list[int],
    encoded: dict[str, Any] | None = None,
    embeddings: torch.Tensor | None = None,
    **context: Any,
) -> NotingSink:
    sink = NotingSink()
    stage.submit(
        np.array(token_ids, np.int64),
        torch.empty(0, dtype=torch.uint8) if embeddings is None else embeddings,
        parse(EncodedItems, json.dumps(encoded or {})),
        parse(RequestContext, {"id": "r", "sampling_params": {"max_tokens": 2, "temperature": 0}} | context),
        sink,
    )
    return sink


def rows(value: float = 0.5, count: int = ROWS) -> torch.Tensor:
    return torch.full((1 + DEEPSTACK, count, HIDDEN), value).reshape(-1).view(torch.uint8)


def encoded(**item: Any) -> dict[str, Any]:
    described = {
        "modality": "image",
        "mm_hash": "h",
        "digest": "d",
        "rows": ROWS,
        "placeholder": {"offset": 2, "length": ROWS},
        "metadata": {"image_grid_thw": [1, 4, 6]},
    }
    return {"dtype": "float32", "hidden": HIDDEN, "deepstack": DEEPSTACK, "items": [described | item]}


@pytest.fixture
def prompt(stage: PrefillDecode) -> list[int]:
    image = stage._runner.image_token_id
    assert image is not None
    return [5, 6, *[image] * ROWS, 7]


def test_right_rows_are_taken(stage: PrefillDecode, prompt: list[int]) -> None:
    assert submit(stage, prompt, encoded(), rows()).wait().error is None


@pytest.mark.parametrize(
    "document",
    [
        encoded(metadata={}),
        encoded(metadata={"foo": [1]}),
        encoded(metadata={"image_grid_thw": ["a", 1, 2]}),
        encoded(metadata={"image_grid_thw": [1, 4]}),
        encoded(metadata={"image_grid_thw": [1, 100_000, 100_000]}),
        encoded(metadata={"image_grid_thw": [1, -4, -6]}),
        encoded(metadata={"image_grid_thw": [1] * 1000}),
        encoded(rows=7),
        encoded(rows=-1),
        encoded(placeholder={"offset": 3, "length": ROWS}),
        encoded(placeholder={"offset": 2, "length": 10**6}),
        encoded() | {"deepstack": 0},
        encoded() | {"deepstack": -1},
        encoded() | {"hidden": HIDDEN // 2},
        encoded() | {"dtype": "float64"},
        encoded() | {"items": []},
    ],
)
def test_description_that_does_not_fit_is_refused(stage: PrefillDecode, prompt: list[int], document: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        submit(stage, prompt, document, rows())
    assert submit(stage, prompt, encoded(), rows()).wait().error is None


@pytest.mark.parametrize(
    "embeddings", [rows(count=5), rows(float("nan")), rows(float("inf")), torch.empty(0, dtype=torch.uint8)]
)
def test_unfilled_or_missing_rows_are_refused(stage: PrefillDecode, prompt: list[int], embeddings: torch.Tensor) -> None:
    with pytest.raises(InvalidRequest, match="embeddings"):
        submit(stage, prompt, encoded(), embeddings)


def test_image_token_outside_every_placeholder_is_refused(stage: PrefillDecode, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=f"position {len(prompt)}"):
        submit(stage, [*prompt, prompt[2]], encoded(), rows())
    with pytest.raises(InvalidRequest, match="position 2"):
        submit(stage, prompt)


@pytest.mark.parametrize(
    "sampling",
    [
        {"structured_outputs": {"json": {}}},
        {"bad_words": ["x"]},
        {"prompt_logprobs": 0},
        {"logprobs": 21},
        {"logprobs": -1},
        {"stop_token_ids": [10**6]},
        {"allowed_token_ids": [10**6]},
        {"logit_bias": {str(10**6): 1}},
        {"max_tokens": 10**6},
    ],
)
def test_sampling_that_cannot_be_had_is_refused_by_name(stage: PrefillDecode, sampling: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(sampling))):
        submit(stage, [5, 6], sampling_params=sampling)


def test_only_ending_tokens_allowed_before_min_tokens_is_refused(stage: PrefillDecode) -> None:
    eos = sorted(stage._eos_token_ids)
    with pytest.raises(InvalidRequest, match="allowed_token_ids"):
        submit(stage, [5, 6], sampling_params={"allowed_token_ids": eos, "min_tokens": 3})


def test_transfer_of_kv_blocks_is_refused(stage: PrefillDecode) -> None:
    with pytest.raises(InvalidRequest, match="kv_transfer_params"):
        submit(stage, [5, 6], kv_transfer_params={"do_remote_decode": True})


def test_absent_max_tokens_is_what_fits_behind_the_prompt(stage: PrefillDecode) -> None:
    length = stage.max_model_len - 3
    sink = submit(stage, [5] * length, sampling_params={"ignore_eos": True, "temperature": 0})
    assert len(sink.wait().token_ids) == 3
    assert sink.finish_reasons == ["length"]
    with pytest.raises(InvalidRequest, match=rf"{stage.max_model_len} tokens.*{stage.max_model_len}"):
        submit(stage, [5] * stage.max_model_len)


def test_stopped_engine_is_not_healthy() -> None:
    stage = PrefillDecode.load(load_settings())
    assert stage.check_health()["max_model_len"] == stage.max_model_len
    stage.close()
    with pytest.raises(StageUnavailable):
        stage.check_health()
