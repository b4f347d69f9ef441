"""A video from the request to the answer, in one process, against transformers' undivided `generate` on the same patches."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from tests.golden.videos import video
from tests.unit.prefill_decode.fakes import NotingSink
from tests.unit.render.helpers import chat_job, data_url, image_part, png, text_part, user
from triton_renderer import tensors
from triton_renderer.derender import Derenderer
from triton_renderer.encode import Encoder
from triton_renderer.prefill_decode import PrefillDecode
from triton_renderer.render import Rendered, Renderer
from triton_renderer.settings import load_settings
from triton_renderer.wire import decode_item

MAX_TOKENS = 24
QUESTION = text_part("How many circles?")


def frames(*pictures: bytes) -> dict[str, Any]:
    payload = ",".join(data_url(picture).partition(",")[2] for picture in pictures)
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{payload}"}}


def film(name: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(video(name), "data:video/mp4;base64")}}


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "frames": [frames(*[png(96, 64, seed) for seed in range(5)]), QUESTION],
    "file": [film("two-seconds.mp4"), QUESTION],
    "two-and-pictures": [image_part(), film("tall.mp4"), text_part("and"), image_part(png(64, 96)), film("odd.webm"), QUESTION],
}


class Pipeline:
    """The stages of the bundled model, and the undivided model beside them."""

    def __init__(self, **options: Any) -> None:
        settings = load_settings(dtype="float32", max_model_len=2000, **options)
        self.renderer = Renderer.load(settings)
        self.encoder = Encoder.load(settings)
        self.stage = PrefillDecode.load(settings)
        self.derenderer = Derenderer.load(settings)
        self.undivided = AutoModelForImageTextToText.from_pretrained(settings.model, dtype=torch.float32).eval()

    def render(self, content: list[dict[str, Any]]) -> Rendered:
        return self.renderer.render(chat_job(user(*content), temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True))

    def start(self, rendered: Rendered) -> NotingSink:
        context = rendered.context.model_copy(update={"id": str(id(rendered))})
        answer = self.encoder.encode(*tensors.concatenate(rendered.items), context)
        sink = NotingSink()
        self.stage.submit(rendered.token_ids, answer.embeddings, answer.encoded, context, sink)
        return sink

    def expected(self, rendered: Rendered) -> list[int]:
        """What transformers makes of the rendered request."""
        config = self.undivided.config
        ids = torch.from_numpy(rendered.token_ids)[None]
        inputs: dict[str, torch.Tensor] = {
            "mm_token_type_ids": (ids == config.image_token_id).int() + 2 * (ids == config.video_token_id).int()
        }
        gathered: dict[str, list[torch.Tensor]] = {}
        for packed in rendered.items[::2]:
            for name, field in decode_item(packed).items():
                if not isinstance(field.data, np.ndarray):
                    continue
                tensor = torch.from_numpy(np.array(field.data))
                value = (tensor.float() / 255 - 0.5) / 0.5 if name.startswith("pixel") else tensor[None]
                gathered.setdefault(name, []).append(value)
        inputs |= {name: torch.cat(values) for name, values in gathered.items()}
        output = self.undivided.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_TOKENS,
            min_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=None,
            **inputs,
        )
        tokens: list[int] = output[0, ids.shape[1] :].tolist()
        return tokens


@pytest.fixture(scope="module", params=[{}, {"max_step_tokens": 40, "prefix_caching": False}], ids=["whole", "chunks"])
def pipeline(request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    torch.set_num_threads(1)
    pipeline = Pipeline(**request.param)
    yield pipeline
    pipeline.stage.close()


def test_tokens_are_those_of_transformers_alone_and_together(pipeline: Pipeline) -> None:
    rendered = {name: pipeline.render(content) for name, content in CONVERSATIONS.items()}
    expected = {name: pipeline.expected(each) for name, each in rendered.items()}
    assert len({tuple(tokens) for tokens in expected.values()}) == len(expected)
    for name, each in rendered.items():
        assert pipeline.start(each).wait().token_ids == expected[name], name
    sinks = {name: pipeline.start(each) for name, each in rendered.items()}
    assert {name: sink.wait().token_ids for name, sink in sinks.items()} == expected


def test_other_frames_are_not_answered_from_the_cache(pipeline: Pipeline) -> None:
    first = [png(96, 64, seed) for seed in range(4)]
    both = [pipeline.render([frames(*order), QUESTION]) for order in (first, first[::-1])]
    assert np.array_equal(both[0].token_ids, both[1].token_ids)
    for each in both:
        assert pipeline.start(each).wait().token_ids == pipeline.expected(each)


def test_the_answer_is_text(pipeline: Pipeline) -> None:
    rendered = pipeline.render(CONVERSATIONS["file"])
    sink = pipeline.start(rendered).wait()
    (document,) = pipeline.derenderer.chunk(np.array(sink.token_ids, np.int64), sink.chunks[0])
    answer = json.loads(document)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["prompt_tokens"] == len(rendered.token_ids)
