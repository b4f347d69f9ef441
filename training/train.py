"""Trains the model: `python -m training.train [--out build/shapes-vl] [--steps 10500]`.

The folder given by --out receives a checkpoint a stage (`sight.pt`, `answers.pt`; a later call goes on from them),
`log.jsonl` and `model/`, a complete Hugging Face folder that is replaced every few minutes and at the end.
"""

import argparse
import json
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    GenerationConfig,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from training.batches import IGNORED, Batch, Encoder
from training.conversations import TEXT_ONLY, Lesson, make_group
from training.model import PREPROCESSOR, make_config
from training.optimizer import Muon
from training.sight import Heads, counts_of, picture_loss, random_pictures, strengthen_places
from training.vocabulary import MARKUP, SPECIAL, save_tokenizer, train_tokenizer

CORPUS_GROUPS = 3000
LOG_EVERY = 50  # steps
SIGHT_PICTURES = 32  # a step of the first stage
ROWS, LENGTH = 6, 416  # of a step of the second stage, in tokens
POINTING_LAYER = 2  # of five, counted from 0
POINTING_WEIGHT, COMPARING_WEIGHT, COUNTING_WEIGHT = 4.0, 2.0, 1.0
CURRICULUM = (
    (0.03, Lesson(most=1, spatial=0.5)),
    (0.06, Lesson(most=2, spatial=0.5)),
    (0.1, Lesson(most=3, spatial=0.5)),
    (0.3, Lesson(spatial=0.3)),
    (0.55, Lesson()),
    (1.0, Lesson(late=True)),
)
SAVE_EVERY = 120.0  # seconds


def corpus(seed: int) -> list[str]:
    """Questions, answers and tools of many conversations and the template: the vocabulary's training text."""
    rng = random.Random(f"corpus {seed}")
    texts: list[str] = []
    for _ in range(CORPUS_GROUPS):
        group = make_group(rng)
        for conversation in group:
            for message in conversation.messages:
                content = message["content"]
                texts += [content] if isinstance(content, str) else [p["text"] for p in content if "text" in p]
            texts.append(conversation.answer)
        if group:  # Its conversations share their tools.
            texts += [json.dumps(tool) for tool in group[-1].tools]
    template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    return texts + [answer for _, answer in TEXT_ONLY] * 4 + [template]


def write_static_files(folder: Path, seed: int) -> None:
    """Writes everything of the model's folder but the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(corpus(seed))
    save_tokenizer(tokenizer, folder)
    vocabulary = tokenizer.get_vocab()
    ids = {token: vocabulary[token] for token in SPECIAL + MARKUP}
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
    """The model with fresh float32 weights, from the folder's configuration.

    White pixels are +1 in every channel, so a plain white patch would fill the residual stream with one large vector
    beside which positions and shapes vanish. The patch embedding starts with white at zero, and the learned positions
    start at the size of the patches.
    """
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_pretrained(folder)).float()
    visual = model.model.visual
    with torch.no_grad():
        visual.patch_embed.proj.bias.copy_(-visual.patch_embed.proj.weight.sum(dim=(1, 2, 3, 4)))
        visual.pos_embed.weight.normal_(std=0.3)
    embed = visual.patch_embed
    # The convolution covers each patch exactly once: as a matrix product it is the same, and several times as fast.
    embed.forward = lambda patches: nn.functional.linear(patches, embed.proj.weight.flatten(1), embed.proj.bias)
    return model


def looked_at(model: Qwen3VLForConditionalGeneration, batch: Batch) -> Batch:
    """The batch with what the vision tower, which learns no more, makes of its pictures."""
    with torch.no_grad():
        sight = model.model.get_image_features(batch.pixels, batch.grids, return_dict=True)
    return replace(batch, sight=sight, pixels=torch.empty(0))


def answer_loss(model: Qwen3VLForConditionalGeneration, heads: Heads, batch: Batch) -> tuple[Tensor, Tensor]:
    """The answers' weighted mean cross entropy with three auxiliary losses, and the share of right tokens.

    Relations take very long to learn from «yes» and «no»; so wherever a text names a shape, the state of a middle layer
    there should know the shape's place, and that of the next layer how far it is from the shape named before, which leaves
    only a sign to be read off. And descriptions of three or four shapes are rarely right as long as every answer counts
    anew; so after each picture the middle layer's state should know how many shapes of each class it shows.
    """
    states: list[Tensor] = []
    layers = model.model.language_model.layers[POINTING_LAYER : POINTING_LAYER + 2]
    hooks = [layer.register_forward_hook(lambda module, inputs, output: states.append(output)) for layer in layers]
    hidden = model.model(
        input_ids=batch.input_ids,
        attention_mask=torch.zeros(batch.allowed.shape).masked_fill(~batch.allowed, torch.finfo(torch.float32).min),
        position_ids=batch.positions,
        mm_encoder_outputs={"image": batch.sight},
        image_grid_thw=batch.grids,
        use_cache=False,
    ).last_hidden_state
    for hook in hooks:
        hook.remove()
    # The token at a place is predicted from the place before it; no branch begins with an answer's token.
    targets = batch.labels[:, 1:]
    wanted = targets != IGNORED
    logits = model.lm_head(hidden[:, :-1][wanted])
    right = (logits.argmax(-1) == targets[wanted]).float().mean()
    weights = batch.weights[:, 1:][wanted]
    losses = nn.functional.cross_entropy(logits, targets[wanted], reduction="none")
    middle, later = states
    counts = torch.stack([counts_of(scene) for scene in batch.scenes])
    loss = (losses * weights).sum() / weights.sum()
    loss = loss + POINTING_WEIGHT * heads.pointing_loss(middle[batch.mentions[0], batch.mentions[1]], batch.places)
    loss = loss + COMPARING_WEIGHT * heads.comparing_loss(later[batch.mentions[0], batch.mentions[1]], batch.steps)
    return loss + COUNTING_WEIGHT * heads.counting_loss(middle[batch.ends[0], batch.ends[1]], counts), right


def optimizers_for(model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of layers and mergers, AdamW for everything else that can be trained."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        # The patch embedding is one matrix too: a patch's inputs are nearly equal, and Adam would step along their mean alone.
        is_matrix = (
            p.ndim == 2 and any(part in name for part in (".layers.", ".blocks.", "merger"))
        ) or "patch_embed.proj.weight" in name
        (matrices if is_matrix else others).append(p)
    return [Muon(matrices, lr=rate), torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.01, foreach=True)]


def lesson(done: float) -> Lesson:
    """What is taught when a share `done` (0 to 1) of the training is over.

    One shape alone teaches what shapes, colours and places are; in a crowd that takes many times as long.
    """
    return next(lesson for end, lesson in CURRICULUM if done < end)


def rate_factor(done: float) -> float:
    """The learning rate's factor when a share `done` (0 to 1) of the training is over: warm-up, then a cosine."""
    return min(1.0, done / 0.02 + 0.01) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def save_weights(model: Qwen3VLForConditionalGeneration, folder: Path) -> None:
    """Replaces model.safetensors in one step, so that a reader never sees half a file.

    In float16, for a folder of half the size; the configuration says that the model computes in float32.
    """
    temporary = folder / "weights.tmp"
    save_file(
        {n: p.detach().half().contiguous() for n, p in model.state_dict().items() if n != "lm_head.weight"},
        temporary,
        metadata={"format": "pt"},
    )
    temporary.chmod(0o644)  # safetensors makes files that only their owner can read.
    os.replace(temporary, folder / "model.safetensors")


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replaces the checkpoint in one step."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


@dataclass(frozen=True)
class Lessons(Dataset[Any]):
    """The training data of a stage, a batch a step. Each depends on the seed and the step's number only, so that resuming
    needs no generator's state and another process can make them."""

    stage: str
    seed: int
    steps: int
    make: Callable[[random.Random, float], Any]  # given a generator and how much of the stage is over (0 to 1)

    def __len__(self) -> int:
        """The number of steps."""
        return self.steps

    def __getitem__(self, step: int) -> Any:
        """The batch of one step."""
        return self.make(random.Random(f"{self.stage} {self.seed} {step}"), step / self.steps)

    def after(self, step: int) -> DataLoader[Any]:
        """The batches from `step` on, made by another process while the model learns from earlier ones."""
        return DataLoader(self, batch_size=None, sampler=range(step, self.steps), num_workers=1, prefetch_factor=4)


class Progress:
    """Counts steps and time, logs averages, and decides when to save."""

    def __init__(self, out: Path, stage: str) -> None:
        """Appends to log.jsonl in `out`."""
        self.out, self.stage = out, stage
        self.figures: list[tuple[float, float]] = []
        self.started = self.saved = time.monotonic()

    def note(self, step: int, loss: Tensor, right: Tensor) -> None:
        """Remembers one step's loss and share of right tokens; writes a line now and then."""
        self.figures.append((loss.item(), right.item()))
        if step % LOG_EVERY:
            return
        means = [round(sum(column) / len(column), 4) for column in zip(*self.figures, strict=True)]
        line = {"stage": self.stage, "step": step, "loss": means[0], "right": means[1]}
        line["minutes"] = round((time.monotonic() - self.started) / 60, 2)
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        print(line, flush=True)
        self.figures = []

    def must_save(self) -> bool:
        """True once every `SAVE_EVERY` seconds."""
        if time.monotonic() - self.saved < SAVE_EVERY:
            return False
        self.saved = time.monotonic()
        return True


def run_stage(
    lessons: Lessons,
    out: Path,
    *,
    modules: nn.ModuleDict,
    rate: float,
    loss_of: Callable[[Any], tuple[Tensor, Tensor]],
) -> None:
    """Trains `modules` on the lessons, going on from the stage's checkpoint in `out` where there is one.

    `loss_of` gives a batch's loss, and the share of right answers to show.
    """
    checkpoint = out / f"{lessons.stage}.pt"
    optimizers = optimizers_for(modules, rate)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    full_rates = [group["lr"] for group in groups]
    step, steps = 0, lessons.steps
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        step = state["step"]
        modules.load_state_dict(state["modules"])
        if step < steps:
            for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
    progress = Progress(out, lessons.stage)
    for batch in lessons.after(step):
        for group, full in zip(groups, full_rates, strict=True):
            group["lr"] = full * rate_factor(step / steps)
        loss, right = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(modules.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        progress.note(step, loss, right)
        if progress.must_save() or step == steps:
            state = {"step": step, "modules": modules.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
            save_checkpoint(checkpoint, state)
            if "model" in modules:
                save_weights(cast(Qwen3VLForConditionalGeneration, modules["model"]), out / "model")


def train(out: Path, *, sight_steps: int, sight_rate: float, steps: int, rate: float, seed: int) -> None:
    """Both stages: the vision tower alone, then the whole model. Finished steps of earlier calls are not repeated."""
    folder = out / "model"
    if not (folder / "tokenizer.json").exists():
        write_static_files(folder, seed)
    torch.manual_seed(seed)
    model = new_model(folder)
    heads, early = (Heads(model.config.text_config.hidden_size) for _ in range(2))
    encoder = Encoder(AutoTokenizer.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder))
    visual = model.model.visual
    run_stage(
        Lessons("sight", seed, sight_steps, lambda rng, done: random_pictures(encoder, rng, SIGHT_PICTURES)),
        out,
        modules=nn.ModuleDict({"visual": visual, "heads": heads, "early": early}),
        rate=sight_rate,
        loss_of=lambda pictures: picture_loss(visual, heads, early, pictures),
    )
    if not (out / "answers.pt").exists():
        strengthen_places(visual, encoder, random.Random(f"places {seed}"))
    # What the tower has learnt stays: the answers would blur it for a long time before they made it better.
    visual.requires_grad_(False)
    run_stage(
        Lessons("answers", seed, steps, lambda rng, done: looked_at(model, encoder.batch(rng, ROWS, LENGTH, lesson(done)))),
        out,
        modules=nn.ModuleDict({"model": model, "heads": heads}),
        rate=rate,
        loss_of=lambda batch: answer_loss(model, heads, batch),
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("build/shapes-vl"))
    parser.add_argument("--sight-steps", type=int, default=1000, help="steps of the first stage in all")
    parser.add_argument("--steps", type=int, default=10500, help="steps of the second stage in all")
    parser.add_argument("--sight-rate", type=float, default=1e-2, help="highest learning rate of the first stage")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate of the second stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(
        options.out,
        sight_steps=options.sight_steps,
        sight_rate=options.sight_rate,
        steps=options.steps,
        rate=options.rate,
        seed=options.seed,
    )


if __name__ == "__main__":
    main()
