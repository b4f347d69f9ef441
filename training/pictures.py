"""Synthetic pictures: what is on them (`Scene`) and two independent routines that draw them.

`draw_with_pillow` paints polygons on an enlarged canvas and shrinks it. `draw_with_distances` evaluates signed
distances at pixel centres with numpy. Training uses the first only; the second exists for evaluation, so that a
model which had learnt the artefacts of one rasteriser instead of shapes would be found out.
"""

import io
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "black")
# Between which two colours a shape's own lies; one end is what drawing programs call by that name.
PALETTE: dict[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "red": ((255, 0, 0), (205, 35, 40)),
    "orange": ((255, 165, 0), (245, 120, 10)),
    "yellow": ((255, 255, 0), (240, 210, 25)),
    "green": ((0, 128, 0), (30, 190, 70)),
    "blue": ((0, 0, 255), (40, 90, 210)),
    "purple": ((128, 0, 128), (150, 45, 205)),
    "black": ((0, 0, 0), (40, 40, 40)),
}
MAX_SHAPES = 4
MAX_ASPECT = 2.0

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Shape:
    """One shape. Lengths are in units of the picture's shorter side, measured from its top left corner.

    `radius` is that of the circle around the shape's corners (or of the circle itself); `angle` is in radians.
    """

    kind: str
    colour: str
    rgb: Colour
    x: float
    y: float
    radius: float
    angle: float

    @property
    def name(self) -> str:
        """Colour and shape, as in «red circle»."""
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True)
class Scene:
    """A picture before it is drawn: its size in pixels, its background and its shapes."""

    width: int
    height: int
    background: Colour
    shapes: tuple[Shape, ...]

    @property
    def side(self) -> int:
        """The shorter side in pixels, the unit of the shapes' lengths."""
        return min(self.width, self.height)

    def relative(self, shape: Shape) -> tuple[float, float]:
        """The shape's centre as fractions (x, y) of the picture's width and height."""
        return shape.x * self.side / self.width, shape.y * self.side / self.height


def _corners(shape: Shape, scale: float) -> list[tuple[float, float]]:
    count = 4 if shape.kind == "square" else 3
    turn = 2 * math.pi / count
    return [
        (
            scale * (shape.x + shape.radius * math.sin(shape.angle + i * turn)),
            scale * (shape.y - shape.radius * math.cos(shape.angle + i * turn)),
        )
        for i in range(count)
    ]


def draw_with_pillow(scene: Scene) -> Image.Image:
    """Draws the scene with ImageDraw on a canvas twice or three times as large, then shrinks it."""
    factor = 3 if scene.side < 160 else 2
    scale = float(scene.side * factor)
    canvas = Image.new("RGB", (scene.width * factor, scene.height * factor), scene.background)
    pen = ImageDraw.Draw(canvas)
    for shape in scene.shapes:
        if shape.kind == "circle":
            x, y, r = shape.x * scale, shape.y * scale, shape.radius * scale
            pen.ellipse((x - r, y - r, x + r, y + r), fill=shape.rgb)
        else:
            pen.polygon(_corners(shape, scale), fill=shape.rgb)
    return canvas.reduce(factor)


def _signed_distance(shape: Shape, x: Any, y: Any) -> Any:
    """Distance of the points (x, y) to the shape's edge, negative inside; same unit as the shape's lengths."""
    dx, dy = x - shape.x, y - shape.y
    if shape.kind == "circle":
        return np.hypot(dx, dy) - shape.radius
    # A regular polygon is the intersection of half planes, each as far from the centre as the inscribed circle.
    count = 4 if shape.kind == "square" else 3
    inner = shape.radius * math.cos(math.pi / count)
    normals = [shape.angle + math.pi / count + i * 2 * math.pi / count for i in range(count)]
    return np.maximum.reduce([dx * math.sin(a) - dy * math.cos(a) - inner for a in normals])


def draw_with_distances(scene: Scene) -> Image.Image:
    """Draws the scene pixel by pixel: each shape covers a pixel by its distance from the edge, clipped to 0..1."""
    y, x = np.mgrid[0 : scene.height, 0 : scene.width].astype(np.float64)
    x, y = (x + 0.5) / scene.side, (y + 0.5) / scene.side
    pixels = np.empty((scene.height, scene.width, 3))
    pixels[:] = scene.background
    for shape in scene.shapes:
        cover = np.clip(0.5 - _signed_distance(shape, x, y) * scene.side, 0.0, 1.0)[:, :, None]
        pixels = pixels * (1.0 - cover) + np.array(shape.rgb) * cover
    return Image.fromarray(np.rint(pixels).astype(np.uint8), "RGB")


ROUTINES: dict[str, Callable[[Scene], Image.Image]] = {
    "pillow": draw_with_pillow,
    "distances": draw_with_distances,
}


def _size(rng: random.Random) -> tuple[int, int]:
    """Width and height in pixels: mostly small, because small pictures are cheap; up to 640 by 480."""
    side = rng.randint(64, 176) if rng.random() < 0.85 else rng.randint(176, 480)
    aspect = 1.0 if rng.random() < 0.25 else math.exp(rng.uniform(0.0, math.log(MAX_ASPECT)))
    longer = min(640, int(side * aspect))
    return (longer, side) if rng.random() < 0.5 else (side, longer)


def _background(rng: random.Random) -> Colour:
    if rng.random() < 0.3:
        return (255, 255, 255)
    grey = rng.randint(225, 255)
    r, g, b = (max(205, min(255, grey + rng.randint(-20, 12))) for _ in range(3))
    return (r, g, b)


def _kinds(rng: random.Random, count: int, shared_colour: float) -> list[tuple[str, str]]:
    """Pairs of shape and colour. Repeats and near repeats are common, or counting and telling apart stay easy."""
    kinds: list[tuple[str, str]] = []
    while len(kinds) < count:
        kind, colour = rng.choice(SHAPES), rng.choice(COLOURS)
        if kinds:
            old_kind, old_colour = rng.choice(kinds)
            chance = rng.random()
            if chance < 0.22:
                kind, colour = old_kind, old_colour
            elif chance < 0.44:
                kind = old_kind
            elif chance < 0.44 + shared_colour:
                colour = old_colour
        kinds.append((kind, colour))
    return kinds


def make_scene(rng: random.Random, max_shapes: int = MAX_SHAPES) -> Scene:
    """A random scene of one to `max_shapes` shapes that do not overlap; one in fifty is empty."""
    width, height = _size(rng)
    side = min(width, height)
    right, bottom = width / side, height / side
    count = 0 if rng.random() < 0.02 else min(max_shapes, rng.choices((1, 2, 3, 4), (15, 29, 29, 27))[0])
    largest = (0.36, 0.36, 0.27, 0.24, 0.215)[count]
    shapes: list[Shape] = []
    for kind, colour in _kinds(rng, count, 0.2):
        for _ in range(60):
            # Equal areas rather than equal outlines: a triangle in the same circle looks much smaller.
            radius = rng.uniform(0.105, largest) * {"circle": 0.9, "square": 1.0, "triangle": 1.1}[kind]
            margin = radius + 0.01
            if 2 * margin > 1:
                continue
            x, y = rng.uniform(margin, right - margin), rng.uniform(margin, bottom - margin)
            if all(math.hypot(x - s.x, y - s.y) > radius + s.radius + 0.02 for s in shapes):
                break
        else:
            continue  # No room left for this one: the scene is merely a shape poorer.
        blend = rng.random()
        r, g, b = (
            max(0, min(255, round(c + blend * (d - c)) + rng.randint(-12, 12))) for c, d in zip(*PALETTE[colour], strict=True)
        )
        angle = 0.0 if rng.random() < 0.3 else rng.uniform(0.0, 2 * math.pi)
        if kind == "square" and angle == 0.0:
            angle = math.pi / 4  # Sides parallel to the picture's: the square people draw first.
        shapes.append(Shape(kind, colour, (r, g, b), x, y, radius, angle))
    return Scene(width, height, _background(rng), tuple(shapes))


def make_picture(scene: Scene, routine: str, rng: random.Random) -> Image.Image:
    """Draws the scene with the named routine and sends it through a file format and back, as a client would.

    PNG changes nothing, so only the pictures that become JPEG are really encoded.
    """
    image = ROUTINES[routine](scene)
    if rng.random() < 0.5:
        return image
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=rng.randint(45, 95))
    return Image.open(buffer).convert("RGB")
