"""What a Response repeats of its request."""

from triton_renderer.protocol.forms import JsonObject, ResponsesForm
from triton_renderer.protocol.responses.request import ResponsesRequest
from triton_renderer.protocol.sampling import SamplingParams


def responses_form(request: ResponsesRequest, sampling: SamplingParams | None) -> ResponsesForm:
    """`sampling`: what the request was resolved to; None where only the request itself is known."""
    used = _asked_for(request) if sampling is None else _used(sampling)
    head: JsonObject = {
        "instructions": request.instructions,
        "metadata": request.metadata,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "tool_choice": _tool_choice(request),
        "tools": [tool.model_dump(exclude_unset=True) for tool in request.tools or []],
        "background": False,
        "max_tool_calls": request.max_tool_calls,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": request.reasoning and request.reasoning.model_dump(exclude_unset=True),
        "service_tier": request.service_tier or "auto",
        "text": request.text and request.text.model_dump(exclude_unset=True),
        "truncation": request.truncation or "disabled",
        "user": request.user,
        **used,
    }
    return ResponsesForm(head=head, custom_tools=request.custom_tools)


def _used(sampling: SamplingParams) -> JsonObject:
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    return {name: getattr(sampling, name) for name in names} | {
        "max_output_tokens": sampling.max_tokens,
        "top_logprobs": sampling.logprobs,
    }


def _asked_for(request: ResponsesRequest) -> JsonObject:
    """As it was asked for, fit or not: whoever generated has had a say in that."""
    return {
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "max_output_tokens": request.max_output_tokens,
        "top_logprobs": request.top_logprobs or 0 if request.wants_logprobs else None,
    }


def _tool_choice(request: ResponsesRequest) -> str | JsonObject:
    choice = request.tool_choice or "auto"
    if not isinstance(choice, str):
        return choice.model_dump(exclude_unset=True)
    return "none" if choice == "auto" and not request.tools else choice
