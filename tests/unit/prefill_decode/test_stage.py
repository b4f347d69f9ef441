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
from triton_renderer.prefill_decode.sequence import MultimodalInputs
from triton_renderer.prefill_decode.shaping import tokens_of_bad_words
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


@pytest.mark.parametrize("embeddings", [rows(count=5), rows(count=7), torch.empty(0, dtype=torch.uint8)])
def test_too_few_or_too_many_rows_are_refused(stage: PrefillDecode, prompt: list[int], embeddings: torch.Tensor) -> None:
    with pytest.raises(InvalidRequest, match="embeddings"):
        submit(stage, prompt, encoded(), embeddings)


def test_an_item_that_encode_left_out_is_missed(stage: PrefillDecode, prompt: list[int]) -> None:
    features = [
        {"modality": "image", "mm_hash": "h", "placeholder": {"offset": 2 + number * len(prompt), "length": ROWS}}
        for number in range(3)
    ]
    items = [encoded(placeholder=feature["placeholder"])["items"][0] for feature in features]
    for count in (0, 1, 2):
        with pytest.raises(InvalidRequest, match=f"{count} items, the request has 3") as caught:
            submit(stage, prompt * 3, encoded() | {"items": items[:count]}, torch.cat([rows()] * 3), features=features)
        assert caught.value.param == "encoded"
    assert (
        submit(stage, prompt * 3, encoded() | {"items": items}, torch.cat([rows()] * 3), features=features).wait().error is None
    )


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("unfilled", [0, 1, 2])
def test_unfilled_rows_are_refused_with_the_item_that_they_are_of(
    stage: PrefillDecode, prompt: list[int], unfilled: int, poison: float
) -> None:
    """Of three pictures, which encode has in another order than the prompt."""
    order = [2, 0, 1]
    items = [encoded(placeholder={"offset": 2 + number * len(prompt), "length": ROWS})["items"][0] for number in order]
    embeddings = torch.cat([rows(poison if number == unfilled else 0.5) for number in order])
    with pytest.raises(InvalidRequest, match=rf"features\.image\.{unfilled}: .* not finite") as caught:
        submit(stage, prompt * 3, encoded() | {"items": items}, embeddings)
    assert caught.value.param == f"features.image.{unfilled}"
    filled = torch.cat([rows()] * 3)
    assert submit(stage, prompt * 3, encoded() | {"items": items}, filled).wait().error is None


def test_image_token_outside_every_placeholder_is_refused(stage: PrefillDecode, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=f"position {len(prompt)}"):
        submit(stage, [*prompt, prompt[2]], encoded(), rows())
    with pytest.raises(InvalidRequest, match="position 2"):
        submit(stage, prompt)


@pytest.mark.parametrize(
    "sampling",
    [
        {"structured_outputs": {"json": []}},
        {"bad_words": [""]},
        {"logprobs": 21},
        {"logprobs": -1},
        {"prompt_logprobs": 21},
        {"prompt_logprobs": -1},
        {"stop_token_ids": [10**6]},
        {"allowed_token_ids": [10**6]},
        {"logit_bias": {str(10**6): 1}},
        {"max_tokens": 10**6},
    ],
)
def test_sampling_that_cannot_be_had_is_refused_by_name(stage: PrefillDecode, sampling: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(sampling))):
        submit(stage, [5, 6], sampling_params=sampling)


@pytest.mark.parametrize("beyond", [0, -1, 2**62])
def test_ids_beyond_the_vocabulary_are_refused_and_the_engine_goes_on(stage: PrefillDecode, beyond: int) -> None:
    """By 0 is the first id behind the last one."""
    token_id = beyond if beyond < 0 else stage._runner.vocab_size + beyond
    with pytest.raises(InvalidRequest, match=f"token_ids: {token_id} is not one of"):
        submit(stage, [5, token_id, 6])
    for name, value in (("stop_token_ids", [token_id]), ("logit_bias", {token_id: 1}), ("allowed_token_ids", [token_id])):
        with pytest.raises(InvalidRequest, match=name):
            submit(stage, [5, 6], sampling_params={name: value})
    last = stage._runner.vocab_size - 1
    sampling = {"max_tokens": 1, "stop_token_ids": [last], "logit_bias": {last: -1}}
    assert submit(stage, [5, last], sampling_params=sampling).wait().error is None


def test_only_ending_tokens_allowed_before_min_tokens_is_refused(stage: PrefillDecode) -> None:
    eos = sorted(stage._eos_token_ids)
    with pytest.raises(InvalidRequest, match="allowed_token_ids"):
        submit(stage, [5, 6], sampling_params={"allowed_token_ids": eos, "min_tokens": 3})


def test_logprobs_of_a_prompt_are_refused_for_a_stream(stage: PrefillDecode) -> None:
    with pytest.raises(InvalidRequest, match="prompt_logprobs"):
        submit(stage, [5, 6], stream=True, sampling_params={"prompt_logprobs": 1})


def test_logprobs_of_a_prompt_have_text(stage: PrefillDecode) -> None:
    sink = submit(stage, stage._tokenizer.encode("two é"), sampling_params={"prompt_logprobs": 0, "max_tokens": 1})
    (chunk,) = sink.wait().chunks
    assert chunk.prompt_logprobs is not None
    texts = [next(iter(entry.values()))["decoded_token"] for entry in chunk.prompt_logprobs[1:]]
    assert stage._tokenizer.decode(stage._tokenizer.encode("two é")[:1]) + "".join(texts) == "two é"


def test_bad_words_never_come_with_a_space_in_front_or_without(stage: PrefillDecode) -> None:
    sampling = {"max_tokens": 40, "temperature": 1.0, "seed": 4}
    free = submit(stage, [5, 6, 7], sampling_params=sampling).wait()
    text = stage._tokenizer.decode(free.token_ids, skip_special_tokens=True)
    word = max(text.split(), key=len)
    for temperature in (0.0, 1.0):
        sink = submit(stage, [5, 6, 7], sampling_params=sampling | {"bad_words": [word], "temperature": temperature})
        tokens = sink.wait().token_ids
        for forbidden in tokens_of_bad_words([word], lambda text: stage._tokenizer.encode(text, add_special_tokens=False)):
            assert forbidden not in [tokens[start : start + len(forbidden)] for start in range(len(tokens))]


def test_too_many_bad_words_are_refused(stage: PrefillDecode) -> None:
    with pytest.raises(InvalidRequest, match="bad_words"):
        submit(stage, [5, 6], sampling_params={"bad_words": [f"w{number}" for number in range(200)]})


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


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_or_token_ends_the_generation_itself(stage: PrefillDecode, stream: bool) -> None:
    prompt = stage._tokenizer.encode("<|im_start|>user\nCount to ten.<|im_end|>\n<|im_start|>assistant\n")
    free = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
    whole = submit(stage, prompt, sampling_params=free, stream=stream).wait().token_ids
    assert len(whole) == 30
    last = next(place for place in range(3, 30) if whole[place] not in whole[:place])
    stop = stage._tokenizer.decode(whole[last - 1 : last + 1], skip_special_tokens=False)
    for asked, reason in (({"stop": ["never said", stop]}, stop), ({"stop_token_ids": [whole[last]]}, whole[last])):
        sink = submit(stage, prompt, sampling_params=free | asked, stream=stream).wait()
        assert sink.token_ids == whole[: last + 1]
        assert (sink.finish_reasons, sink.chunks[-1].choices[0].stop_reason) == (["stop"], reason)
        assert sink.chunks[-1].completion_tokens == last + 1


def test_stopped_engine_is_not_healthy() -> None:
    stage = PrefillDecode.load(load_settings())
    assert stage.check_health()["max_model_len"] == stage.max_model_len
    stage.close()
    with pytest.raises(StageUnavailable):
        stage.check_health()


# Videos

FRAMES = 2
"""Of a video whose temporal patches have 3 tokens each: [2, 2, 6] in patches."""


@pytest.fixture
def film_prompt(stage: PrefillDecode) -> list[int]:
    token = stage._runner.video_token_id
    assert token is not None
    return [5, 6, *[8, token, token, token, 9] * FRAMES, 7]


def film(**item: Any) -> dict[str, Any]:
    placeholder = {"offset": 2, "length": 10, "is_embed": [1, 3, 2, 3, 1]}
    described = {"modality": "video", "placeholder": placeholder, "metadata": {"video_grid_thw": [FRAMES, 2, 6]}}
    return encoded(**described | item)


def test_rows_of_a_video_are_taken_also_without_marks(stage: PrefillDecode, film_prompt: list[int]) -> None:
    assert submit(stage, film_prompt, film(), rows()).wait().error is None
    assert submit(stage, film_prompt, film(placeholder={"offset": 2, "length": 10}), rows()).wait().error is None


def test_each_temporal_patch_has_a_place_of_its_own(stage: PrefillDecode, film_prompt: list[int]) -> None:
    grid = {"video_grid_thw": torch.tensor([[FRAMES, 2, 6]])}
    inputs = MultimodalInputs(torch.zeros(1, ROWS, HIDDEN), np.arange(ROWS), ())
    prompt = stage._runner.make_prompt(np.array(film_prompt), inputs, [grid])
    time_axis, row, column = prompt.position_ids[:, 0].tolist()
    assert time_axis == [0, 1, 2, 3, 3, 3, 6, 7, 8, 8, 8, 11, 12]  # a patch is three columns wide
    assert row == time_axis
    assert column == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert prompt.next_position == 13


@pytest.mark.parametrize(
    "document",
    [
        film(metadata={}),
        film(metadata={"image_grid_thw": [FRAMES, 2, 6]}),
        film(metadata={"video_grid_thw": [1, 4, 6]}),
        film(metadata={"video_grid_thw": [3, 2, 4]}),
        film(metadata={"video_grid_thw": [4, 2, 6]}),
        film(modality="image"),
        film(modality="image", metadata={"image_grid_thw": [1, 4, 6]}),
        film(modality="audio"),
        film(placeholder={"offset": 2, "length": 5}),
        film(placeholder={"offset": 7, "length": 10}),
    ],
)
def test_a_video_that_does_not_fit_is_refused(stage: PrefillDecode, film_prompt: list[int], document: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        submit(stage, film_prompt, document, rows())
    assert submit(stage, film_prompt, film(), rows()).wait().error is None


def test_video_token_outside_every_placeholder_is_refused(stage: PrefillDecode, film_prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=f"a video token at position {len(film_prompt)}"):
        submit(stage, [*film_prompt, film_prompt[3]], film(), rows())


def test_a_picture_inside_a_video_is_refused(stage: PrefillDecode, film_prompt: list[int]) -> None:
    image = stage._runner.image_token_id
    assert image is not None
    with pytest.raises(InvalidRequest, match=r"features\.video\.0"):
        submit(stage, [*film_prompt[:6], image, *film_prompt[7:]], film(), rows())
