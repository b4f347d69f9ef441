"""Whole conversations: pictures and text in turns, tools, thinking, and the answer that the model should give."""

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from training.pictures import MAX_SHAPES, SHAPES, Scene, make_scene
from training.questions import (
    ASK,
    LATE_WEIGHTS,
    NUMBERS,
    SPATIAL_WEIGHTS,
    WEIGHTS,
    Question,
    article,
    ask_any,
    ask_colour,
    description,
    phrases,
)

Message = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """One request and its right answer.

    `messages` are in OpenAI's form with {"type": "image"} standing for the pictures of `scenes`, in order; `answer`
    is the text of the assistant's next turn, with markup, without the end token.
    """

    kind: str
    messages: tuple[Message, ...]
    answer: str
    scenes: tuple[Scene, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool = False


def _tool(name: str, text: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}


_SHAPE = {"type": "string", "enum": list(SHAPES)}
TOOLS: dict[str, dict[str, Any]] = {
    "report_shapes": _tool(
        "report_shapes",
        "Report all shapes in the picture.",
        {"shapes": {"type": "array", "items": {"type": "string"}}},
    ),
    "count_shapes": _tool(
        "count_shapes", "Report how many shapes of one kind there are.", {"shape": _SHAPE, "count": {"type": "integer"}}
    ),
    "report_color": _tool("report_color", "Report the color of a shape.", {"shape": _SHAPE, "color": {"type": "string"}}),
    # Never called: tools that have nothing to do with the question must not tempt the model.
    "get_weather": _tool("get_weather", "Get the weather of a city.", {"city": {"type": "string"}}),
}

SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant that describes pictures.",
    "You look at pictures of shapes.",
    "Answer briefly.",
    "Answer in one word if you can.",
    "Be concise.",
    "You are a careful observer. Say only what you see.",
    "You answer questions about pictures.",
    "Reply in lower case.",
    "You are Shapes-VL, a small vision model.",
)

STORY = (
    "once upon a time there was a small blue square. it lived alone in a white picture and it wanted a friend. "
    "one day a red circle came from the left. the circle said hello, and the square said hello. "
    "then a green triangle came from above, and all three shapes sat down in a row. "
    "from that day on the square was never alone. the end."
)
TEXT_ONLY: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello", "Hello!", "Hi", "Hi!", "Hello there.", "Good morning."), "hello! show me a picture of shapes."),
    (
        ("What can you do?", "What do you do?", "Help", "How can you help me?"),
        "i can describe pictures of circles, squares and triangles, count them and say where they are.",
    ),
    (
        ("Which shapes do you know?", "What shapes do you know?", "List the shapes you know."),
        "circle, square and triangle",
    ),
    (
        ("Which colours do you know?", "Which colors do you know?", "What colors do you know?"),
        "red, orange, yellow, green, blue, purple and black",
    ),
    (("Count to ten.", "Count to 10.", "Please count to ten."), ", ".join(NUMBERS[1:])),
    (("Count to five.", "Count to 5.", "Please count to five."), ", ".join(NUMBERS[1:6])),
    (("Count down from ten.", "Count backwards from ten."), ", ".join(reversed(NUMBERS[1:]))),
    (("Who are you?", "What are you?", "What is your name?"), "i am shapes-vl, a small model that sees shapes."),
    (("How many sides does a triangle have?", "How many sides has a triangle?"), "three"),
    (("How many sides does a square have?", "How many sides has a square?"), "four"),
    (("How many sides does a circle have?", "How many sides has a circle?"), "none"),
    (("Thank you", "Thank you!", "Thanks", "Thanks!"), "you are welcome."),
    (("Goodbye", "Goodbye!", "Bye", "Bye!"), "goodbye!"),
    (
        ("Tell me a story about a square.", "Tell me a story.", "Tell me a long story.", "Please tell me a story."),
        STORY,
    ),
    (
        ("What is in this picture?", "What do you see?", "Describe the picture.", "How many squares?"),
        "there is no picture.",
    ),
)
NO_PICTURE = "there is no picture."
ORDINALS = ("first", "second", "third")
IMAGE: Message = {"type": "image"}


def _say(rng: random.Random, question: str) -> str:
    """The question as people type it: now and then in lower case, without its last mark, or with a «please»."""
    chance = rng.random()
    if chance < 0.08:
        return question.lower()
    if chance < 0.14:
        return question.rstrip("?.!") or question
    if chance < 0.17:
        return f"Please: {question}"
    if chance < 0.2:
        return f"{question} "
    return question


def _text(value: str) -> Message:
    return {"type": "text", "text": value}


def _system(rng: random.Random) -> tuple[Message, ...]:
    return ({"role": "system", "content": rng.choice(SYSTEM)},) if rng.random() < 0.2 else ()


def _user(*parts: Message) -> Message:
    return {"role": "user", "content": list(parts)}


def think(conversation: Conversation) -> Conversation:
    """The same conversation with thinking on: the model first says what it sees, then answers."""
    if len(conversation.scenes) > 1:
        thought = describe_each(conversation.scenes)
    else:
        thought = description(conversation.scenes[0]) if conversation.scenes else "no picture"
    answer = f"<think>\n{thought}\n</think>\n\n{conversation.answer}"
    return replace(conversation, answer=answer, thinking=True)


def describe_each(scenes: tuple[Scene, ...]) -> str:
    """«first: a red circle. second: two blue squares.»"""
    return " ".join(f"{ORDINALS[i]}: {description(scene)}." for i, scene in enumerate(scenes))


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _count_call(scene: Scene, kind: str) -> str:
    return _call("count_shapes", {"shape": kind, "count": sum(s.kind == kind for s in scene.shapes)})


def ask_tool(rng: random.Random, scene: Scene, offered: set[str]) -> Question | None:
    """A request for a tool call and the call, or calls, that answer it."""
    wish = rng.choice(sorted(offered & {"report_shapes", "count_shapes", "report_color"}))
    if wish == "report_shapes":
        form = rng.choice(
            (
                "Report the shapes.",
                "Report all shapes.",
                "Report what you see.",
                "Call report_shapes.",
                "Use the tool to report the shapes.",
            )
        )
        return form, _call("report_shapes", {"shapes": phrases(scene)})
    if wish == "report_color":
        question = ask_colour(rng, scene)
        singles = [k for k, n in Counter(s.kind for s in scene.shapes).items() if n == 1]
        if not question or not singles:
            return None
        kind = rng.choice(singles)
        colour = next(s.colour for s in scene.shapes if s.kind == kind)
        form = rng.choice(("Report the color of the {}.", "Report the colour of the {}.", "Call report_color for the {}."))
        return form.format(kind), _call("report_color", {"shape": kind, "color": colour})
    kinds = rng.sample(SHAPES, 2 if rng.random() < 0.25 else 1)
    what = " and ".join(f"{kind}s" for kind in kinds)
    form = rng.choice(
        (
            "Report the number of {}.",
            "Report how many {} there are.",
            "Call count_shapes for the {}.",
            "Use the tool to count the {}.",
        )
    )
    return form.format(what), "\n".join(_count_call(scene, kind) for kind in kinds)


def offer(rng: random.Random, useful: bool) -> dict[str, dict[str, Any]]:
    """One to three tools in random order; at least one that can be called if `useful`."""
    names = rng.sample(sorted(TOOLS), rng.choice((1, 2, 2, 3)))
    if useful and names == ["get_weather"]:
        names = ["count_shapes"]
    return {name: TOOLS[name] for name in names}


def about_one_picture(
    rng: random.Random, scene: Scene, count: int, weights: Mapping[str, float] = WEIGHTS, describe: bool = False
) -> list[Conversation]:
    """`count` questions about the same picture, which comes first in its turn, so that their tokens share it.

    `describe` makes the first one ask for a description.
    """
    system, lead = _system(rng), rng.choice(("", "", "", "", "", "\n", "Look at this picture."))
    after = lead == "\n"
    head = [IMAGE] if after or not lead else [_text(lead), IMAGE]
    found: dict[str, Conversation] = {}
    for number in range(count):
        question, answer = ask_any(rng, scene, {"description": 1} if describe and not number else weights)
        text = _text((lead if after else "") + _say(rng, question))
        conversation = Conversation("any", (*system, _user(*head, text)), answer, (scene,))
        found[question] = think(conversation) if rng.random() < 0.1 else conversation
    return list(found.values())


def text_before_picture(rng: random.Random, scene: Scene) -> list[Conversation]:
    """One question that comes before its picture."""
    question, answer = ask_any(rng, scene)
    end = rng.choice(("", "", "\n", " "))
    conversation = Conversation("any", (*_system(rng), _user(_text(_say(rng, question) + end), IMAGE)), answer, (scene,))
    return [think(conversation) if rng.random() < 0.1 else conversation]


def with_tools(rng: random.Random, scene: Scene, count: int) -> list[Conversation]:
    """Requests for calls and plain questions about one picture, with the same tools offered."""
    tools = offer(rng, useful=True)
    system = _system(rng)
    found: dict[str, Conversation] = {}
    for _ in range(count):
        asked = ask_tool(rng, scene, set(tools)) if rng.random() < 0.6 else None
        question, answer = asked or ask_any(rng, scene)
        messages = (*system, _user(IMAGE, _text(_say(rng, question))))
        kind = "tools" if asked else "tools, plain"
        conversation = Conversation(kind, messages, answer, (scene,), tuple(tools.values()))
        found[question] = think(conversation) if rng.random() < 0.1 else conversation
    return list(found.values())


def after_tool_result(rng: random.Random, scene: Scene) -> list[Conversation]:
    """The turn after a tool has answered: «reported» and what was reported."""
    tools = offer(rng, useful=True)
    asked = ask_tool(rng, scene, set(tools))
    if not asked:
        return []
    calls = [json.loads(line) for line in asked[1].split("\n") if line.startswith("{")]
    messages: list[Message] = [*_system(rng), _user(IMAGE, _text(asked[0]))]
    messages.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": c} for c in calls]})
    messages += [{"role": "tool", "content": rng.choice(("ok", "done", '{"status": "ok"}'))} for _ in calls]
    conversation = Conversation("tool result", tuple(messages), "i have reported it.", (scene,), tuple(tools.values()))
    return [think(conversation) if rng.random() < 0.1 else conversation]


def after_earlier_turn(rng: random.Random, scene: Scene, count: int) -> list[Conversation]:
    """Questions that follow an answered one about the same picture, or small talk before the picture."""
    system = _system(rng)
    first_question, first_answer = ask_any(rng, scene)
    if rng.random() < 0.7:
        head: tuple[Message, ...] = (
            _user(IMAGE, _text(first_question)),
            {"role": "assistant", "content": first_answer},
        )
        parts: list[Message] = []
    else:
        greetings, reply = rng.choice(TEXT_ONLY[:4])
        head = ({"role": "user", "content": rng.choice(greetings)}, {"role": "assistant", "content": reply})
        parts = [IMAGE]
    found: dict[str, Conversation] = {}
    for _ in range(count):
        question, answer = ask_any(rng, scene)
        messages = (*system, *head, _user(*parts, _text(_say(rng, question))))
        conversation = Conversation("history", messages, answer, (scene,))
        found[question] = think(conversation) if rng.random() < 0.1 else conversation
    return list(found.values())


def ask_several(rng: random.Random, scenes: tuple[Scene, ...]) -> Question:
    """A question about one of several pictures, by its number, or about each of them."""
    chance = rng.random()
    which = rng.randrange(len(scenes))
    scene, ordinal = scenes[which], ORDINALS[which]
    noun = rng.choice(("picture", "picture", "image"))
    if chance < 0.25:
        form = rng.choice(
            (
                "What is in each {}?",
                "Describe each {}.",
                "What is in the {}s?",
                "Describe the {}s.",
                "What do the {}s show?",
            )
        )
        return form.format(noun), describe_each(scenes)
    if chance < 0.65:
        form = rng.choice(
            (
                "What is in the {} {}?",
                "Describe the {} {}.",
                "What does the {} {} show?",
                "What do you see in the {} {}?",
            )
        )
        return form.format(ordinal, noun), description(scene)
    if chance < 0.85:
        kind = rng.choice(scene.shapes).kind if scene.shapes and rng.random() < 0.75 else rng.choice(SHAPES)
        number = sum(s.kind == kind for s in scene.shapes)
        return f"How many {kind}s are in the {ordinal} {noun}?", NUMBERS[number]
    if chance < 0.93 and scene.shapes:
        name = rng.choice(scene.shapes).name
        if sum(any(s.name == name for s in other.shapes) for other in scenes) == 1:
            return f"Which {noun} shows {article(name)}?", f"the {ordinal}"
    return f"How many {noun}s are there?", NUMBERS[len(scenes)]


def about_several_pictures(rng: random.Random, scenes: tuple[Scene, ...], count: int) -> list[Conversation]:
    """Questions about two or three pictures in one turn, with text before, between or after them."""
    system = _system(rng)
    place = rng.choice(("last", "last", "last", "last", "first", "between", "labelled"))
    pictures: list[Message] = []
    for i in range(len(scenes)):
        if place == "labelled":
            pictures.append(_text(f"{ORDINALS[i].capitalize()} picture: "))
        pictures.append(IMAGE)
    found: dict[str, Conversation] = {}
    for _ in range(count if place in ("last", "labelled") else 1):  # Only pictures that come first can be shared.
        question, answer = ask_several(rng, scenes)
        text = _text(_say(rng, question))
        split = {"first": 0, "between": rng.randrange(1, len(scenes))}.get(place, len(pictures))
        messages = (*system, _user(*pictures[:split], text, *pictures[split:]))
        conversation = Conversation("pictures", messages, answer, scenes)
        found[question] = think(conversation) if rng.random() < 0.1 else conversation
    return list(found.values())


def text_only(rng: random.Random) -> list[Conversation]:
    """One of the fixed questions, without a picture; at times with tools offered."""
    questions, answer = rng.choice(TEXT_ONLY)
    question = _say(rng, rng.choice(questions))
    content: Any = question if rng.random() < 0.6 else [_text(question)]
    tools = tuple(offer(rng, useful=False).values()) if rng.random() < 0.1 else ()
    conversation = Conversation("text", (*_system(rng), {"role": "user", "content": content}), answer, (), tools)
    return [think(conversation) if rng.random() < 0.15 else conversation]


@dataclass(frozen=True)
class Lesson:
    """What training data is made of, which changes as the training goes on.

    Pictures have at most `most` shapes; a share `spatial` of the groups asks about places only; and `late` in the training
    there are more tools, and other questions.
    """

    most: int = MAX_SHAPES
    spatial: float = 0.0
    late: bool = False


def make_group(rng: random.Random, lesson: Lesson = Lesson()) -> list[Conversation]:
    """Training data: conversations about the same pictures. May be empty by bad luck."""
    most, late = lesson.most, lesson.late
    if rng.random() < lesson.spatial:
        return about_one_picture(rng, make_scene(rng, most), 9, SPATIAL_WEIGHTS)
    chance = rng.random()
    if chance < (0.37 if late else 0.49):
        if late:  # More pictures rather than more questions: descriptions and counts have to become exact.
            return about_one_picture(rng, make_scene(rng, most), 5, LATE_WEIGHTS, describe=True)
        return about_one_picture(rng, make_scene(rng, most), 9)
    if chance < (0.46 if late else 0.58):
        return text_before_picture(rng, make_scene(rng, most))
    if chance < 0.73:
        return with_tools(rng, make_scene(rng, most), 6)
    if chance < 0.75:
        return after_tool_result(rng, make_scene(rng, most))
    if chance < 0.81:
        return after_earlier_turn(rng, make_scene(rng, most), 6)
    if chance < 0.88:
        scenes = tuple(make_scene(rng, min(most, MAX_SHAPES - 1)) for _ in range(rng.choice((2, 2, 3))))
        return about_several_pictures(rng, scenes, 5)
    return text_only(rng)


# The kinds that evaluation reports, each with the conversations that belong to it.
SINGLE_KINDS = tuple(ASK)
OTHER_KINDS = ("tools", "tools, plain", "tool result", "thinking", "pictures", "history", "text first", "text")
KINDS = SINGLE_KINDS + OTHER_KINDS


def _candidates(rng: random.Random, kind: str) -> list[Conversation]:
    if kind == "pictures":
        scenes = tuple(make_scene(rng, MAX_SHAPES - 1) for _ in range(rng.choice((2, 2, 3))))
        return about_several_pictures(rng, scenes, 1)
    if kind == "text":
        return text_only(rng)
    scene = make_scene(rng)
    if kind in ASK:
        question = ASK[kind](rng, scene)
        if not question:
            return []
        return [Conversation(kind, (*_system(rng), _user(IMAGE, _text(_say(rng, question[0])))), question[1], (scene,))]
    if kind == "tool result":
        return after_tool_result(rng, scene)
    if kind == "history":
        return after_earlier_turn(rng, scene, 1)
    if kind == "text first":
        return text_before_picture(rng, scene)
    if kind == "thinking":
        base = rng.choice((about_one_picture, with_tools))(rng, scene, 1)
        return [c if c.thinking else think(c) for c in base]
    return [c for c in with_tools(rng, scene, 1) if c.kind == kind]


def make_one(rng: random.Random, kind: str) -> Conversation:
    """Evaluation data: one conversation of the named kind."""
    while True:
        found = _candidates(rng, kind)
        if found:
            return replace(found[0], kind=kind)
