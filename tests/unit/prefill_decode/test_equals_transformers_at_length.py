"""Many prompts of mixed length, joining batches of changing size: each gets what transformers' `generate` makes of it alone.

With prefix caching and without, with a KV cache for all of them and with one so small that sequences are pushed out.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.unit.prefill_decode.fakes import NotingSink
from tests.unit.prefill_decode.test_equals_transformers import Case, Pipeline, assert_equal
from triton_renderer import tensors
from triton_renderer.encode import Encoded
from triton_renderer.prefill_decode import PrefillDecode
from triton_renderer.prefill_decode.scheduler import Work
from triton_renderer.protocol.stages import RequestContext
from triton_renderer.settings import load_settings

MAX_MODEL_LEN = 700
SMALL_CACHE_BYTES = 2_900_000
"""Holds the longest request, and little else."""
TIED_SHARE = 0.005
"""Of the prompts. One of the 200 has a token whose two best logits are closer than a tie, by 9.7e-5; none of the 24 has."""
BATCHES = (1, 7, 2, 16, 3, 1, 11, 5, 24)
"""Requests that come at once; then one of those that are open has to end before the next ones come."""


class Related(Pipeline):
    """Its prompts often begin alike, and some pictures come again."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.model.generation_config.eos_token_id = None  # outputs of every length
        self.beginnings = [super(Related, self).text(400) for _ in range(3)]
        self.pictures = [super(Related, self).picture() for _ in range(4)]

    def text(self, length: int) -> list[int]:
        """Token ids."""
        if length > 8 and self.rng.random() < 0.5:
            shared = int(length * self.rng.uniform(0.5, 1.0))
            return self.beginnings[self.rng.integers(3)][:shared] + super().text(length - shared)
        return super().text(length)

    def picture(self) -> Image.Image:
        return self.pictures[self.rng.integers(4)] if self.rng.random() < 0.5 else super().picture()


@dataclass
class Prepared:
    """A prompt with what the encoder made of its pictures."""

    case: Case
    encoded: Encoded
    context: RequestContext


@pytest.fixture(
    scope="module", params=[24, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(3600)])], ids="{} prompts".format
)
def prompts(request: pytest.FixtureRequest) -> list[Prepared]:
    torch.set_num_threads(1)
    pipeline = Related(max_model_len=MAX_MODEL_LEN)
    pipeline.stage.close()
    rng, prepared = pipeline.rng, []
    for number in range(request.param):
        length = int(rng.choice([rng.integers(1, 20), rng.integers(20, 120), rng.integers(120, 380)], p=[0.3, 0.4, 0.3]))
        num_pictures = int(rng.integers(1, 4)) if number % 2 else 0
        case = pipeline.case(num_pictures, min(length, 120) if num_pictures else length, int(rng.integers(1, 240)))
        params = {"temperature": 0, "max_tokens": case.max_tokens, "ignore_eos": True}
        context = RequestContext(id=str(number), stream=number % 3 > 0, features=case.features, sampling_params=params)
        prepared.append(Prepared(case, pipeline.encoder.encode(*tensors.concatenate(case.items), context), context))
    return prepared


@dataclass
class Run:
    """An engine, and how many sequences each of its steps worked on."""

    stage: PrefillDecode
    batch_sizes: list[int]

    def value(self, name: str) -> float:
        """Of one of the engine's metrics."""
        return self.stage.engine.metrics.registry.get_sample_value(f"triton_renderer_{name}") or 0.0


@pytest.fixture(params=[True, False], ids=["prefixes cached", "nothing cached"])
def prefix_caching(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[None, SMALL_CACHE_BYTES], ids=["room for all", "preempting"])
def kv_cache_bytes(request: pytest.FixtureRequest) -> int | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def run(prefix_caching: bool, kv_cache_bytes: int | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    stage = PrefillDecode.load(
        load_settings(
            dtype="float32",
            max_model_len=MAX_MODEL_LEN,
            max_step_tokens=256,  # some prompts take two steps
            prefix_caching=prefix_caching,
            kv_cache_bytes=kv_cache_bytes,
        )
    )
    sizes: list[int] = []
    forward = stage._runner.forward

    def noting(works: Sequence[Work], wanted: Sequence[int]) -> torch.Tensor:
        sizes.append(len(works))
        return forward(works, wanted)

    monkeypatch.setattr(stage._runner, "forward", noting)
    yield Run(stage, sizes)
    stage.close()


def test_batches_of_changing_size_give_what_transformers_gives(
    run: Run, prompts: list[Prepared], prefix_caching: bool, kv_cache_bytes: int | None
) -> None:
    rng = np.random.default_rng(11)
    sinks: list[NotingSink] = []
    waiting, sizes = list(prompts), itertools.cycle(BATCHES)
    while waiting:
        size = next(sizes)
        for prompt in waiting[:size]:
            sinks.append(NotingSink())
            ids = np.array(prompt.case.token_ids)
            run.stage.submit(ids, prompt.encoded.embeddings, prompt.encoded.encoded, prompt.context, sinks[-1])
        del waiting[:size]
        if still_open := [sink for sink in sinks if not sink.num_ends]:
            still_open[rng.integers(len(still_open))].wait(120)
    ties = sum(assert_equal(sink.wait(300), prompt.case) for sink, prompt in zip(sinks, prompts, strict=True))

    preemptions, hits = run.value("preemptions_total"), run.value("prefix_cache_hit_tokens_total")
    queried = run.value("prefix_cache_queried_tokens_total")
    print(
        f"{len(prompts)} prompts of {min(len(one.case.token_ids) for one in prompts)} to "
        f"{max(len(one.case.token_ids) for one in prompts)} tokens, {sum(bool(one.case.items) for one in prompts)} with pictures: "
        f"{ties} differ by a tie; steps of {min(run.batch_sizes)} to {max(run.batch_sizes)} sequences, "
        f"{preemptions:.0f} preemptions, {hits:.0f} of {queried:.0f} tokens from the cache"
    )
    assert ties <= TIED_SHARE * len(prompts)
    assert all(sink.num_ends == 1 for sink in sinks)
    assert (hits > 0) == prefix_caching
    assert (preemptions > 0) == (kv_cache_bytes is not None)
    assert len(set(run.batch_sizes)) >= 4
    run.stage.close()  # nothing steps any more: the books can be looked at
    scheduler = run.stage.engine._scheduler
    scheduler.check_integrity()
    assert scheduler.pool.num_unused == scheduler.pool.num_usable
