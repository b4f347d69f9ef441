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
from training.pictures import COLOURS, MAX_SHAPES, SHAPES, Scene, Shape, make_scene

SHARE_WEIGHT = 2.0
HOLDS = 0.2  # a token with a larger share of a shape tells that shape's place
CLASSES = len(SHAPES) * len(COLOURS)  # of shapes, by colour and kind


def class_of(shape: Shape) -> int:
    """The shape's class, 0 to `CLASSES` - 1."""
    return SHAPES.index(shape.kind) * len(COLOURS) + COLOURS.index(shape.colour)


class Heads(nn.Module):
    """What is read off the vision tower's merged tokens (tokens, width) and off states of the language model."""

    def __init__(self, width: int) -> None:
        """`width` is that of the vision tower's output."""
        super().__init__()
        self.share = nn.Linear(width, CLASSES)  # logits of how much of a shape of each class belongs to the token
        nn.init.constant_(self.share.bias, -4.0)  # nearly none, as is nearly always right
        self.offset = nn.Linear(width, 2)  # how far its shape's centre is from the token's own, in tokens
        self.seen = nn.Linear(width, len(SHAPES) + len(COLOURS))  # shapes and colours that reach into the square
        self.place = nn.Linear(width, 2)  # the square's own place in the picture, 0 to 1
        self.point = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))
        self.compare = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))
        self.count = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CLASSES * (MAX_SHAPES + 1)))

    def loss(self, tokens: Tensor, targets: dict[str, Tensor]) -> Tensor:
        """The sum of the losses of what the merged tokens should tell."""
        shares = nn.functional.binary_cross_entropy_with_logits(self.share(tokens), targets["share"], reduction="none")
        holds = targets["holds"]
        loss = SHARE_WEIGHT * shares.sum(-1).mean()
        loss = loss + nn.functional.binary_cross_entropy_with_logits(self.seen(tokens), targets["seen"])
        loss = loss + nn.functional.mse_loss(self.place(tokens), targets["place"])
        return loss + nn.functional.mse_loss(self.offset(tokens[holds]), targets["offset"][holds])

    def pointing_loss(self, states: Tensor, places: Tensor) -> Tensor:
        """How badly the language model's states (mentions, width) at the names of shapes tell their places."""
        return nn.functional.mse_loss(self.point(states), places) if len(places) else states.sum() * 0

    def comparing_loss(self, states: Tensor, steps: Tensor) -> Tensor:
        """How badly the states (mentions, width) at the names of shapes tell the step from the shape named before.

        `steps` are (mentions, 2), NaN where none was named before.
        """
        known = ~steps[:, 0].isnan()
        return nn.functional.mse_loss(self.compare(states[known]), steps[known]) if known.any() else states.sum() * 0

    def counting_loss(self, states: Tensor, counts: Tensor) -> Tensor:
        """How badly the states (pictures, width) at the pictures' ends tell how many shapes of each class there are.

        `counts` are (pictures, `CLASSES`) int64.
        """
        logits = self.count(states).unflatten(-1, (CLASSES, MAX_SHAPES + 1))
        return nn.functional.cross_entropy(logits.flatten(0, 1), counts.flatten()) * CLASSES


def counts_of(scene: Scene) -> Tensor:
    """How many shapes of each class the scene has, (`CLASSES`,) int64."""
    return torch.bincount(torch.tensor([class_of(s) for s in scene.shapes], dtype=torch.int64), minlength=CLASSES)


def targets_of(scene: Scene, pixels: Pixels) -> dict[str, Tensor]:
    """What each merged token of the picture should see, row by row, in the shapes that `Heads` gives.

    A shape belongs to the four tokens around its centre, with the weights of bilinear interpolation. These change
    smoothly as it moves, where a single owner would change abruptly, and over the picture they sum up to counts.
    """
    rows, columns = pixels.merged
    share = torch.zeros(rows * columns, CLASSES)
    offset = torch.zeros(rows * columns, 2)
    largest = torch.zeros(rows * columns)
    seen = torch.zeros(rows * columns, len(SHAPES) + len(COLOURS))
    place = torch.tensor([[(j + 0.5) / columns, (i + 0.5) / rows] for i in range(rows) for j in range(columns)])
    for shape in scene.shapes:
        x, y = scene.relative(shape)
        # Beyond the outermost tokens' centres there is nothing to share with.
        dx = (place[:, 0] - min(max(x, 0.5 / columns), 1 - 0.5 / columns)).abs() * columns
        dy = (place[:, 1] - min(max(y, 0.5 / rows), 1 - 0.5 / rows)).abs() * rows
        weight = (1 - dx).clamp(min=0) * (1 - dy).clamp(min=0)
        share[:, class_of(shape)] += weight
        more = weight > largest
        offset[more] = (torch.tensor([x, y]) - place[more]) * torch.tensor([columns, rows])
        largest = torch.maximum(largest, weight)
        # A circle of four fifths of the radius, in squares: whoever is nearer to the centre surely sees the shape.
        reach_x = 0.8 * shape.radius * scene.side / scene.width
        reach_y = 0.8 * shape.radius * scene.side / scene.height
        gap_x = ((place[:, 0] - x).abs() - 0.5 / columns).clamp(min=0) / reach_x
        gap_y = ((place[:, 1] - y).abs() - 0.5 / rows).clamp(min=0) / reach_y
        near = gap_x**2 + gap_y**2 < 1
        seen[near, SHAPES.index(shape.kind)] = 1
        seen[near, len(SHAPES) + COLOURS.index(shape.colour)] = 1
    return {"share": share.clamp(max=1), "offset": offset, "holds": largest > HOLDS, "seen": seen, "place": place}


def sight_loss(tokens: Tensor, heads: Heads, pictures: list[Pixels]) -> tuple[Tensor, Tensor]:
    """The heads' loss and the share of pictures whose shapes are all counted rightly.

    `tokens` are the merged tokens (tokens, width) of all pictures in order.
    """
    targets = [targets_of(p.scene, p) for p in pictures]
    loss = heads.loss(tokens, {name: torch.cat([t[name] for t in targets]) for name in targets[0]})
    with torch.no_grad():
        shares = heads.share(tokens).sigmoid().split([len(t["place"]) for t in targets])
        right = [torch.equal(s.sum(0).round().long(), counts_of(p.scene)) for s, p in zip(shares, pictures, strict=True)]
    return loss, torch.tensor(right).float().mean()


def random_pictures(encoder: Encoder, rng: random.Random, count: int) -> list[Pixels]:
    """The first stage's batch."""
    return [encoder.look(make_scene(rng), "pillow", rng) for _ in range(count)]


EARLY_WEIGHT = 0.3


def picture_loss(visual: nn.Module, heads: Heads, early: Heads, pictures: list[Pixels]) -> tuple[Tensor, Tensor]:
    """`sight_loss` of what the vision tower makes of the pictures; with `early`, of its DeepStack features too."""
    patches, grids = torch.cat([p.patches for p in pictures]), torch.tensor([p.grid for p in pictures])
    out: Any = visual(patches, grid_thw=grids, return_dict=True)
    loss, right = sight_loss(out.pooler_output, heads, pictures)
    for features in out.deepstack_features:
        loss = loss + EARLY_WEIGHT * sight_loss(features, early, pictures)[0]
    return loss, right


PROBES, HOLDER_WEIGHT, LOUDNESS = 600, 8.0, 6.0


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
        # A token that holds a shape should tell the shape's place, any other one its own.
        places.append(targets["place"] + targets["offset"] / torch.tensor([columns, rows]))
        weights.append(torch.where(targets["holds"], HOLDER_WEIGHT, 1.0))
    x, y, weight = torch.cat(outputs), torch.cat(places), torch.cat(weights).sqrt()[:, None]
    x = x - x.mean(dim=0)
    reader = torch.linalg.lstsq(x * weight, (y - 0.5) * weight).solution
    reader = reader * (LOUDNESS / (x @ reader).std(dim=0))
    least = torch.linalg.svd(x, full_matrices=False).Vh[-reader.shape[1] :]
    last = visual.merger.linear_fc2
    mean = torch.cat(outputs).mean(dim=0)
    last.weight += least.T @ (reader.T @ last.weight)
    last.bias += least.T @ (reader.T @ (last.bias - mean))
