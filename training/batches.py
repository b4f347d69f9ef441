"""Turns conversations into token ids, pixels and positions, and packs them into rows.

Conversations about the same pictures share the tokens up to where they part. Such a group becomes a tree: the shared
prefix (with the pictures) once, then one branch a question. Each branch sees the prefix and itself only, and its
positions start where the prefix ends, so that the model computes for it exactly what it would for the conversation
alone, while the pictures and the prefix are computed once. Several trees share a row, which leaves little padding.
"""

import math
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from training.conversations import Conversation, Lesson, make_group
from training.model import MERGE
from training.pictures import COLOURS, SHAPES, Scene, make_picture

IGNORED = -100


@dataclass
class Pixels:
    """One picture for the vision tower: `patches` (patches, 3 * 2 * 16 * 16) float32, `grid` = (1, rows, columns)."""

    patches: Tensor
    grid: tuple[int, int, int]
    scene: Scene

    @property
    def merged(self) -> tuple[int, int]:
        """Rows and columns of tokens after merging two by two patches."""
        return self.grid[1] // MERGE, self.grid[2] // MERGE


@dataclass
class Batch:
    """`rows` of packed trees.

    input_ids and labels: (rows, length) int64; weights: (rows, length) float32, what each label counts;
    positions: (3, rows, length) int64; allowed: (rows, 1, length, length)
    bool, true where the token of the third axis sees that of the fourth; pixels: (all patches, 1536) float32 and
    grids: (pictures, 3) int64 in the order of their placeholders, as are scenes; mentions: (2, mentions) int64, row
    and place in it of the last token of each «red circle» that names exactly one shape; places: (mentions, 2) float32,
    that shape's centre as fractions of the picture's width and height; steps: (mentions, 2) float32, from the centre of the
    shape mentioned before in the same conversation, NaN where there is none; ends: (2, pictures) int64, row and place in it of
    the token that follows each picture; sight: what the vision tower makes of the pictures, once it has seen them.
    """

    input_ids: Tensor
    labels: Tensor
    weights: Tensor
    positions: Tensor
    allowed: Tensor
    pixels: Tensor
    grids: Tensor
    scenes: list[Scene]
    mentions: Tensor
    places: Tensor
    steps: Tensor
    ends: Tensor
    sight: Any = None


@dataclass
class Tree:
    """Flat arrays over a group's tokens: ids, labels, their weights, positions (3, tokens) and branches (0: prefix)."""

    ids: list[int]
    labels: list[int]
    weights: list[float]
    positions: np.ndarray[Any, np.dtype[np.int64]]
    branches: list[int]
    pixels: list[Pixels]
    mentions: list["Mention"]


@dataclass
class Mention:
    """The last token of «red circle»: its index in the tree, that shape's place, and the step from the one before."""

    at: int
    place: tuple[float, float]
    step: tuple[float, float]


class Encoder:
    """Applies the chat template, the tokenizer and the image processor."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, processor: Any) -> None:
        """`processor` is the image processor of the model's folder."""
        self.tokenizer = tokenizer
        self.processor = processor
        self.image_id: int = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.end_id: int = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.pad_id: int = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        self.colours = {self.ids(f" {colour}")[-1]: colour for colour in COLOURS}
        self.kinds = {self.ids(f" {kind}")[-1]: kind for kind in SHAPES}

    def prompt(self, conversation: Conversation) -> str:
        """The text before the answer."""
        return str(
            self.tokenizer.apply_chat_template(
                list(conversation.messages),
                tools=list(conversation.tools) or None,
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=conversation.thinking,
            )
        )

    def ids(self, text: str) -> list[int]:
        """The text's token ids, with one placeholder a picture."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def look(self, scene: Scene, routine: str, rng: random.Random) -> Pixels:
        """Draws the scene and preprocesses the picture."""
        out = self.processor(images=make_picture(scene, routine, rng), return_tensors="pt")
        _, rows, columns = out["image_grid_thw"][0].tolist()
        return Pixels(out["pixel_values"], (1, rows, columns), scene)

    def expand(self, ids: list[int], pixels: list[Pixels]) -> list[int]:
        """Repeats each placeholder once for each merged token of its picture."""
        sizes = iter([rows * columns for rows, columns in (p.merged for p in pixels)])
        return [i for token in ids for i in ([token] * next(sizes) if token == self.image_id else [token])]

    def positions(self, ids: list[int], pixels: list[Pixels]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """M-RoPE positions (3, tokens) of expanded ids: text counts up, a picture spans its rows and columns."""
        out = np.empty((3, len(ids)), np.int64)
        pictures, at, place = iter(pixels), 0, 0
        while place < len(ids):
            if ids[place] != self.image_id:
                out[:, place] = at
                place, at = place + 1, at + 1
                continue
            rows, columns = next(pictures).merged
            area = slice(place, place + rows * columns)
            out[0, area] = at
            out[1, area] = at + np.repeat(np.arange(rows), columns)
            out[2, area] = at + np.tile(np.arange(columns), rows)
            place, at = place + rows * columns, at + max(rows, columns)
        return out

    def tree(self, group: list[Conversation], pixels: list[Pixels]) -> Tree:
        """Joins conversations that begin with the same tokens, all their pictures among them."""
        prompts = [self.expand(self.ids(self.prompt(c)), pixels) for c in group]
        shared = 0
        if len(group) > 1:
            limit = min(len(p) for p in prompts) - 1
            while shared < limit and all(p[shared] == prompts[0][shared] for p in prompts):
                shared += 1
        ids, labels, branches = list(prompts[0][:shared]), [IGNORED] * shared, [0] * shared
        weights = [0.0] * shared
        parts = [self.positions(ids, pixels)] if shared else []
        for number, (prompt, conversation) in enumerate(zip(prompts, group, strict=True), 1):
            answer = [*self.ids(conversation.answer), self.end_id]
            whole = prompt + answer
            parts.append(self.positions(whole, pixels)[:, shared:])
            ids += whole[shared:]
            labels += [IGNORED] * (len(prompt) - shared) + answer
            # Between counting every token alike, which drowns «yes» and «no», and every answer alike.
            weights += [0.0] * (len(prompt) - shared) + [len(answer) ** -0.5] * len(answer)
            branches += [number] * (len(whole) - shared)
        mentions = self.mentions(ids, branches, pixels[0].scene) if len(pixels) == 1 else []
        return Tree(ids, labels, weights, np.concatenate(parts, axis=1), branches, pixels, mentions)

    def mentions(self, ids: list[int], branches: list[int], scene: Scene) -> list[Mention]:
        """Where the tokens after the picture name a single shape by colour and kind."""
        counts = Counter(shape.name for shape in scene.shapes)
        places = {s.name: scene.relative(s) for s in scene.shapes if counts[s.name] == 1}
        found: list[Mention] = []
        latest: dict[int, tuple[float, float]] = {}  # by branch; the prefix is part of every conversation
        for at in range(len(ids) - ids[::-1].index(self.image_id), len(ids) - 1):
            name = f"{self.colours.get(ids[at])} {self.kinds.get(ids[at + 1])}"
            if name in places:
                x, y = places[name]
                before = latest.get(branches[at], latest.get(0, (math.nan, math.nan)))
                found.append(Mention(at + 1, (x, y), (x - before[0], y - before[1])))
                latest[branches[at]] = (x, y)
        return found

    def batch(self, rng: random.Random, rows: int, length: int, lesson: Lesson) -> Batch:
        """Fills `rows` rows of at most `length` tokens with random training groups, drawn with the first routine.

        A group that fits nowhere loses its last conversations until it does; filling ends after a few that cannot.
        """
        filled: list[list[Tree]] = [[] for _ in range(rows)]
        room = [length] * rows
        misses = 0
        while misses < 4:
            group = make_group(rng, lesson)
            pixels = [self.look(scene, "pillow", rng) for scene in group[0].scenes] if group else []
            while group:
                tree = self.tree(group, pixels)
                fitting = [i for i in range(rows) if room[i] >= len(tree.ids)]
                if fitting:
                    row = min(fitting, key=lambda i: room[i])
                    filled[row].append(tree)
                    room[row] -= len(tree.ids)
                    break
                group = group[:-1]
            else:
                misses += 1
        return self.pack([row for row in filled if row])

    def pack(self, rows: list[list[Tree]]) -> Batch:
        """Lays trees out in rows, padded at the right to the longest row."""
        length = max(sum(len(t.ids) for t in row) for row in rows)
        input_ids = torch.full((len(rows), length), self.pad_id)
        labels = torch.full((len(rows), length), IGNORED)
        weights = torch.zeros(len(rows), length)
        positions = torch.zeros(3, len(rows), length, dtype=torch.int64)
        owners = torch.full((len(rows), length), -1)
        branches = torch.zeros(len(rows), length, dtype=torch.int64)
        mentions: list[tuple[int, int]] = []
        places: list[tuple[float, float]] = []
        steps: list[tuple[float, float]] = []
        for r, row in enumerate(rows):
            at = 0
            for number, tree in enumerate(row):
                area = slice(at, at + len(tree.ids))
                input_ids[r, area] = torch.tensor(tree.ids)
                labels[r, area] = torch.tensor(tree.labels)
                weights[r, area] = torch.tensor(tree.weights)
                positions[:, r, area] = torch.from_numpy(tree.positions)
                owners[r, area] = number
                branches[r, area] = torch.tensor(tree.branches)
                mentions += [(r, at + mention.at) for mention in tree.mentions]
                places += [mention.place for mention in tree.mentions]
                steps += [mention.step for mention in tree.mentions]
                at += len(tree.ids)
        same_tree = owners[:, :, None] == owners[:, None, :]
        same_branch = (branches[:, :, None] == branches[:, None, :]) | (branches[:, None, :] == 0)
        earlier = torch.ones(length, length, dtype=torch.bool).tril()
        pixels = [p for row in rows for tree in row for p in tree.pixels]
        pictured = input_ids == self.image_id
        ends = (pictured[:, :-1] & ~pictured[:, 1:]).nonzero().T + torch.tensor([[0], [1]])
        return Batch(
            input_ids,
            labels,
            weights,
            positions,
            (same_tree & same_branch & earlier)[:, None],
            torch.cat([p.patches for p in pixels]),
            torch.tensor([p.grid for p in pixels]),
            [p.scene for p in pixels],
            torch.tensor(mentions, dtype=torch.int64).reshape(-1, 2).T,
            torch.tensor(places).reshape(-1, 2),
            torch.tensor(steps).reshape(-1, 2),
            ends,
        )
