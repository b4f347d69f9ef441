"""Rules on a request that its fields alone decide, as the reference has them."""

from triton_renderer.errors import InvalidRequest, NoHistory
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest, NamedToolChoice
from triton_renderer.protocol.responses.request import ResponsesRequest
from triton_renderer.protocol.sampling import MAX_LOGPROBS
from triton_renderer.render.tool_grammar import tool_grammar

MAX_CACHE_SALT_LENGTH = 128
_NOT_IN_CACHE_SALT = "@/\\\0"


def check_request(request: ChatCompletionRequest | CompletionRequest, *, trusts_mm_kwargs: bool) -> None:
    """What holds for both routes. `trusts_mm_kwargs`: a request may change how media are read and processed.

    Raises InvalidRequest.
    """
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(request, name, None) and not trusts_mm_kwargs:
            raise InvalidRequest(
                f"{name}: a request cannot change how media are read or processed; TRUST_REQUEST_MM_KWARGS=1 changes that", name
            )
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options: only with stream: true", "stream_options")
    if request.prompt_logprobs and request.stream:
        raise InvalidRequest("prompt_logprobs: not with stream: true", "prompt_logprobs")
    if request.use_beam_search:
        raise InvalidRequest("use_beam_search: beam search is not supported", "use_beam_search")
    salt = request.cache_salt or ""
    if len(salt) > MAX_CACHE_SALT_LENGTH or any(character in salt for character in _NOT_IN_CACHE_SALT):
        raise InvalidRequest(f"cache_salt: at most {MAX_CACHE_SALT_LENGTH} characters, none of @ / \\ or NUL", "cache_salt")


def check_chat(request: ChatCompletionRequest, tool_parser: str | None) -> None:
    """What holds for the chat route. Raises InvalidRequest."""
    if request.continue_final_message and request.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message: only with add_generation_prompt: false, since no new message begins",
            "continue_final_message",
        )
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs: only with logprobs: true", "top_logprobs")
    _check_tools(request, tool_parser)


def check_coupled(request: ChatCompletionRequest | CompletionRequest, tool_parser: str | None) -> None:
    """What this server's own prefill_decode cannot do, by the client's names and before there is any work done.

    A rendered request may ask for it: it can be posted to a server that does it. Raises InvalidRequest.
    """
    if isinstance(request, ChatCompletionRequest):
        wants_logprobs, limited = request.logprobs, {"top_logprobs": request.top_logprobs}
        if request.effective_tool_choice not in ("none", "auto") and tool_grammar(request, tool_parser) is None:
            raise _not_supported(
                "tool_choice", f"`required` or a named tool, for these tools and TOOL_CALL_PARSER={tool_parser},"
            )
    else:
        wants_logprobs, limited = request.logprobs is not None, {"logprobs": request.logprobs}
    for name, count in (limited | {"prompt_logprobs": request.prompt_logprobs}).items():
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            raise InvalidRequest(f"{name}: 0 to {MAX_LOGPROBS} is expected, not {count}", name)
    if request.echo and wants_logprobs:
        raise _not_supported("echo", "echo with logprobs")


def check_coupled_response(request: ResponsesRequest) -> None:
    """The same for what is lost when a Responses request becomes a chat request. Raises InvalidRequest."""
    if request.background:
        raise NoHistory("background: this server keeps no responses, so that none can be fetched later", "background")


def _not_supported(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {what} is not supported by this server yet", name)


def _check_tools(request: ChatCompletionRequest, tool_parser: str | None) -> None:
    choice = request.effective_tool_choice
    if request.tools is not None and not request.tools:
        raise InvalidRequest("tools: must not be empty; leave it out where there are none", "tools")
    if choice == "none":
        return
    if not request.tools:
        raise InvalidRequest("tool_choice: only with tools", "tool_choice")
    if isinstance(choice, NamedToolChoice) and choice.function.name not in {tool.function.name for tool in request.tools}:
        raise InvalidRequest(f"tool_choice: {choice.function.name!r} is none of the tools", "tool_choice")
    if tool_parser is None:
        raise InvalidRequest("tool_choice: this server has no tool call parser; set TOOL_CALL_PARSER", "tool_choice")
