"""Chat templates of other kinds than the bundled one."""

from pathlib import Path

import pytest

from tests.unit.derender.parsing import parse
from tests.unit.render.helpers import (
    PAD,
    chat,
    edited,
    image_part,
    model_folder,
    png,
    settings,
    shown,
    text_of,
    text_part,
    user,
)
from triton_renderer.derender.parsers.message import MessageParser
from triton_renderer.derender.parsers.mistral import MistralTools
from triton_renderer.errors import InvalidRequest
from triton_renderer.render import Renderer
from triton_renderer.settings import SettingsError

STRINGS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
CONCATENATED = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
LISTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
LISTS_OF_TEXT = "{% for m in messages %}{% for p in m.content %}[{{ p['text'] }}]{% endfor %}{% endfor %}"
THROUGH_A_MACRO = (
    "{% macro show(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}{% if 'image' in p.type %}"
    "<|vision_start|>{{ '<|image' ~ '_pad|>' if false else '<|image_pad|>' }}<|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endmacro %}{% for m in messages %}<|im_start|>{{ show(m.content) }}{% endfor %}"
)


def with_template(tmp_path: Path, source: str) -> Renderer:
    return Renderer.load(settings(model=str(model_folder(tmp_path / "m", template=source))))


@pytest.mark.parametrize("source", [STRINGS, CONCATENATED])
def test_a_template_for_strings_gets_parts_as_one_string(tmp_path: Path, source: str) -> None:
    renderer = with_template(tmp_path, source)
    assert "user\nplain<|im_end|>" in text_of(renderer, chat(renderer, user("plain")))
    rendered = chat(renderer, user(text_part("A"), image_part(), text_part("B"), image_part(png(200, 128)), text_part("C")))
    expected = f"A\n{shown()}\nB\n{shown(200, 128)}\nC<|im_end|>"
    assert expected in text_of(renderer, rendered)


@pytest.mark.parametrize("source", [LISTS, THROUGH_A_MACRO])
def test_a_template_for_lists_gets_a_plain_string_as_a_part(tmp_path: Path, source: str) -> None:
    renderer = with_template(tmp_path, source)
    assert "plain" in text_of(renderer, chat(renderer, user("plain")))
    rendered = chat(renderer, user(text_part("A"), image_part(), text_part("B"), text_part("C")))
    assert f"A{shown()}BC" in text_of(renderer, rendered)


def test_a_template_for_lists_that_knows_no_pictures_gets_their_tokens_as_text(tmp_path: Path) -> None:
    renderer = with_template(tmp_path, LISTS_OF_TEXT)
    rendered = chat(renderer, user(text_part("A"), image_part(), text_part(PAD)))
    assert text_of(renderer, rendered) == f"[A][{shown()}][{PAD}]"


@pytest.mark.parametrize("source", [STRINGS, LISTS, LISTS_OF_TEXT])
def test_typed_placeholders_are_text_with_any_template(tmp_path: Path, source: str) -> None:
    renderer = with_template(tmp_path, source)
    rendered = chat(renderer, user(text_part(f"a {PAD} b"), image_part(), text_part(PAD)))
    pad = renderer._model.tokenizer.token_id(PAD)
    span = rendered.context.features[0].placeholder
    assert [place for place, token in enumerate(rendered.token_ids) if token == pad] == list(
        range(span.offset, span.offset + span.length)
    )


def test_a_template_that_raises_is_a_bad_request_with_its_words(tmp_path: Path) -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('one message only, please') }}{% endif %}" + STRINGS
    renderer = with_template(tmp_path, source)
    with pytest.raises(InvalidRequest, match="one message only, please") as caught:
        chat(renderer, user("a"), user("b"))
    assert caught.value.param == "messages"


def test_a_template_that_fails_on_a_message_is_a_bad_request(tmp_path: Path) -> None:
    renderer = with_template(tmp_path, STRINGS + "{% if messages[1] %}{{ 1 + messages[1].content }}{% endif %}")
    with pytest.raises(InvalidRequest, match="unsupported operand"):
        chat(renderer, user("a"), user("b"))


def test_fields_that_only_the_template_knows_reach_it(tmp_path: Path) -> None:
    renderer = with_template(tmp_path, STRINGS + "{{ messages[0].mood }}{{ documents[0].title if documents }}")
    text = text_of(renderer, chat(renderer, {**user("a"), "mood": "sunny"}, documents=[{"title": "T", "text": "t"}]))
    assert text.endswith("sunnyT")


def test_a_template_sees_the_ids_of_calls_as_they_were_given(tmp_path: Path) -> None:
    """Mistral's templates take only ids of nine characters: those of our parser, handed back, are such."""
    check = "{% if id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}{{ id }}"
    source = (
        "{% for m in messages %}{{ m.role }}{% if m.content is string %}{{ m.content }}{% endif %}"
        f"{{% for call in m.tool_calls or [] %}}{{% set id = call.id %}}{check}{{% endfor %}}"
        f"{{% if m.role == 'tool' %}}{{% set id = m.tool_call_id %}}{check}{{% endif %}}{{% endfor %}}"
    )
    renderer = with_template(tmp_path, source)
    found = parse(MessageParser(None, MistralTools()), '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}')
    functions = [{"name": name, "arguments": arguments} for name, arguments in found.calls]
    calls = [{"id": id_, "type": "function", "function": function} for id_, function in zip(found.ids, functions, strict=True)]
    history = [
        user("hi"),
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": found.ids[1], "content": "x"},
    ]
    assert text_of(renderer, chat(renderer, *history)) == f"userhiassistant{found.ids[0]}{found.ids[1]}toolx{found.ids[1]}"
    history[2]["tool_call_id"] = "call_1"
    with pytest.raises(InvalidRequest, match="nine characters"):
        chat(renderer, *history)


def test_a_template_runs_in_a_sandbox(tmp_path: Path) -> None:
    source = (
        STRINGS + "{% if messages | length > 1 %}{{ messages.__class__.__mro__ }}{{ cycler.__init__.__globals__ }}{% endif %}"
    )
    renderer = with_template(tmp_path, source)
    with pytest.raises(InvalidRequest, match="unsafe"):
        chat(renderer, user("a"), user("b"))


def test_the_template_cannot_change_the_request(tmp_path: Path) -> None:
    renderer = with_template(tmp_path, STRINGS + "{% if messages | length > 1 %}{{ messages.append(1) }}{% endif %}")
    with pytest.raises(InvalidRequest, match="unsafe"):
        chat(renderer, user("a"), user("b"))


@pytest.mark.parametrize("source", ["{{ raise_exception('no') }}", "always the same", "{% if %}"])
def test_a_template_that_cannot_show_a_message_is_refused_at_load(tmp_path: Path, source: str) -> None:
    with pytest.raises(SettingsError, match="chat template"):
        with_template(tmp_path, source)


def test_a_template_that_drops_or_repeats_pictures_is_refused_per_request(tmp_path: Path) -> None:
    dropping = LISTS.replace("{% for p in m.content %}", "{% for p in m.content if m.role != 'tool' or p.type == 'text' %}")
    renderer = with_template(tmp_path, dropping)
    assert chat(renderer, user(image_part())).items
    with pytest.raises(InvalidRequest, match="0 places for 1 pictures"):
        chat(renderer, {"role": "tool", "content": [image_part()]})


def test_a_template_named_tool_use_is_taken_where_there_are_tools(tmp_path: Path) -> None:
    config = edited("tokenizer_config")
    config["chat_template"] = [{"name": "default", "template": STRINGS}, {"name": "tool_use", "template": STRINGS + "TOOLS"}]
    folder = model_folder(tmp_path / "m", tokenizer_config=config)
    (folder / "chat_template.jinja").unlink()
    renderer = Renderer.load(settings(model=str(folder), tool_call_parser="hermes"))
    tool = {"type": "function", "function": {"name": "f"}}
    assert text_of(renderer, chat(renderer, user("a"), tools=[tool])).endswith("TOOLS")
    assert not text_of(renderer, chat(renderer, user("a"))).endswith("TOOLS")
