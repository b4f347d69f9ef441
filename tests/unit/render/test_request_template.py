"""Chat templates that a request brings along: refused, unless the operator trusts requests with them."""

from typing import Any

import pytest

from tests.unit.render.helpers import PAD, chat, image_part, png, settings, text_of, text_part, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.stages import RenderJob
from triton_renderer.render import Renderer

STRINGS = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}{{ mood }}"
LISTS = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}({{ p.text }}){% endif %}{% endfor %}{% endfor %}"
)


@pytest.fixture(scope="module")
def trusting() -> Renderer:
    return Renderer.load(settings(trust_request_chat_template=True))


def test_a_template_is_refused_by_name_and_with_the_setting_that_would_trust_it(renderer: Renderer) -> None:
    with pytest.raises(InvalidRequest, match="not trusted; TRUST_REQUEST_CHAT_TEMPLATE=1") as caught:
        chat(renderer, user("hi"), chat_template=STRINGS)
    assert caught.value.param == "chat_template"
    assert "hi" in text_of(renderer, chat(renderer, user("hi"), chat_template=None))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("chat", {"messages": [user("hi")]}),
        ("responses", {"input": "hi"}),
        ("messages", {"model": "shapes-vl", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_it_is_refused_by_every_kind_of_request_that_has_a_template(
    renderer: Renderer, kind: str, body: dict[str, Any]
) -> None:
    job = {"kind": kind, "id": "internal", "for_generate": True}
    assert renderer.render(parse(RenderJob, job | {"body": body})).token_ids.size
    with pytest.raises(InvalidRequest) as caught:
        renderer.render(parse(RenderJob, job | {"body": body | {"chat_template": STRINGS}}))
    assert caught.value.param == "chat_template"


def test_a_trusted_template_takes_the_place_of_the_models(trusting: Renderer) -> None:
    rendered = chat(trusting, user("hi"), chat_template=STRINGS, chat_template_kwargs={"mood": "glad"})
    assert text_of(trusting, rendered) == "[user|hi]glad"
    assert "<|im_start|>user\nhi" in text_of(trusting, chat(trusting, user("hi")))


def test_each_template_gets_content_of_the_form_that_it_takes(trusting: Renderer) -> None:
    parts = user(text_part("A"), image_part(png()), text_part("B"))
    rendered = chat(trusting, parts, chat_template=LISTS)
    shown = f"<|vision_start|>{PAD}*{rendered.context.features[0].placeholder.length}<|vision_end|>"
    assert text_of(trusting, rendered) == f"(A){shown}(B)"
    assert text_of(trusting, chat(trusting, parts, chat_template=STRINGS)) == f"[user|A\n{shown}\nB]"


def test_what_is_typed_stays_text_under_a_trusted_template(trusting: Renderer) -> None:
    rendered = chat(trusting, user(text_part(PAD), image_part()), chat_template=LISTS)
    length = rendered.context.features[0].placeholder.length
    assert text_of(trusting, rendered) == f"({PAD})<|vision_start|>{PAD}*{length}<|vision_end|>"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", "Expected an expression"),
        ("{{ raise_exception('not for you') }}", "not for you"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        (r"{{ '\ud83d' }}", "surrogates not allowed"),
        (r"{{ raise_exception('not \ud83d for you') }}", r"not \? for you"),
    ],
)
def test_a_template_that_fails_is_refused_with_the_reason(trusting: Renderer, source: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        chat(trusting, user("hi"), chat_template=source)
    assert caught.value.param == "chat_template"
    assert caught.value.message.startswith("chat_template: ")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("constant", "constant"),
        ("{{ messages | length }}", "1"),
        ("{{ messages[0].content | upper }}", "HI"),
        ("{% for d in documents %}{{ d.text }}{% endfor %}{{ messages[0].content }}", "oncehi"),
        ("{% if not mood %}{{ raise_exception('no mood') }}{% endif %}{{ messages[0].content }}", "hi"),
    ],
)
def test_a_template_may_be_for_the_messages_that_it_came_with_only(trusting: Renderer, source: str, text: str) -> None:
    fields = {"documents": [{"text": "once"}], "chat_template_kwargs": {"mood": "glad"}}
    assert text_of(trusting, chat(trusting, user("hi"), chat_template=source, **fields)) == text


def test_a_template_among_the_variables_is_one_too(trusting: Renderer) -> None:
    among = chat(trusting, user("hi"), chat_template_kwargs={"chat_template": STRINGS})
    assert among.token_ids.tolist() == chat(trusting, user("hi"), chat_template=STRINGS).token_ids.tolist()
    with pytest.raises(InvalidRequest) as caught:
        chat(trusting, user("hi"), chat_template_kwargs={"chat_template": 5})
    assert caught.value.param == "chat_template_kwargs.chat_template"
