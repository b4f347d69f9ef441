"""Questions about one picture and their exact answers.

Each kind of question is a function from a random generator and a scene to (question, answer), or to None where the
scene has nothing unambiguous to ask. Answers are short and in lower case. Descriptions list circles, then squares,
then triangles, and within a shape the colours in the order of `COLOURS`: «a red circle and two blue squares».
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from training.pictures import COLOURS, SHAPES, Scene, Shape

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
Question = tuple[str, str]

# How far apart two centres must be along an axis, as a fraction of the picture's length along it, before the
# question which of them is further left (or higher) is asked.
RELATION_MARGIN, CORNER_MARGIN = 0.18, 0.1

DESCRIBE = (
    "What is in this picture?",
    "What is in the picture?",
    "What is in this image?",
    "What's in this picture?",
    "What is in this photo?",
    "What do you see?",
    "What do you see in this picture?",
    "What can you see in this image?",
    "What does the picture show?",
    "What is shown here?",
    "Which shapes are in the picture?",
    "Describe the picture.",
    "Describe this picture.",
    "Describe this image.",
    "Describe what you see.",
)


def article(name: str) -> str:
    """The name with its indefinite article."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def join(parts: Sequence[str]) -> str:
    """«a», «a and b», «a, b and c»."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def in_order(shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes in the order of description."""
    return sorted(shapes, key=lambda s: (SHAPES.index(s.kind), COLOURS.index(s.colour)))


def phrases(scene: Scene) -> list[str]:
    """The shapes of the scene, equal ones together: «a red circle», «two blue squares»."""
    counts = Counter(s.name for s in in_order(scene.shapes))
    return [article(name) if n == 1 else f"{NUMBERS[n]} {name}s" for name, n in counts.items()]


def description(scene: Scene) -> str:
    """All shapes of the scene in words, or «nothing»."""
    return join(phrases(scene)) if scene.shapes else "nothing"


def unique(scene: Scene) -> list[Shape]:
    """The shapes that colour and kind together single out."""
    counts = Counter(s.name for s in scene.shapes)
    return [s for s in scene.shapes if counts[s.name] == 1]


def refer(rng: random.Random, scene: Scene, shape: Shape) -> str:
    """«the red circle», or at times «the circle» where it is the only one."""
    alone = sum(s.kind == shape.kind for s in scene.shapes) == 1
    return f"the {shape.kind}" if alone and rng.random() < 0.2 else f"the {shape.name}"


def ask_description(rng: random.Random, scene: Scene) -> Question | None:
    """«What is in this picture?» → «a red circle and two blue squares»."""
    return rng.choice(DESCRIBE), description(scene)


def ask_shape(rng: random.Random, scene: Scene) -> Question | None:
    """«What shape is the red one?» → «circle»."""
    counts = Counter(s.colour for s in scene.shapes)
    candidates = [s for s in scene.shapes if counts[s.colour] == 1]
    if not candidates:
        return None
    shape = rng.choice(candidates)
    form = rng.choice(
        (
            "What shape is the {} one?",
            "What shape is {}?",
            "Which shape is {}?",
            "What is the {} shape?",
            "What shape is the {} thing?",
        )
    )
    return form.format(shape.colour), shape.kind


def ask_colour(rng: random.Random, scene: Scene) -> Question | None:
    """«What colour is the square?» → «blue»; several squares are asked about if they are of one colour."""
    kinds = [k for k in SHAPES if len({s.colour for s in scene.shapes if s.kind == k}) == 1]
    if not kinds:
        return None
    kind = rng.choice(kinds)
    shapes = [s for s in scene.shapes if s.kind == kind]
    word = rng.choice(("colour", "color"))
    if len(shapes) > 1:
        return f"What {word} are the {kind}s?", shapes[0].colour
    form = rng.choice(("What {} is the {}?", "Which {} is the {}?", "What is the {} of the {}?", "Tell me the {} of the {}."))
    return form.format(word, kind), shapes[0].colour


def ask_count(rng: random.Random, scene: Scene) -> Question | None:
    """«How many squares?» → «two»; at times none is there, at times a colour is named, at times all are counted."""
    present = rng.random() < 0.8 and bool(scene.shapes)
    model = rng.choice(scene.shapes) if present else None
    kind = model.kind if model else rng.choice(SHAPES)
    colour = model.colour if model else rng.choice(COLOURS)
    chance = rng.random()
    if chance < 0.55:
        what, number = f"{kind}s", sum(s.kind == kind for s in scene.shapes)
    elif chance < 0.7:
        what, number = "shapes", len(scene.shapes)
    elif chance < 0.85:
        what, number = f"{colour} shapes", sum(s.colour == colour for s in scene.shapes)
    else:
        what, number = f"{colour} {kind}s", sum(s.name == f"{colour} {kind}" for s in scene.shapes)
    form = rng.choice(
        (
            "How many {}?",
            "How many {} are there?",
            "How many {} are in the picture?",
            "How many {} do you see?",
            "How many {} can you see?",
            "Count the {}.",
        )
    )
    return form.format(what), NUMBERS[number]


def ask_exists(rng: random.Random, scene: Scene) -> Question | None:
    """«Is there a red circle?» → «yes» or «no»; the noes are near misses as often as not."""
    kind, colour = rng.choice(SHAPES), rng.choice(COLOURS)
    if scene.shapes and rng.random() < 0.75:
        model = rng.choice(scene.shapes)
        chance = rng.random()
        kind = model.kind if chance < 0.8 else kind
        colour = model.colour if chance < 0.6 or chance >= 0.8 else colour
    chance = rng.random()
    if chance < 0.6:
        what, there = article(f"{colour} {kind}"), any(s.name == f"{colour} {kind}" for s in scene.shapes)
    elif chance < 0.8:
        what, there = article(kind), any(s.kind == kind for s in scene.shapes)
    else:
        what, there = f"anything {colour}", any(s.colour == colour for s in scene.shapes)
    form = rng.choice(("Is there {}?", "Is there {} in the picture?", "Do you see {}?", "Can you see {}?"))
    return form.format(what), "yes" if there else "no"


LEFT = ("left of", "to the left of", "on the left of")
RIGHT = ("right of", "to the right of", "on the right of")
ABOVE, BELOW = ("above", "over"), ("below", "under")
# Words, axis (0 from left to right, 1 from top to bottom), and whether the first named has the smaller coordinate.
DIRECTIONS = ((LEFT, 0, True), (RIGHT, 0, False), (ABOVE, 1, True), (BELOW, 1, False))


def ask_relation(rng: random.Random, scene: Scene) -> Question | None:
    """«Is the red circle left of the blue square?» → «yes» or «no», for two clearly separated shapes."""
    named = unique(scene)
    words, axis, smaller = rng.choice(DIRECTIONS)
    pairs = [
        (a, b)
        for a in named
        for b in named
        if a is not b and abs(scene.relative(a)[axis] - scene.relative(b)[axis]) >= RELATION_MARGIN
    ]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    holds = (scene.relative(a)[axis] < scene.relative(b)[axis]) == smaller
    question = f"Is {refer(rng, scene, a)} {rng.choice(words)} {refer(rng, scene, b)}?"
    return question, "yes" if holds else "no"


def ask_neighbour(rng: random.Random, scene: Scene) -> Question | None:
    """«What is left of the blue square?» → «a red circle» or «nothing», where exactly that answer is right."""
    words, axis, smaller = rng.choice(DIRECTIONS)
    choices: list[tuple[Shape, str]] = []
    for shape in unique(scene):
        offsets = [(s, scene.relative(s)[axis] - scene.relative(shape)[axis]) for s in scene.shapes if s is not shape]
        if not offsets or any(abs(offset) < RELATION_MARGIN for _, offset in offsets):
            continue
        found = {s.name for s, offset in offsets if (offset < 0) == smaller}
        count = sum((offset < 0) == smaller for _, offset in offsets)
        if count <= 1:
            choices.append((shape, article(found.pop()) if found else "nothing"))
    if not choices:
        return None
    something = [c for c in choices if c[1] != "nothing"]
    shape, answer = rng.choice(something if something and rng.random() < 0.75 else choices)
    form = rng.choice(("What is {} {}?", "What is {} {}?", "Which shape is {} {}?", "What do you see {} {}?"))
    return form.format(rng.choice(words), refer(rng, scene, shape)), answer


def ask_place(rng: random.Random, scene: Scene) -> Question | None:
    """«Where is the red circle?» → «top left», for shapes clearly off both middle lines."""
    candidates = [s for s in unique(scene) if all(abs(p - 0.5) >= CORNER_MARGIN for p in scene.relative(s))]
    if not candidates:
        return None
    shape = rng.choice(candidates)
    x, y = scene.relative(shape)
    answer = f"{'top' if y < 0.5 else 'bottom'} {'left' if x < 0.5 else 'right'}"
    form = rng.choice(("Where is {}?", "Where is {} in the picture?", "Where do you see {}?"))
    return form.format(refer(rng, scene, shape)), answer


ASK: dict[str, Callable[[random.Random, Scene], Question | None]] = {
    "description": ask_description,
    "shape": ask_shape,
    "colour": ask_colour,
    "count": ask_count,
    "exists": ask_exists,
    "relation": ask_relation,
    "neighbour": ask_neighbour,
    "place": ask_place,
}
# The hard ones get the most practice: relations, with places to teach what they rest on, and descriptions.
WEIGHTS = {
    "description": 2.0,
    "shape": 0.6,
    "colour": 0.5,
    "count": 1.5,
    "exists": 0.4,
    "relation": 2.5,
    "neighbour": 1.5,
    "place": 2.0,
}
# Once places and relations are known, which takes about half of the training, what is still often wrong gets their time.
LATE_WEIGHTS = WEIGHTS | {"description": 3.0, "relation": 1.0, "neighbour": 2.0, "place": 0.7}
SPATIAL_WEIGHTS = {"place": 3.0, "relation": 3.0, "neighbour": 1.0, "description": 0.5}


def ask_any(rng: random.Random, scene: Scene, weights: Mapping[str, float] = WEIGHTS) -> Question:
    """A question of a random kind, by weights that name at least the description."""
    while True:
        kind = rng.choices(tuple(weights), tuple(weights.values()))[0]
        question = ASK[kind](rng, scene)
        if question:
            return question
