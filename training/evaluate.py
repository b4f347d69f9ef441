"""Measures a trained model: `python -m training.evaluate [--model models/shapes-vl] [--count 320]`.

Every kind of question is asked about pictures that training never saw, half of them drawn by the second routine,
which training never uses. An answer counts if it is the expected text exactly, markup of thinking and tool calls
included; answers are generated greedily by transformers' own `generate`.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
from transformers import AutoImageProcessor, AutoTokenizer, Qwen3VLForConditionalGeneration

from training.batches import Encoder
from training.conversations import KINDS, Conversation, make_one
from training.pictures import ROUTINES

MAX_NEW_TOKENS = 128
# The shares of right answers that the weights in the repository must reach, over both routines.
REQUIRED = {
    "shape": 0.97,
    "colour": 0.97,
    "count": 0.97,
    "description": 0.97,
    "relation": 0.9,
    "neighbour": 0.9,
    "tools": 0.95,
    "thinking": 0.95,
}


class Judge:
    """A model with what it takes to ask it."""

    def __init__(self, folder: Path) -> None:
        """Loads the model, its tokenizer and its image processor from a Hugging Face folder."""
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.encoder = Encoder(self.tokenizer, AutoImageProcessor.from_pretrained(folder))
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def answers(self, conversations: list[Conversation], routine: str, rng: random.Random) -> list[str]:
        """The model's answers, with the pictures drawn by the named routine."""
        pixels = [[self.encoder.look(scene, routine, rng) for scene in c.scenes] for c in conversations]
        prompts = [
            self.encoder.expand(self.encoder.ids(self.encoder.prompt(c)), p) for c, p in zip(conversations, pixels, strict=True)
        ]
        length = max(map(len, prompts))
        ids = torch.tensor([[self.encoder.pad_id] * (length - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts])
        flat = [p for pictures in pixels for p in pictures]
        vision = (
            {
                "pixel_values": torch.cat([p.patches for p in flat]),
                "image_grid_thw": torch.tensor([p.grid for p in flat]),
                "mm_token_type_ids": (ids == self.encoder.image_id).int(),
            }
            if flat
            else {}
        )
        # The model object remembers the positions' offset of its last call; text without pictures must not inherit it.
        self.model.model.rope_deltas = None
        out = self.model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=MAX_NEW_TOKENS, **vision)
        return [text.strip() for text in self.tokenizer.batch_decode(out[:, length:], skip_special_tokens=True)]


def measure(judge: Judge, kind: str, routine: str, *, count: int, batch: int, seed: int, show: int) -> tuple[int, int]:
    """How many of `count` answers are right; prints the first `show` wrong ones."""
    rng = random.Random(f"evaluation {seed} {kind} {routine}")
    right = 0
    for start in range(0, count, batch):
        conversations = [make_one(rng, kind) for _ in range(min(batch, count - start))]
        for conversation, answer in zip(conversations, judge.answers(conversations, routine, rng), strict=True):
            good = answer == conversation.answer
            right += good
            if not good and show > 0:
                show -= 1
                content = conversation.messages[-1]["content"]
                question = content if isinstance(content, str) else " ".join(p.get("text", "[picture]") for p in content)
                print(f"  {question!r}: {answer!r} instead of {conversation.answer!r}")
    return right, count


def main() -> None:
    """The command line. Ends with status 1 if a required share is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=Path("models/shapes-vl"))
    parser.add_argument("--count", type=int, default=320, help="pictures a kind, half of them of each drawing routine")
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print for each kind and routine")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started = time.monotonic()
    judge = Judge(options.model)
    figures: dict[str, dict[str, float]] = {}
    missed: list[str] = []
    print("| kind | " + " | ".join(ROUTINES) + " | both | required |\n|---" + "|---" * (len(ROUTINES) + 2) + "|")
    for kind in options.kinds:
        half = options.count // len(ROUTINES)
        results = {
            r: measure(judge, kind, r, count=half, batch=options.batch, seed=options.seed, show=options.show) for r in ROUTINES
        }
        shares = {r: right / asked for r, (right, asked) in results.items()}
        shares["both"] = sum(r for r, _ in results.values()) / sum(n for _, n in results.values())
        figures[kind] = shares
        bound = REQUIRED.get(kind)
        print(
            f"| {kind} | " + " | ".join(f"{v:.1%}" for v in shares.values()) + f" | {f'{bound:.0%}' if bound else ''} |",
            flush=True,
        )
        if bound and shares["both"] < bound:
            missed.append(kind)
    print(f"\n{options.count} pictures a kind, {time.monotonic() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if missed:
        raise SystemExit(f"below what is required: {', '.join(missed)}")


if __name__ == "__main__":
    main()
