"""Sampling parameters: the request's, else generation_config.json's, else the field's own default."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.render.helpers import chat, completion_job, model_folder, settings, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.render import Renderer
from triton_renderer.settings import SettingsError

QUESTION = user("How many circles?")


def params(renderer: Renderer, **fields: Any) -> SamplingParams:
    """What a GenerateRequest holds; the coupled routes refuse some of it."""
    return chat(renderer, QUESTION, for_generate=True, **fields).context.sampling_params


def with_generation_config(tmp_path: Path, content: dict[str, Any] | str | None) -> Renderer:
    folder = model_folder(tmp_path / "m", **({} if content is None else {"generation_config": content}))
    if content is None:
        (folder / "generation_config.json").unlink()
    return Renderer.load(settings(model=str(folder)))


def test_every_field_of_the_request_is_taken(renderer: Renderer) -> None:
    given = {
        "n": 2, "presence_penalty": 0.1, "frequency_penalty": -0.2, "repetition_penalty": 1.1, "temperature": 0.5, "top_p": 0.9,
        "top_k": 5, "min_p": 0.1, "seed": 3, "stop": ["x"], "stop_token_ids": [4], "ignore_eos": True, "max_tokens": 16,
        "min_tokens": 2, "prompt_logprobs": 1, "skip_special_tokens": False, "spaces_between_special_tokens": False,
        "include_stop_str_in_output": True, "allowed_token_ids": [1, 2], "bad_words": ["no"],
    }  # fmt: skip
    found = params(renderer, **given, logit_bias={"5": 200, "6": -1.5}, logprobs=True, top_logprobs=3).model_dump()
    assert {name: found[name] for name in given} == given
    assert found["logit_bias"] == {5: 100.0, 6: -1.5}
    assert found["logprobs"] == 3


def test_the_models_defaults_fill_what_the_request_leaves_out(tmp_path: Path) -> None:
    config = {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "max_new_tokens": 50,
    }
    renderer = with_generation_config(tmp_path, config)
    found = params(renderer)
    assert (found.temperature, found.top_p, found.top_k, found.repetition_penalty, found.max_tokens) == (0.7, 0.8, 20, 1.05, 50)
    given = params(renderer, temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0, max_tokens=9)
    assert (given.temperature, given.top_p, given.top_k, given.repetition_penalty, given.max_tokens) == (1.0, 1.0, 0, 1.0, 9)
    completion = renderer.render(completion_job("x")).context.sampling_params
    assert (completion.temperature, completion.max_tokens) == (0.7, 16)


def test_without_a_generation_config_the_fields_defaults_hold(tmp_path: Path) -> None:
    found = params(with_generation_config(tmp_path, None))
    assert found == SamplingParams(max_tokens=found.max_tokens, skip_special_tokens=found.skip_special_tokens)


def test_do_sample_false_means_greedy_unless_the_request_has_a_temperature(tmp_path: Path) -> None:
    renderer = with_generation_config(tmp_path, {"do_sample": False})
    assert params(renderer).is_greedy
    assert params(renderer, temperature=1.0).temperature == 1.0
    assert params(with_generation_config(tmp_path / "b", {"eos_token_id": 882})).temperature == 1.0


def test_a_broken_generation_config_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"generation_config\.json"):
        with_generation_config(tmp_path, "{not json")


def test_greedy_makes_the_other_thresholds_meaningless(renderer: Renderer) -> None:
    found = params(renderer, temperature=0, top_p=0.5, top_k=3, min_p=0.2)
    assert found.is_greedy
    assert (found.top_p, found.top_k, found.min_p) == (1.0, 0, 0.0)


def test_tiny_temperatures_are_raised(renderer: Renderer) -> None:
    assert params(renderer, temperature=0.001).temperature == 0.01


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 16}, 16),
        ({"max_tokens": 16, "max_completion_tokens": 20}, 20),
        ({"max_tokens": 599}, None),
        ({"max_tokens": 600}, None),
        ({"max_tokens": None}, None),
    ],
)
def test_max_tokens_is_what_was_asked_for_and_fits(renderer: Renderer, fields: dict[str, Any], expected: int | None) -> None:
    rendered = chat(renderer, QUESTION, **fields)
    assert rendered.context.sampling_params.max_tokens == (expected or 600 - len(rendered.token_ids))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 601}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 601}, "max_completion_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 2}, "min_p"),
        ({"stop_token_ids": [100_000]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"stop_token_ids": [2**63]}, "stop_token_ids.0"),
        ({"allowed_token_ids": [100_000]}, "allowed_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_values_out_of_range_are_refused_by_name(renderer: Renderer, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(renderer, QUESTION, **fields)
    assert caught.value.param == param


def test_more_minimum_than_room_is_refused(renderer: Renderer) -> None:
    with pytest.raises(InvalidRequest, match="min_tokens"):
        chat(renderer, QUESTION, min_tokens=599)


def test_the_vocabulary_ends_where_the_model_says(renderer: Renderer) -> None:
    last = renderer.vocab_size - 1
    assert params(renderer, stop_token_ids=[last], logit_bias={str(last): 1}).stop_token_ids == [last]
    for fields in ({"stop_token_ids": [last + 1]}, {"logit_bias": {str(last + 1): 1}}, {"allowed_token_ids": [last + 1]}):
        with pytest.raises(InvalidRequest, match=f"only 0 to {last}"):
            params(renderer, **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"logprobs": True, "top_logprobs": 50}, 50),
        ({"logprobs": True, "top_logprobs": -1}, -1),
    ],
)
def test_chat_logprobs(renderer: Renderer, fields: dict[str, Any], expected: int | None) -> None:
    assert params(renderer, **fields).logprobs == expected


@pytest.mark.parametrize("count", [21, -1])
def test_more_logprobs_than_this_servers_engine_gives_are_for_others_only(renderer: Renderer, count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"top_logprobs: 0 to 20 is expected, not {count}"):
        chat(renderer, QUESTION, logprobs=True, top_logprobs=count)
    with pytest.raises(InvalidRequest, match=f"^logprobs: 0 to 20 is expected, not {count}"):
        renderer.render(completion_job("x", logprobs=count))
    rendered = renderer.render(completion_job("x", logprobs=count, prompt_logprobs=count, for_generate=True))
    sampling = rendered.context.sampling_params
    assert (sampling.logprobs, sampling.prompt_logprobs) == (count, count)


def test_a_budget_for_thinking_is_handed_on(renderer: Renderer) -> None:
    assert params(renderer, thinking_token_budget=100).thinking_token_budget == 100
    assert params(renderer, thinking_token_budget=-1).thinking_token_budget is None
    with pytest.raises(InvalidRequest, match="thinking_token_budget"):
        params(renderer, thinking_token_budget=-2)


def test_echo_asks_whoever_generates_for_the_prompts_logprobs_too(renderer: Renderer) -> None:
    assert params(renderer, echo=True).prompt_logprobs == 0
    assert chat(renderer, QUESTION, echo=True).context.sampling_params.prompt_logprobs is None
    assert params(renderer, echo=True, logprobs=True, top_logprobs=2).prompt_logprobs == 2
    completion = renderer.render(completion_job("x", echo=True, logprobs=3, for_generate=True)).context.sampling_params
    assert (completion.logprobs, completion.prompt_logprobs) == (3, 3)


def test_an_absent_n_and_a_null_n_are_one(renderer: Renderer) -> None:
    assert params(renderer).n == params(renderer, n=None).n == 1
