"""What a client is told of a body that does not fit."""

from typing import Any

import pytest
from pydantic import ValidationError

from triton_renderer.errors import BadBody
from triton_renderer.protocol.base import Wire, parse
from triton_renderer.protocol.derender import DerenderChatRequest
from triton_renderer.protocol.generate import GenerateRequest
from triton_renderer.protocol.messages.request import MessagesRequest
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.protocol.responses.request import ResponsesRequest

HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        (ChatCompletionRequest, {"messages": [5]}, "messages.0"),
        (ChatCompletionRequest, {"messages": HELLO, "tools": [None]}, "tools.0"),
        (ChatCompletionRequest, {"messages": HELLO, "stream_options": []}, "stream_options"),
        (ResponsesRequest, {"input": [5]}, "input.0"),
        (MessagesRequest, {"model": "m", "max_tokens": 1, "messages": [5]}, "messages.0"),
        (
            MessagesRequest,
            {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [5]}]},
            "messages.0.content.0",
        ),
        (DerenderChatRequest, {"generate_response": {"choices": [5]}}, "generate_response.choices.0"),
    ],
)
def test_a_value_that_is_no_object_is_told_without_the_name_of_a_class(model: type[Wire], body: Any, param: str) -> None:
    with pytest.raises(BadBody) as caught:
        parse(model, body)
    assert (caught.value.message, caught.value.param) == (f"{param}: Input should be an object", param)


MANY = [None] * 1000


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatCompletionRequest, {"messages": MANY}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": MANY}]}),
        (ChatCompletionRequest, {"messages": HELLO, "tools": MANY}),
        (ChatCompletionRequest, {"messages": HELLO, "documents": [dict.fromkeys(map(str, range(1000)))]}),
        (ChatCompletionRequest, {"messages": HELLO, "logit_bias": dict.fromkeys(map(str, range(1000)))}),
        (CompletionRequest, {"prompt": MANY}),
        (CompletionRequest, {"prompt": [MANY]}),
        (ResponsesRequest, {"input": MANY}),
        (MessagesRequest, {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": MANY}]}),
        (DerenderChatRequest, {"generate_response": {"choices": [{"index": 0, "token_ids": MANY}]}}),
        (GenerateRequest, {"token_ids": MANY, "token_offsets": MANY, "sampling_params": {"stop": MANY}}),
    ],
)
def test_a_list_is_read_up_to_its_first_misfit(model: type[Wire], body: Any) -> None:
    """A complaint about each of millions would take gigabytes."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() < 10
