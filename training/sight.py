"""The first stage of training: the vision tower alone learns what lies where.

Answers alone teach a vision tower slowly: thousands of pictures pass before shapes mean anything to it. Here every
merged token is told what it should have seen, through heads that are thrown away afterwards, and without the cost of
the language model.
"""

import random
from typing import Any

import torch
from torch import Tensor, nn

from training.batches import Encoder, Pixels
from training.pictures import COLOURS, SHAPES, Scene, make_scene

NOTHING = 0


class Heads(nn.Module):
    """What is read off each merged token (tokens, width)."""

    def __init__(self, width: int) -> None:
        """`width` is that of the vision tower's output."""
        super().__init__()
        self.centre = nn.Linear(width, 1 + len(SHAPES) * len(COLOURS))  # whose centre lies in the token's square
        self.offset = nn.Linear(width, 2)  # and how far from the square's own centre, in squares
        self.seen = nn.Linear(width, len(SHAPES) + len(COLOURS))  # shapes and colours that reach into the square
        self.place = nn.Linear(width, 2)  # the square's own place in the picture, 0 to 1
        self.point = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def loss(self, tokens: Tensor, targets: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The sum of all losses, and the share of the centres that are named rightly."""
        logits = self.centre(tokens)
        named = targets["centre"] != NOTHING
        # Most squares are empty; without weights the few others would hardly count.
        weights = torch.where(named, 4.0, 1.0)
        naming = nn.functional.cross_entropy(logits, targets["centre"], reduction="none")
        loss = (naming * weights).sum() / weights.sum()
        loss = loss + nn.functional.binary_cross_entropy_with_logits(self.seen(tokens), targets["seen"])
        loss = loss + nn.functional.mse_loss(self.place(tokens), targets["place"])
        loss = loss + nn.functional.mse_loss(self.offset(tokens[named]), targets["offset"][named])
        return loss, (logits.argmax(-1) == targets["centre"])[named].float().mean()

    def pointing_loss(self, states: Tensor, places: Tensor) -> Tensor:
        """How badly the language model's states (mentions, width) at the names of shapes tell their places."""
        return nn.functional.mse_loss(self.point(states), places) if len(places) else states.sum()


def targets_of(scene: Scene, pixels: Pixels) -> dict[str, Tensor]:
    """What each merged token of the picture should see, row by row, in the shapes that `Heads` gives."""
    rows, columns = pixels.merged
    centre = torch.full((rows * columns,), NOTHING)
    offset = torch.zeros(rows * columns, 2)
    seen = torch.zeros(rows * columns, len(SHAPES) + len(COLOURS))
    place = torch.tensor([[(j + 0.5) / columns, (i + 0.5) / rows] for i in range(rows) for j in range(columns)])
    for shape in scene.shapes:
        x, y = scene.relative(shape)
        row, column = min(rows - 1, int(y * rows)), min(columns - 1, int(x * columns))
        kind, colour = SHAPES.index(shape.kind), COLOURS.index(shape.colour)
        at = row * columns + column
        centre[at] = 1 + kind * len(COLOURS) + colour
        offset[at] = torch.tensor([x * columns - column - 0.5, y * rows - row - 0.5])
        # A circle of four fifths of the radius, in squares: whoever is nearer to the centre surely sees the shape.
        reach_x = 0.8 * shape.radius * scene.side / scene.width
        reach_y = 0.8 * shape.radius * scene.side / scene.height
        gap_x = ((place[:, 0] - x).abs() - 0.5 / columns).clamp(min=0) / reach_x
        gap_y = ((place[:, 1] - y).abs() - 0.5 / rows).clamp(min=0) / reach_y
        near = gap_x**2 + gap_y**2 < 1
        seen[near, kind] = 1
        seen[near, len(SHAPES) + colour] = 1
    return {"centre": centre, "offset": offset, "seen": seen, "place": place}


def sight_loss(tokens: Tensor, heads: Heads, pictures: list[Pixels]) -> tuple[Tensor, Tensor]:
    """The heads' loss and share of right names, given the merged tokens (tokens, width) of all pictures in order."""
    targets = [targets_of(p.scene, p) for p in pictures]
    return heads.loss(tokens, {name: torch.cat([t[name] for t in targets]) for name in targets[0]})


def random_sight_loss(
    visual: nn.Module, heads: Heads, encoder: Encoder, rng: random.Random, pictures: int
) -> tuple[Tensor, Tensor]:
    """The same over a batch of random pictures."""
    flat = [encoder.look(make_scene(rng), "pillow", rng) for _ in range(pictures)]
    out: Any = visual(torch.cat([p.patches for p in flat]), grid_thw=torch.tensor([p.grid for p in flat]), return_dict=True)
    return sight_loss(out.pooler_output, heads, flat)


PROBES, CENTRE_WEIGHT, LOUDNESS = 600, 8.0, 6.0


@torch.no_grad()
def strengthen_places(visual: Any, encoder: Encoder, rng: random.Random) -> None:
    """Makes where a token is as loud in the vision tower's output as what it shows.

    After the first stage colours fill almost the whole length of the output vectors, and places, though they can be
    read off precisely, so little of it that the language model would not notice them for a very long time. So read
    the places off by least squares, and write them again, with a standard deviation of `LOUDNESS`, along the two
    directions that the output uses least. This is linear, and becomes part of the merger's last matrix.
    """
    outputs: list[Tensor] = []
    places: list[Tensor] = []
    weights: list[Tensor] = []
    for _ in range(PROBES):
        scene = make_scene(rng)
        pixels = encoder.look(scene, "pillow", rng)
        targets = targets_of(scene, pixels)
        outputs.append(visual(pixels.patches, grid_thw=torch.tensor([pixels.grid]), return_dict=True).pooler_output)
        rows, columns = pixels.merged
        # A token that holds a shape's centre should tell the shape's place, any other one its own.
        places.append(targets["place"] + targets["offset"] / torch.tensor([columns, rows]))
        weights.append(torch.where(targets["centre"] != NOTHING, CENTRE_WEIGHT, 1.0))
    x, y, weight = torch.cat(outputs), torch.cat(places), torch.cat(weights).sqrt()[:, None]
    x = x - x.mean(dim=0)
    reader = torch.linalg.lstsq(x * weight, (y - 0.5) * weight).solution
    reader = reader * (LOUDNESS / (x @ reader).std(dim=0))
    least = torch.linalg.svd(x, full_matrices=False).Vh[-reader.shape[1] :]
    last = visual.merger.linear_fc2
    mean = torch.cat(outputs).mean(dim=0)
    last.weight += least.T @ (reader.T @ last.weight)
    last.bias += least.T @ (reader.T @ (last.bias - mean))
