"""A completion job: one prompt, as text or as token ids."""

from typing import Any

import pytest

from tests.unit.render.helpers import completion_job
from triton_renderer.errors import InvalidRequest, NotFound
from triton_renderer.protocol.stages import DerenderContext, RenderJob
from triton_renderer.render import Renderer


def derender_of(renderer: Renderer, job: RenderJob) -> DerenderContext:
    context = renderer.render(job).context.derender
    assert context is not None
    return context


def refusal(renderer: Renderer, prompt: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        renderer.render(completion_job(prompt, **fields))
    return caught.value


def test_text_is_tokenized_as_it_is(renderer: Renderer) -> None:
    rendered = renderer.render(completion_job("The capital of France"))
    expected = renderer._model.tokenizer.hf("The capital of France")["input_ids"]
    assert rendered.token_ids.tolist() == expected
    assert rendered.items == []
    assert rendered.context.sampling_params.max_tokens == 16


def test_token_ids_are_taken_as_they_are(renderer: Renderer) -> None:
    assert renderer.render(completion_job([1, 2, 3])).token_ids.tolist() == [1, 2, 3]
    assert renderer.render(completion_job([[4, 5]])).token_ids.tolist() == [4, 5]
    last = renderer.vocab_size - 1
    assert renderer.render(completion_job([last])).token_ids.tolist() == [last]
    assert refusal(renderer, [1, last + 1]).param == "prompt.1"
    assert renderer.render(completion_job(["x"])).token_ids.size


@pytest.mark.parametrize(
    ("prompt", "param"),
    [([1, 100_000], "prompt.1"), ("", "prompt"), (["a", "b"], "prompt"), ([[1], [2]], "prompt")],
)
def test_prompts_that_cannot_be_are_refused(renderer: Renderer, prompt: Any, param: str) -> None:
    assert refusal(renderer, prompt).param == param


@pytest.mark.parametrize("prompt", [[], [[]], [-1], [2**63], [1.5], [True, "a"], {"a": 1}, None])
def test_prompts_of_another_form_are_refused(renderer: Renderer, prompt: Any) -> None:
    assert (refusal(renderer, prompt).param or "").startswith("prompt")


def test_a_prompt_may_fill_the_context_but_for_one_token(renderer: Renderer) -> None:
    assert renderer.render(completion_job([1] * 599)).context.sampling_params.max_tokens == 1
    error = refusal(renderer, [1] * 600)
    assert "600 tokens" in error.message
    assert error.param == "input_tokens"


@pytest.mark.parametrize("truncate", [None, -1, 2])
def test_an_absurdly_long_text_is_refused_before_it_is_tokenized_even_where_it_is_to_be_cut_down(
    renderer: Renderer, truncate: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * (renderer._longest_text + 1)
    fits = renderer.render(completion_job(text[:2000], truncate_prompt_tokens=-1)).token_ids
    assert len(fits) == 599
    monkeypatch.setattr(renderer._model.tokenizer, "encode", lambda *_: pytest.fail("it was tokenized"))
    error = refusal(renderer, text, truncate_prompt_tokens=truncate)
    assert f"{len(text)} characters" in error.message
    assert error.param == "input_tokens"


def test_echo_is_the_prompts_text(renderer: Renderer) -> None:
    assert derender_of(renderer, completion_job("a <|im_end|> ü", echo=True)).echo == "a <|im_end|> ü"
    ids = renderer.render(completion_job("circle")).token_ids.tolist()
    assert derender_of(renderer, completion_job(ids, echo=True)).echo == "circle"
    assert derender_of(renderer, completion_job("circle", echo=True, return_token_ids=True)).echo == ""
    assert derender_of(renderer, completion_job("circle")).echo == ""
    text = "xyzzy plugh 12345"
    cut = derender_of(renderer, completion_job(text, echo=True, truncate_prompt_tokens=2)).echo
    assert cut
    assert text.endswith(cut)
    assert cut != text


def test_scoring_a_prompt_makes_one_token_for_a_render_answer_only(renderer: Renderer) -> None:
    scoring = {"echo": True, "max_tokens": 0, "logprobs": 1}
    rendered = renderer.render(completion_job("x", for_generate=True, **scoring))
    assert rendered.context.sampling_params.max_tokens == 1
    assert refusal(renderer, "x", **scoring).param == "echo"
    assert refusal(renderer, "x", echo=True, max_tokens=0).param == "max_tokens"


def test_the_context_says_what_the_job_says(renderer: Renderer) -> None:
    job = completion_job("x", logprobs=0, return_token_ids=True).model_copy(update={"choice_offset": 3, "created": 9})
    context = derender_of(renderer, job)
    assert (context.kind, context.id, context.created, context.choice_offset) == ("completion", "cmpl-1", 9, 3)
    assert context.want_logprobs is True
    assert context.prompt_token_ids == renderer.render(job).token_ids.tolist()
    assert derender_of(renderer, completion_job("x")).created > 1_600_000_000


def test_parsers_do_not_read_completions(renderer: Renderer) -> None:
    context = derender_of(renderer, completion_job("<think>"))
    assert context.skip_special_tokens is True
    assert context.reasoning_open is False


def test_a_suffix_is_refused(renderer: Renderer) -> None:
    assert refusal(renderer, "x", suffix="y").param == "suffix"


def test_another_model_is_not_found(renderer: Renderer) -> None:
    with pytest.raises(NotFound):
        renderer.render(completion_job("x", model="other"))
