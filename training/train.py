"""Trains the model: `python -m training.train [--out build/shapes-vl] [--minutes 75]`.

The folder given by --out receives `checkpoint.pt` (weights, optimizers, random state: a later call goes on from it),
`log.jsonl` and `model/`, a complete Hugging Face folder that is replaced every few minutes and at the end.
"""

import argparse
import json
import math
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoImageProcessor, AutoTokenizer, GenerationConfig, Qwen3VLForConditionalGeneration

from training.batches import IGNORED, Batch, Encoder
from training.conversations import TEXT_ONLY, make_group
from training.model import PREPROCESSOR, make_config
from training.vocabulary import MARKUP, SPECIAL, save_tokenizer, train_tokenizer

CORPUS_GROUPS = 3000


def corpus(seed: int) -> list[str]:
    """Prompts and answers of many conversations, as the vocabulary's training text; fixed answers weigh a little more."""
    rng = random.Random(f"corpus {seed}")
    texts: list[str] = []
    for _ in range(CORPUS_GROUPS):
        for conversation in make_group(rng):
            for message in conversation.messages:
                content = message["content"]
                texts += [content] if isinstance(content, str) else [p["text"] for p in content if "text" in p]
            texts.append(conversation.answer)
        if conversation_tools := [json.dumps(tool) for tool in conversation.tools]:
            texts += conversation_tools
    template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    return texts + [answer for _, answer in TEXT_ONLY] * 4 + [template]


def write_static_files(folder: Path, seed: int) -> None:
    """Writes everything of the model's folder but the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(corpus(seed))
    save_tokenizer(tokenizer, folder)
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL + MARKUP}
    # A multiple of 16 keeps the output matrix's shape friendly to vector units.
    config = make_config(ids, math.ceil(tokenizer.get_vocab_size() / 16) * 16)
    config.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n", encoding="utf-8")
    GenerationConfig(
        do_sample=False,
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
        pad_token_id=ids["<|endoftext|>"],
    ).save_pretrained(folder)


def new_model(folder: Path) -> Qwen3VLForConditionalGeneration:
    """The model with fresh weights, from the folder's configuration."""
    config = make_config({}, 0) if not (folder / "config.json").exists() else None
    del config
    from transformers import AutoConfig

    model = Qwen3VLForConditionalGeneration(AutoConfig.from_pretrained(folder)).float()
    return model


def loss_of(model: Qwen3VLForConditionalGeneration, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean cross entropy over the answers' tokens, and the share of these tokens that is predicted rightly."""
    hidden = model.model(
        input_ids=batch.input_ids,
        attention_mask=torch.zeros(batch.allowed.shape).masked_fill(~batch.allowed, torch.finfo(torch.float32).min),
        position_ids=batch.positions,
        pixel_values=batch.pixels,
        image_grid_thw=batch.grids,
        use_cache=False,
    ).last_hidden_state
    # The token at a place is predicted from the place before it; no branch begins with an answer's token.
    targets = batch.labels[:, 1:]
    wanted = targets != IGNORED
    logits = model.lm_head(hidden[:, :-1][wanted])
    right = (logits.argmax(-1) == targets[wanted]).float().mean()
    return nn.functional.cross_entropy(logits, targets[wanted]), right
