"""The stateless route for completions: the responses to all prompts become one answer."""

import json
import logging
from typing import Any

import pytest

from tests.unit.derender.answers import checked, derenderer, logprobs_of, model, tokens
from tests.unit.text.tokenizers_for_tests import byte_ids, byte_level
from triton_renderer.errors import InvalidRequest, NotFound

EOS = model().tokenizer.eos_token_id
VOCAB, CONTEXT = model().vocab_size, model().max_model_len


def choice(text: str = "a", **fields: Any) -> dict[str, Any]:
    return {"index": 0, "token_ids": tokens(text), "finish_reason": "stop"} | fields


def response(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"request_id": "generate-tokens-7", "choices": list(choices)} | fields


def answer_of(*responses: dict[str, Any], **fields: Any) -> bytes:
    body = json.loads(json.dumps({"generate_responses": list(responses)} | fields))
    return derenderer().derender_completion(body)


def derender(*responses: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return checked(answer_of(*responses, **fields))


def test_choices_are_numbered_through_over_all_responses():
    answer = derender(
        response(choice("Hello", index=1), choice("b", index=0)), response(choice("c", finish_reason="length"), request_id="r2")
    )
    assert [(found["index"], found["text"], found["finish_reason"]) for found in answer["choices"]] == [
        (0, "Hello", "stop"),
        (1, "b", "stop"),
        (2, "c", "length"),
    ]
    assert (answer["id"], answer["object"], answer["model"]) == ("generate-tokens-7", "text_completion", "shapes-vl")


def test_an_answer_has_every_field_of_the_reference():
    answer = derender(response(choice()))
    assert answer.keys() == {
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
        *("kv_transfer_params", "ec_transfer_params", "metrics"),
    }
    (found,) = answer["choices"]
    unsaid = ("logprobs", "stop_reason", "token_ids", "routed_experts", "prompt_logprobs", "prompt_token_ids")
    assert found == {"index": 0, "text": "a", "finish_reason": "stop"} | dict.fromkeys(unsaid)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, 5), ({"prompt_tokens": [7, 8]}, 15), ({"prompt_tokens": [0, 8]}, 8), ({"prompt_token_ids": [[1, 1], None]}, 5)],
)
def test_usage_is_the_sum_over_the_prompts(fields, expected):
    first = response(choice("abc"), usage={"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}})
    usage = derender(first, response(choice("d")), **fields)["usage"]
    assert usage == {
        "prompt_tokens": expected,
        "total_tokens": expected + 4,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": None,
    }


def test_what_all_engines_hand_on_is_kept_and_what_differs_is_left_out_with_a_warning(caplog):
    same = {"kv_transfer_params": {"a": 1}, "ec_transfer_params": {"ec_items": []}}
    answer = derender(response(choice(), **same), response(choice(), **same))
    assert {name: answer[name] for name in same} == same
    with caplog.at_level(logging.WARNING):
        answer = derender(response(choice(), **same), response(choice(), **(same | {"kv_transfer_params": {"a": 2}})))
    assert (answer["kv_transfer_params"], answer["ec_transfer_params"]) == (None, {"ec_items": []})
    assert "kv_transfer_params differ" in caplog.text


def test_the_request_says_how_text_is_made_and_parsers_have_no_say():
    text = "<think>a END b"
    assert derender(response(choice(text)))["choices"][0]["text"] == text
    (found,) = derender(response(choice(text)), completion_request={"prompt": "x", "stop": ["END"]})["choices"]
    assert (found["text"], found["finish_reason"], found["stop_reason"]) == ("<think>a ", "stop", "END")
    asked = {"prompt": "x", "skip_special_tokens": False, "return_token_ids": True}
    (found,) = derender(response(choice("a<|im_start|>b")), completion_request=asked)["choices"]
    assert (found["text"], found["token_ids"]) == ("a<|im_start|>b", tokens("a<|im_start|>b"))


def test_logprobs_have_texts_and_offsets():
    token_ids = [*tokens("H"), *byte_ids(byte_level(), "é".encode()), EOS]
    (found,) = derender(response(choice(token_ids=token_ids, logprobs=logprobs_of(token_ids).model_dump())))["choices"]
    assert found["logprobs"] == {
        "text_offset": [0, 1, 1, 2],
        "token_logprobs": [-0.5] * 4,
        "tokens": ["H", "", "é", "<|im_end|>"],
        "top_logprobs": [{"H": -0.5}, {"": -0.5}, {"é": -0.5}, {"<|im_end|>": -0.5}],
    }


def test_a_token_without_candidates_has_null_for_them():
    entry = {"token_id": tokens("a")[0], "logprob": -1.0}
    (found,) = json.loads(answer_of(response(choice(logprobs={"content": [entry]}))))["choices"]
    assert found["logprobs"]["top_logprobs"] == [None]


def test_prompt_logprobs_are_kept_with_each_choice():
    logprobs = [None, {"5": {"logprob": -1.0}}]
    answer = derender(response(choice(), choice(index=1), prompt_logprobs=logprobs), response(choice()))
    assert [found["prompt_logprobs"] for found in answer["choices"]] == [logprobs, logprobs, None]


def test_a_choice_that_does_not_say_why_it_ended_ended_by_itself():
    said, unsaid = choice(finish_reason=None), choice(index=1)
    del unsaid["finish_reason"]
    assert [found["finish_reason"] for found in derender(response(said, unsaid))["choices"]] == [None, "stop"]


@pytest.mark.parametrize("reason", ["error", "repetition"])
def test_reasons_of_other_engines_are_passed_on(reason):
    (found,) = json.loads(answer_of(response(choice(finish_reason=reason))))["choices"]
    assert found["finish_reason"] == reason


def test_logprobs_without_content_are_none():
    assert derender(response(choice(logprobs={"content": None})))["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("responses", "fields", "param"),
    [
        ([], {}, "generate_responses"),
        ([response(choice())], {"prompt_tokens": [1, 2]}, None),
        ([response(choice())], {"prompt_token_ids": []}, None),
        ([response(choice())], {"prompt_token_ids": [[1, VOCAB]]}, "prompt_token_ids.0.1"),
        ([response(choice())], {"prompt_token_ids": [[1] * (CONTEXT + 1)]}, "prompt_token_ids.0"),
        ([response(choice())], {"prompt_tokens": [-1]}, "prompt_tokens.0"),
        ([response(choice()), response()], {}, "generate_responses.1.choices"),
        ([response(choice()), response(choice(""))], {}, "generate_responses.1.choices.0.token_ids"),
        ([response(choice(token_ids=[VOCAB]))], {}, "generate_responses.0.choices.0.token_ids.0"),
        ([response(choice(stop_reason=2**64 - 1))], {}, "generate_responses.0.choices.0.stop_reason"),
        ([response(choice(), output_mode="text")], {}, "generate_responses.0.output_mode"),
        ([response(choice())], {"completion_request": {"prompt": 5}}, "completion_request.prompt"),
        ([response(choice())], {"stream": 1}, "stream"),
    ],
)
def test_bad_requests_say_what_is_wrong_and_where(responses, fields, param):
    with pytest.raises(InvalidRequest) as caught:
        derender(*responses, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_too_many_responses_are_refused():
    with pytest.raises(InvalidRequest, match="16385 responses") as caught:
        derender(*[response()] * 16_385)
    assert caught.value.param == "generate_responses"


def test_another_models_name_is_not_found():
    with pytest.raises(NotFound):
        derender(response(choice()), model="other")


@pytest.mark.parametrize("body", [None, [], "x"])
def test_a_body_that_is_no_object_is_refused(body):
    for route in (derenderer().derender_chat, derenderer().derender_completion):
        with pytest.raises(InvalidRequest, match="must be a JSON object"):
            route(body)


@pytest.mark.parametrize("given", ["nothing", None, 5])
@pytest.mark.parametrize("route", ["chat", "completion", "responses", "messages"])
def test_responses_that_are_missing_are_named(route, given):
    field = "generate_responses" if route == "completion" else "generate_response"
    with pytest.raises(InvalidRequest) as caught:
        getattr(derenderer(), f"derender_{route}")({} if given == "nothing" else {field: given})
    assert (caught.value.status, caught.value.param) == (400, field)
