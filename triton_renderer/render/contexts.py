"""What the later stages need to know of a request, and what a chat request tells the template and the parsers."""

import time
from typing import Any

from triton_renderer.protocol.forms import AnswerForm
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest, Tool
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.protocol.stages import DerenderContext, FeatureItem, RenderJob, RequestContext
from triton_renderer.render.messages import TemplateMessage, text_of
from triton_renderer.render.prompt import Prompt
from triton_renderer.render.structured import constraint_param
from triton_renderer.text.detokenizer import PROMPT_TAIL

Request = ChatCompletionRequest | CompletionRequest


def request_context(
    job: RenderJob,
    request: Request,
    sampling: SamplingParams,
    *,
    prompt: Prompt,
    features: list[FeatureItem],
    derender: DerenderContext,
    extra: dict[str, Any],
) -> RequestContext:
    """`derender` goes along unless the result leaves as a GenerateRequest; then `extra` does, that request's own fields."""
    own = {
        "token_offsets": None if prompt.offsets is None else [list(span) for span in prompt.offsets],
        "model": request.model,
        "stream_options": request.stream_options.model_dump() if request.stream_options else None,
        **extra,
    }
    return RequestContext(
        id=job.id,
        external_id=job.external_id,
        model=request.model,
        stream=request.stream,
        sampling_params=sampling,
        features=features,
        ec_transfer_params=request.ec_transfer_params,
        kv_transfer_params=request.kv_transfer_params,
        cache_salt=request.cache_salt,
        priority=request.priority,
        return_token_ids=request.return_token_ids and not job.for_generate,
        constraint_param=constraint_param(request, sampling.structured_outputs),
        derender=None if job.for_generate else derender,
        request=own if job.for_generate else None,
    )


def derender_context(
    job: RenderJob,
    request: Request,
    sampling: SamplingParams,
    *,
    prompt: Prompt,
    model_name: str,
    form: AnswerForm | None = None,
    **of_the_route: Any,
) -> DerenderContext:
    """`of_the_route`: the fields that depend on whether it is a chat or a completion."""
    options = request.stream_options if request.stream else None
    return DerenderContext(
        kind="completion" if job.kind == "completion" else "chat",
        form=form,
        id=job.external_id or job.id,
        created=int(time.time()) if job.created is None else job.created,
        model=request.model or model_name,
        stream=request.stream,
        # A translated stream ends with its finish reason, and then has to know the usage.
        include_usage=form is None and options is not None and options.include_usage,
        continuous_usage=(request.stream and form is not None) or (options is not None and options.continuous_usage_stats),
        choice_offset=job.choice_offset,
        prompt_tail=prompt.token_ids[-PROMPT_TAIL:].tolist(),
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        min_tokens=sampling.min_tokens,
        # The client's wish: with a parser, `sampling` keeps special tokens for the parser's sake.
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        want_logprobs=sampling.logprobs is not None,
        return_token_ids=request.return_token_ids,
        prompt_token_ids=prompt.token_ids.tolist() if request.return_token_ids else None,
        **of_the_route,
    )


def tools_for_template(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """Tool definitions with the fields and the order that the reference gives them."""
    if not tools:
        return None
    return [
        {
            "type": tool.type,
            "function": {
                "name": tool.function.name,
                "description": tool.function.description,
                "parameters": tool.function.parameters,
                **{
                    name: value
                    for name, value in (tool.function.model_extra or {}).items()
                    if name == "strict" and value is not None
                },
            },
        }
        for tool in tools
    ]


def template_variables(request: ChatCompletionRequest) -> dict[str, Any]:
    """Further variables of the template: the client's own, and what `reasoning_effort` means for thinking."""
    variables = dict(request.chat_template_kwargs or {})
    variables.pop("chat_template", None)  # it is the template
    if request.reasoning_effort is not None:
        variables["reasoning_effort"] = request.reasoning_effort
        variables.setdefault("enable_thinking", request.reasoning_effort != "none")
    return variables


def parser_variables(request: ChatCompletionRequest) -> dict[str, Any]:
    """`reasoning_parser_kwargs.chat_template_kwargs`: everything that the prompt was rendered with."""
    variables = template_variables(request) | {
        "add_generation_prompt": request.add_generation_prompt,
        "continue_final_message": request.continue_final_message,
    }
    return variables | ({"documents": request.documents} if request.documents is not None else {})


def chat_echo(request: ChatCompletionRequest, messages: list[TemplateMessage]) -> str:
    """The text to repeat in front of the answer: the last message, where the answer has the same role."""
    last = messages[-1]
    if not request.echo or last["role"] != ("assistant" if request.add_generation_prompt else request.messages[-1].role):
        return ""
    return text_of(last["content"])
