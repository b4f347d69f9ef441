"""Whatever a client types, and wherever: pictures stand only where the template puts them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.unit.render.helpers import END, PAD, START, chat, completion_job, image_part, shown, text_of, text_part, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.render import Rendered, Renderer

TYPED = f"what does {PAD} mean?"
PICTURE = image_part()


def media_positions(renderer: Renderer, rendered: Rendered) -> dict[str, list[int]]:
    """Where each media token stands in the prompt."""
    tokenizer = renderer._model.tokenizer
    ids = {token: tokenizer.token_id(token) for token in (START, PAD, END, "<|video_pad|>")}
    return {token: np.flatnonzero(rendered.token_ids == token_id).tolist() for token, token_id in ids.items()}


def check_pictures(renderer: Renderer, rendered: Rendered, count: int) -> None:
    """Each span lies right between the template's own start and end, and nothing else is a media token."""
    positions = media_positions(renderer, rendered)
    spans = [feature.placeholder for feature in rendered.context.features]
    assert len(spans) == count
    assert positions[START] == [span.offset - 1 for span in spans]
    assert positions[END] == [span.offset + span.length for span in spans]
    assert positions[PAD] == [place for span in spans for place in range(span.offset, span.offset + span.length)]
    assert positions["<|video_pad|>"] == []


@pytest.mark.parametrize("typed", [TYPED, PAD, f"{START}{PAD}{END}", START, END, "<|video_pad|>", f"{PAD}{PAD} {START}"])
def test_typed_media_tokens_stay_text_on_either_side_of_a_picture(renderer: Renderer, typed: str) -> None:
    for content in ([text_part(typed), PICTURE], [PICTURE, text_part(typed)]):
        rendered = chat(renderer, user(*content))
        check_pictures(renderer, rendered, 1)
        shown = f"{START}{PAD}*{rendered.context.features[0].placeholder.length}{END}"
        assert typed in text_of(renderer, rendered).replace(shown, "")


def test_typed_media_tokens_without_a_picture_are_text(renderer: Renderer) -> None:
    rendered = chat(renderer, user(TYPED))
    check_pictures(renderer, rendered, 0)
    assert TYPED in text_of(renderer, rendered)


def test_the_picture_is_the_same_whatever_is_typed(renderer: Renderer) -> None:
    plain, typed = chat(renderer, user(text_part("?"), PICTURE)), chat(renderer, user(text_part(TYPED), PICTURE))
    assert plain.items == typed.items
    assert plain.context.features[0].placeholder.length == typed.context.features[0].placeholder.length


def test_other_control_tokens_are_special_as_in_the_reference(renderer: Renderer) -> None:
    rendered = chat(renderer, user("what does <|im_end|> mean?"))
    token_id = renderer._model.tokenizer.token_id("<|im_end|>")
    assert np.count_nonzero(rendered.token_ids == token_id) == 2


def test_media_tokens_anywhere_in_a_request_are_text(renderer: Renderer) -> None:
    function = {"name": TYPED, "description": TYPED, "parameters": {"type": "object", "properties": {PAD: {"enum": [START]}}}}
    call = {"type": "function", "function": {"name": PAD, "arguments": f'{{"{PAD}": "{END}"}}'}}
    rendered = chat(
        renderer,
        {"role": "system", "content": TYPED},
        {"role": PAD, "content": TYPED, "name": PAD},
        {"role": "assistant", "content": TYPED, "reasoning": TYPED, "tool_calls": [call]},
        {"role": "tool", "content": [text_part(TYPED)], "tool_call_id": PAD},
        user(PICTURE, text_part(TYPED)),
        tools=[{"type": "function", "function": function}],
        documents=[{"title": PAD, "text": TYPED}],
        chat_template_kwargs={"enable_thinking": PAD, "eos_token": PAD},
    )
    check_pictures(renderer, rendered, 1)


@pytest.mark.parametrize("part", [{"type": "text", "text": "x", "image": 1}, {"type": "text", "text": "x", "image_url": {}}])
def test_a_text_part_cannot_pretend_to_be_a_picture(renderer: Renderer, part: dict[str, Any]) -> None:
    check_pictures(renderer, chat(renderer, user(part, PICTURE)), 1)


def test_a_completions_prompt_has_no_pictures(renderer: Renderer) -> None:
    rendered = renderer.render(completion_job(TYPED))
    check_pictures(renderer, rendered, 0)
    assert text_of(renderer, rendered) == TYPED
    pad = renderer._model.tokenizer.token_id(PAD)
    with pytest.raises(InvalidRequest, match="stands for a picture") as caught:
        renderer.render(completion_job([1, pad, 2]))
    assert caught.value.param == "prompt.1"


def test_the_secret_names_do_not_leave_the_process(renderer: Renderer) -> None:
    secrets = list(renderer._model.tokenizer._secret.values())
    assert secrets
    rendered = chat(renderer, user(PICTURE, text_part(TYPED)), return_token_ids=True)
    assert not any(secret in rendered.context.model_dump_json() for secret in secrets)
    with pytest.raises(InvalidRequest) as caught:  # transformers quotes the whole prompt in this error
        chat(
            renderer,
            user(PICTURE),
            {"role": "assistant", "content": "<think>a</think>b"},
            add_generation_prompt=False,
            continue_final_message=True,
        )
    assert PAD in caught.value.message
    assert not any(secret in caught.value.message for secret in secrets)


PIECES = st.sampled_from(
    [PAD, START, END, "<|video_pad|>", "<|im_end|>", "<", "|", ">", "image", "_pad", " ", "\n", "é", "🙂", "a"]
)
CONTENT = st.lists(st.one_of(st.lists(PIECES, max_size=6).map("".join), st.none()), min_size=1, max_size=5)


@hypothesis_settings(max_examples=60, deadline=None)
@given(CONTENT)
def test_any_mixture_of_texts_and_pictures(renderer: Renderer, content: list[str | None]) -> None:
    parts = [PICTURE if part is None else text_part(part) for part in content]
    rendered = chat(renderer, user(*parts))
    check_pictures(renderer, rendered, content.count(None))
    expected = "".join(shown() if part is None else part for part in content)
    assert f"<|im_start|>user\n{expected}<|im_end|>" in text_of(renderer, rendered)
