"""Greedy tokens of the whole pipeline against transformers' undivided `generate`, in float32.

render → encode → prefill_decode, three processes and a batch that changes, must give the very tokens of one model call:
a wrong order of pictures, a wrong position, a placeholder too many, and they differ.
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from tests.e2e.asking import MODEL, draw, image_part, noise, text_part
from training.conversations import make_one
from training.pictures import make_scene
from triton_renderer.settings import Settings

TIE = 1e-4
MAX_TOKENS = 24


@dataclass
class Case:
    """A chat, and what the undivided model makes of it; `gaps`: its best logit above the second, a token."""

    content: list[dict[str, Any]]
    expected: list[int]
    gaps: list[float]
    prompt_ids: list[int]


class Undivided:
    """The whole model in this process, with its own image processor and template."""

    def __init__(self, model: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.processor = AutoImageProcessor.from_pretrained(model)
        self.model = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()

    def case(self, parts: list[Any]) -> Case:
        """parts: texts and pictures in the order of the message."""
        pictures = [part for part in parts if not isinstance(part, str)]
        content = [text_part(part) if isinstance(part, str) else {"type": "image"} for part in parts]
        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        inputs = {}
        if pictures:
            vision = self.processor(pictures, return_tensors="pt")
            for grid in vision["image_grid_thw"]:
                rows = int(grid.prod()) // self.processor.merge_size**2
                prompt = prompt.replace("<|image_pad|>", "<|placeholder|>" * rows, 1)
            inputs = dict(vision)
        prompt = prompt.replace("<|placeholder|>", "<|image_pad|>")
        ids = self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        if pictures:
            inputs["mm_token_type_ids"] = (ids == self.model.config.image_token_id).int()
        self.model.model.rope_deltas = None
        output = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            **inputs,
        )
        best = [logits[0].topk(2).values for logits in output.logits]
        sent = [text_part(part) if isinstance(part, str) else image_part(part) for part in parts]
        expected = output.sequences[0, ids.shape[1] :].tolist()
        return Case(sent, expected, [float(pair[0] - pair[1]) for pair in best], ids[0].tolist())


@pytest.fixture(scope="module")
def cases(settings: Settings) -> Iterator[list[Case]]:
    torch.set_num_threads(1)
    undivided, rng = Undivided(settings.model), random.Random("equality")

    def picture() -> Any:
        if rng.random() < 0.3:
            return noise(rng.randrange(10**6), rng.randint(64, 300), rng.randint(64, 300))
        return draw(make_scene(rng), rng.randrange(10**6))

    def question() -> str:
        content = make_one(rng, "description").messages[-1]["content"]
        return next(part["text"] for part in content if part["type"] == "text")

    parts: list[list[Any]] = []
    parts += [
        [text] for text in ("Hello", "What can you do?", "Tell me a story about a square.", "Quelle heure est-il? 你好 🎉")
    ]
    parts += [[f"Repeat {count} times: red " + "blue " * count] for count in (1, 40, 200)]
    parts += [[picture(), question()] for _ in range(10)]
    parts += [[question(), picture()] for _ in range(6)]
    parts += [[picture(), picture(), picture(), "What is in the second picture?"] for _ in range(5)]
    parts += [["first", picture(), "second", picture(), "which is which?"] for _ in range(4)]
    for _ in range(4):
        same = picture()
        parts.append([same, same, "What is in each picture?"])
    return [undivided.case(part) for part in parts]


def ask(http: httpx.Client, case: Case) -> list[int]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": case.content}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "return_token_ids": True,
    }
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["prompt_token_ids"] == case.prompt_ids
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


def ties(answers: list[list[int]], cases: list[Case]) -> int:
    """How many differ first where the undivided model's two best logits are all but equal; fails for any other."""
    count = 0
    for answer, case in zip(answers, cases, strict=True):
        if answer == case.expected:
            continue
        first = next(
            (at for at, pair in enumerate(zip(answer, case.expected, strict=False)) if pair[0] != pair[1]),
            min(len(answer), len(case.expected)),
        )
        assert first < len(case.gaps)
        assert case.gaps[first] < TIE, f"token {first} of {answer} is not that of {case.expected} (gap {case.gaps[first]})"
        count += 1
    return count


def test_alone(http: httpx.Client, cases: list[Case]) -> None:
    assert len(cases) >= 30
    count = ties([ask(http, case) for case in cases], cases)
    print(f"alone: {len(cases)} prompts equal, {count} of them up to a tie")
    assert count <= 1


def test_eight_at_once(http: httpx.Client, cases: list[Case]) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda case: ask(http, case), cases))
    count = ties(answers, cases)
    print(f"8 at once: {len(cases)} prompts equal, {count} of them up to a tie")
    assert count <= 1
