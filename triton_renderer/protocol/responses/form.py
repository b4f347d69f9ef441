"""What a Response repeats of its request."""

from triton_renderer.protocol.forms import JsonObject, ResponsesForm
from triton_renderer.protocol.responses.request import ResponsesRequest
from triton_renderer.protocol.sampling import SamplingParams


def responses_form(request: ResponsesRequest, sampling: SamplingParams | None) -> ResponsesForm:
    """`sampling`: what the request was resolved to; None where only the request itself is known."""
    used = sampling if sampling is not None else _asked_for(request)
    head: JsonObject = {
        "instructions": request.instructions,
        "metadata": request.metadata,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "temperature": used.temperature,
        "tool_choice": _tool_choice(request),
        "tools": [tool.model_dump(exclude_unset=True) for tool in request.tools or []],
        "top_p": used.top_p,
        "background": False,
        "max_output_tokens": used.max_tokens,
        "max_tool_calls": request.max_tool_calls,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": request.reasoning and request.reasoning.model_dump(exclude_unset=True),
        "service_tier": request.service_tier or "auto",
        "text": request.text and request.text.model_dump(exclude_unset=True),
        "top_logprobs": used.logprobs,
        "truncation": request.truncation or "disabled",
        "user": request.user,
        "presence_penalty": used.presence_penalty,
        "frequency_penalty": used.frequency_penalty,
    }
    return ResponsesForm(head=head, custom_tools=request.custom_tools)


def _asked_for(request: ResponsesRequest) -> SamplingParams:
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    logprobs = request.top_logprobs or 0 if request.wants_logprobs else None
    return SamplingParams(**given, max_tokens=request.max_output_tokens, logprobs=logprobs)


def _tool_choice(request: ResponsesRequest) -> str | JsonObject:
    choice = request.tool_choice or "auto"
    if not isinstance(choice, str):
        return choice.model_dump(exclude_unset=True)
    return "none" if choice == "auto" and not request.tools else choice
