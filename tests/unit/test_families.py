"""Other families, the whole way in one process: render, encode, prefill_decode, derender, with no code for any of them.

What comes out equals transformers' own undivided `generate` on the inputs that the family's own processor makes, greedy, in
float32.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import AutoModelForImageTextToText

from tests.unit.families import Make, gemma3, llava, llava_onevision
from tests.unit.prefill_decode.fakes import NotingSink
from tests.unit.render.helpers import chat_job, encoded, image_part, noise, text_part, user
from triton_renderer import tensors
from triton_renderer.derender import Derenderer
from triton_renderer.encode import Encoder
from triton_renderer.prefill_decode import PrefillDecode
from triton_renderer.render import Renderer
from triton_renderer.render.image_processor import load_image_processor
from triton_renderer.render.images import _lenient
from triton_renderer.settings import load_settings
from triton_renderer.text.tokenizer import load_tokenizer
from triton_renderer.wire import Field, decode_item, encode_item

FAMILIES: dict[str, tuple[Make, str]] = {
    "gemma3": (gemma3, "<soi>"),
    "llava_onevision": (llava_onevision, "<image>"),
    "llava": (llava, "<image>"),
}
MAX_TOKENS = 20
TIE = 1e-4
"""Two logits closer than this may come out in either order: the sums of a batch are not added up in the same order."""

Content = Sequence[str | Image.Image]

CONVERSATIONS: dict[str, Content] = {
    "text": ["What is the sum of two and three?"],
    "one": [noise(70, 50, 1), "What is this?"],
    "wide": ["Look: ", noise(300, 60, 2), " and say what it is."],
    "tall": [noise(41, 222, 3), noise(41, 222, 3), "The same twice."],
    "three": ["First ", noise(56, 56, 4), " then ", noise(64, 200, 5), " and at last ", noise(170, 170, 6)],
    "long": ["word " * 60, noise(90, 90, 7), "word " * 60],
}


class Pipeline:
    """The four stages of one model, and the undivided model beside them."""

    def __init__(self, model: str, slot: str, **options: Any) -> None:
        settings = load_settings(model=model, dtype="float32", **options)
        self.renderer = Renderer.load(settings)
        self.encoder = Encoder.load(settings)
        self.stage = PrefillDecode.load(settings)
        self.derenderer = Derenderer.load(settings)
        self.tokenizer = load_tokenizer(model)
        self.undivided = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
        self.processor = self._processor(model)
        self.slot = slot

    def _processor(self, model: str) -> Any:
        """The family's own, but for a video processor, which would want torchvision."""
        with open(f"{model}/processor_config.json") as file:
            options = json.load(file)
        cls = _lenient(getattr(transformers, options.pop("processor_class")))
        parts = {
            "image_processor": load_image_processor(model),
            "tokenizer": self.tokenizer,
        }
        return cls(**{name: parts.get(name) for name in cls.get_attributes()}, **options)

    def expected(self, content: Content) -> tuple[list[int], list[int], list[float]]:
        """Prompt and output of transformers alone, and at each output token how far the best logit is above the second."""
        texts = [self.slot if isinstance(part, Image.Image) else part for part in content]
        text = f"<|im_start|>user\n{''.join(texts)}<|im_end|>\n"
        pictures = [part for part in content if isinstance(part, Image.Image)]
        maker = partial(self.processor, images=pictures) if pictures else self.tokenizer
        inputs = maker(text=text, return_tensors="pt")
        output = self.undivided.generate(
            **inputs,
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            eos_token_id=self.tokenizer.eos_token_id,
        )
        prompt = inputs["input_ids"][0].tolist()
        best = [logits[0].topk(2).values for logits in output.logits]
        return prompt, output.sequences[0, len(prompt) :].tolist(), [float(pair[0] - pair[1]) for pair in best]

    def start(self, content: Content, *, stream: bool = False) -> tuple[list[int], NotingSink]:
        """The prompt's token ids, and what takes the output."""
        parts = [image_part(encoded(part)) if isinstance(part, Image.Image) else text_part(part) for part in content]
        job = chat_job(user(*parts), temperature=0, max_tokens=MAX_TOKENS, stream=stream, add_generation_prompt=False)
        rendered = self.renderer.render(job)
        context = rendered.context.model_copy(update={"id": str(id(rendered))})
        answer = self.encoder.encode(*tensors.concatenate(rendered.items), context)
        sink = NotingSink()
        self.stage.submit(rendered.token_ids, answer.embeddings, answer.encoded, context, sink)
        return rendered.token_ids.tolist(), sink

    def answer(self, content: Content) -> str:
        """The text of a plain answer."""
        _, sink = self.start(content)
        (document,) = self.derenderer.chunk(np.array(sink.wait().token_ids, np.int64), sink.chunks[0])
        text: str = json.loads(document)["choices"][0]["message"]["content"]
        return text

    def close(self) -> None:
        self.stage.close()


VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks": {"max_step_tokens": 19, "max_running_requests": 6, "prefix_caching": False},
}


@pytest.fixture(scope="module", params=[(family, variant) for family in sorted(FAMILIES) for variant in VARIANTS], ids="-".join)
def pipeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    torch.set_num_threads(1)
    family, variant = request.param
    make, slot = FAMILIES[family]
    folder = make(tmp_path_factory.mktemp("family") / family, weights=True)
    pipeline = Pipeline(str(folder), slot, **VARIANTS[variant])
    yield pipeline
    pipeline.close()


@pytest.fixture(scope="module")
def expected(pipeline: Pipeline) -> dict[str, tuple[list[int], list[int], list[float]]]:
    return {name: pipeline.expected(content) for name, content in CONVERSATIONS.items()}


def assert_equal(sink: NotingSink, output: list[int], gaps: list[float]) -> None:
    """Fails unless the tokens are equal up to a tie of the two best logits."""
    assert sink.error is None
    for position, (mine, theirs) in enumerate(zip(sink.token_ids, output, strict=False)):
        if mine != theirs:
            assert gaps[position] < TIE, f"token {position} is {mine}, not {theirs} (gap {gaps[position]})"
            return
    assert len(sink.token_ids) == len(output)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompt_and_output_are_those_of_transformers(pipeline: Pipeline, expected: Any, name: str) -> None:
    prompt, output, gaps = expected[name]
    token_ids, sink = pipeline.start(CONVERSATIONS[name], stream=True)
    assert token_ids == prompt
    assert_equal(sink.wait(), output, gaps)


def test_all_of_them_decode_together(pipeline: Pipeline, expected: Any) -> None:
    sinks = {name: pipeline.start(content)[1] for name, content in CONVERSATIONS.items()}
    for name, sink in sinks.items():
        _, output, gaps = expected[name]
        assert_equal(sink.wait(), output, gaps)


def test_the_answer_is_the_outputs_text(pipeline: Pipeline, expected: Any) -> None:
    _, output, _ = expected["one"]
    assert pipeline.answer(CONVERSATIONS["one"]) == pipeline.tokenizer.decode(output, skip_special_tokens=True)


def test_a_picture_seen_before_comes_from_the_cache_and_answers_the_same(pipeline: Pipeline, expected: Any) -> None:
    _, output, gaps = expected["wide"]
    pipeline.start(CONVERSATIONS["wide"])[1].wait()
    misses = pipeline.encoder.cache.misses
    assert_equal(pipeline.start(CONVERSATIONS["wide"])[1].wait(), output, gaps)
    assert pipeline.encoder.cache.misses == misses


def test_an_item_may_come_with_an_axis_of_its_own_and_with_counts_that_nobody_asks_for(pipeline: Pipeline) -> None:
    """As renderers send it that put the tiles of all pictures into one tensor."""
    rendered = pipeline.renderer.render(chat_job(user(image_part(encoded(noise(70, 50, 8))))))
    item = decode_item(rendered.items[0])
    pixels = np.asarray(item["pixel_values"].data)
    other = item | {
        "pixel_values": Field(pixels[None], "flat", {"keep_on_cpu": False, "slices": [[[0, 1, None]]], "dim": 0}),
        "num_patches": Field(np.array(1), "batched", {"keep_on_cpu": True}),
    }
    answers = []
    for sent in (rendered.items[0], encode_item(other)):
        context = rendered.context.model_copy(update={"cache_salt": str(len(sent))})  # the tower runs for each
        answers.append(pipeline.encoder.encode(*tensors.concatenate([sent, b""]), context))
    assert torch.equal(answers[0].embeddings, answers[1].embeddings)
    assert answers[0].encoded.form == answers[1].encoded.form
