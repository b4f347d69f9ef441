"""Encoder and engine in one process against transformers' undivided `generate`, greedy, in float32."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from tests.unit.prefill_decode.fakes import NotingSink
from triton_renderer import tensors
from triton_renderer.encode import Encoder
from triton_renderer.prefill_decode import PrefillDecode
from triton_renderer.protocol.stages import FeatureItem, RequestContext
from triton_renderer.settings import load_settings
from triton_renderer.wire import Field, encode_item

Grid = tuple[int, int, int]
"""Of a video: temporal patches, rows and columns of patches."""
TIE = 1e-4
"""Two logits closer than this may come out in either order: the sums of a batch are not added up in the same order.

Measured on the 200 prompts of test_equals_transformers_at_length.py, at each of their 23,664 output tokens and in all four
configurations: by how much the distance of transformers' two best logits (up to 19 large) is another one in the engine's
batches. At most 6.0e-5, in 99.9 % of the tokens at most 2.3e-5, in half of them at most 2.9e-6. The rest is for processors
that add up in yet another order."""


@dataclass
class Case:
    """A prompt, its pictures in both forms, and what transformers makes of it."""

    token_ids: list[int]
    items: list[bytes]
    features: list[FeatureItem]
    inputs: dict[str, torch.Tensor]
    expected: list[int]
    gaps: list[float]
    max_tokens: int


class Pipeline:
    def __init__(self, **settings: Any) -> None:
        self.settings = load_settings(dtype="float32", **settings)
        self.encoder = Encoder.load(self.settings)
        self.stage = PrefillDecode.load(self.settings)
        self.model = AutoModelForImageTextToText.from_pretrained(self.settings.model, dtype=torch.float32).eval()
        self.processor = AutoImageProcessor.from_pretrained(self.settings.model)
        self.rng = np.random.default_rng(5)
        vision = self.model.config.vision_config
        self.patch_values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2

    def text(self, length: int) -> list[int]:
        return [int(token_id) for token_id in self.rng.integers(0, 300, length)]

    def case(
        self, num_pictures: int, length: int, max_tokens: int = 24, twice: bool = False, videos: Sequence[Grid] = ()
    ) -> Case:
        """`videos`: the grid of each; they come behind the pictures, with text between."""
        config = self.model.config
        token_ids, items, features, pixels, grids = self.text(length), [], [], [], []
        pictures = [self.picture() for _ in range(num_pictures)]
        for picture in pictures * 2 if twice else pictures:
            raw = self.processor(picture, do_rescale=False, do_normalize=False, return_tensors="np")
            full = self.processor(picture, return_tensors="pt")
            grid = raw["image_grid_thw"][0].astype(np.int64)
            rows = int(grid.prod()) // self.processor.merge_size**2
            offset = len(token_ids) + 1
            token_ids += [config.vision_start_token_id, *[config.image_token_id] * rows, config.vision_end_token_id]
            token_ids += self.text(3)
            item = {
                "pixel_values": Field(raw["pixel_values"].astype(np.uint8)),
                "image_grid_thw": Field(grid, "batched", {"keep_on_cpu": True}),
            }
            items += [encode_item(item), b""]
            span = {"offset": offset, "length": rows}
            features.append(FeatureItem(modality="image", mm_hash="name", placeholder=span))
            pixels.append(full["pixel_values"])
            grids.append(full["image_grid_thw"])
        inputs = {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.cat(grids)} if pixels else {}
        if videos:
            shown = [self.add_video(grid, token_ids, items, features) for grid in videos]
            inputs |= {"pixel_values_videos": torch.cat(shown), "video_grid_thw": torch.tensor(videos)}
        if inputs:
            ids = torch.tensor([token_ids])
            inputs["mm_token_type_ids"] = (ids == config.image_token_id).int() + 2 * (ids == config.video_token_id).int()
        expected, gaps = self.generate(token_ids, inputs, max_tokens)
        return Case(token_ids, items, features, inputs, expected, gaps, max_tokens)

    def add_video(self, grid: Grid, token_ids: list[int], items: list[bytes], features: list[FeatureItem]) -> torch.Tensor:
        """Puts a video behind the prompt, some text before each of its temporal patches. Returns its normalised patches."""
        config, offset = self.model.config, len(token_ids)
        frames, height, width = grid
        rows = height * width // config.vision_config.spatial_merge_size**2
        runs: list[int] = []
        for _ in range(frames):
            token_ids += [
                *self.text(4),
                config.vision_start_token_id,
                *[config.video_token_id] * rows,
                config.vision_end_token_id,
            ]
            runs += [5 + bool(runs), rows]
        patches = self.rng.integers(0, 256, (frames * height * width, self.patch_values), dtype=np.uint8)
        item = {
            "pixel_values_videos": Field(patches),
            "video_grid_thw": Field(np.array(grid), "batched", {"keep_on_cpu": True}),
            "timestamps": Field([0.5] * frames, "batched", {"keep_on_cpu": True}),
        }
        items += [encode_item(item), b""]
        span = {"offset": offset, "length": len(token_ids) - offset, "is_embed": [*runs, 1]}
        features.append(FeatureItem(modality="video", mm_hash="film", placeholder=span))
        token_ids += self.text(3)
        return (torch.from_numpy(patches).float() / 255 - 0.5) / 0.5

    def picture(self) -> Image.Image:
        height, width = self.rng.integers(64, 200, 2)
        return Image.fromarray(self.rng.integers(0, 256, (height, width, 3), dtype=np.uint8))

    def generate(self, token_ids: list[int], inputs: dict[str, torch.Tensor], max_tokens: int) -> tuple[list[int], list[float]]:
        """The undivided model's tokens, and at each how far its best logit is above the second."""
        ids = torch.tensor([token_ids])
        output = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            **inputs,
        )
        best = [logits[0].topk(2).values for logits in output.logits]
        return output.sequences[0, len(token_ids) :].tolist(), [float(pair[0] - pair[1]) for pair in best]

    def start(self, case: Case, stream: bool) -> NotingSink:
        params = {"temperature": 0, "max_tokens": case.max_tokens}
        context = RequestContext(id=str(id(case)), stream=stream, features=case.features, sampling_params=params)
        encoded = self.encoder.encode(*tensors.concatenate(case.items), context)
        sink = NotingSink()
        self.stage.submit(np.array(case.token_ids), encoded.embeddings, encoded.encoded, context, sink)
        return sink


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "prompts in chunks, nothing cached": {"max_step_tokens": 32, "prefix_caching": False},
    "preempting": {"max_model_len": 400, "kv_cache_bytes": 2_000_000},
}


@pytest.fixture(scope="module", params=VARIANTS)
def pipeline(request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    torch.set_num_threads(1)
    pipeline = Pipeline(**VARIANTS[request.param])
    yield pipeline
    if request.param == "preempting":
        assert pipeline.stage.engine._scheduler.num_preemptions > 0
    pipeline.stage.close()


@pytest.fixture(scope="module")
def cases(pipeline: Pipeline) -> list[Case]:
    mixed = [pipeline.case(count, int(pipeline.rng.integers(2, 60))) for count in (0, 1, 3, 2, 0, 1, 1, 0, 3, 1)]
    return [
        *mixed,
        pipeline.case(1, 10, twice=True),
        pipeline.case(0, 300, max_tokens=60),  # more columns than the cache starts with
        pipeline.case(1, 150, max_tokens=40),
        pipeline.case(0, 1, max_tokens=1),
        pipeline.case(0, 12, videos=[(3, 4, 6)]),
        pipeline.case(2, 7, videos=[(2, 6, 4), (5, 2, 8)]),
        pipeline.case(1, 0, videos=[(1, 4, 4)]),
    ]


def assert_equal(got: NotingSink, case: Case) -> bool:
    """Fails unless the tokens are equal up to a tie of the two best logits; True where there was such a tie."""
    assert got.error is None
    for position, (mine, theirs) in enumerate(zip(got.token_ids, case.expected, strict=False)):
        if mine != theirs:
            assert case.gaps[position] < TIE, f"token {position} is {mine}, not {theirs} (gap {case.gaps[position]})"
            return True
    assert len(got.token_ids) == len(case.expected)
    return False


def test_alone(pipeline: Pipeline, cases: list[Case]) -> None:
    assert not any(assert_equal(pipeline.start(case, stream=True).wait(), case) for case in cases)


def test_all_at_once_streamed_and_not(pipeline: Pipeline, cases: list[Case]) -> None:
    sinks = [pipeline.start(case, stream=index % 2 == 0) for index, case in enumerate(cases)]
    ties = sum(assert_equal(sink.wait(), case) for sink, case in zip(sinks, cases, strict=True))
    assert ties <= 1


def test_joining_while_others_decode(pipeline: Pipeline, cases: list[Case]) -> None:
    first = pipeline.start(cases[11], stream=True)
    for case in cases[:5]:
        assert_equal(pipeline.start(case, stream=True).wait(), case)
    assert_equal(first.wait(), cases[11])


def test_choices_share_a_prefill_and_are_equal_when_greedy(pipeline: Pipeline, cases: list[Case]) -> None:
    case = cases[2]
    params = {"temperature": 0, "max_tokens": case.max_tokens, "n": 3}
    context = RequestContext(id="n", features=case.features, sampling_params=params)
    encoded = pipeline.encoder.encode(*tensors.concatenate(case.items), context)
    sink = NotingSink()
    pipeline.stage.submit(np.array(case.token_ids), encoded.embeddings, encoded.encoded, context, sink)
    assert sink.wait().token_ids == case.expected * 3


def test_logprobs_of_the_prompt_are_the_models_own(pipeline: Pipeline, cases: list[Case]) -> None:
    """Also of a prompt that is in the cache already, among others that decode, and of one that takes several chunks."""
    others = [pipeline.start(case, stream=True) for case in cases[:4]]
    for case in (cases[2], cases[12]):
        params = {"temperature": 0, "max_tokens": 3, "prompt_logprobs": 2, "n": 2}
        context = RequestContext(id="p", features=case.features, sampling_params=params)
        encoded = pipeline.encoder.encode(*tensors.concatenate(case.items), context)
        sink = NotingSink()
        pipeline.stage.submit(np.array(case.token_ids), encoded.embeddings, encoded.encoded, context, sink)
        (chunk,) = sink.wait().chunks
        with torch.inference_mode():
            logits = pipeline.model(input_ids=torch.tensor([case.token_ids]), **case.inputs).logits[0, :-1]
        expected = logits.log_softmax(-1)
        assert chunk.prompt_logprobs is not None
        assert chunk.prompt_logprobs[0] is None
        for token_id, row, entry in zip(case.token_ids[1:], expected, chunk.prompt_logprobs[1:], strict=True):
            first = next(iter(entry))
            assert first == token_id
            assert entry[first]["rank"] == pytest.approx(int((row > row[token_id]).sum()) + 1, abs=1)  # ties aside
            assert all(found["logprob"] == pytest.approx(float(row[other]), abs=1e-3) for other, found in entry.items())
            assert {1, 2} <= {found["rank"] for found in entry.values()}
    assert all(sink.wait().error is None for sink in others)
