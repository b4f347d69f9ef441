"""Generate streams for the derender routes: each case is a sequence of calls, one a chunk."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.golden.cases import DERENDER_CHAT, DERENDER_COMPLETION, Body, Case, user
from tests.golden.derender_cases import (
    FIND,
    NESTED,
    NO_THINKING,
    OSLO,
    PARIS,
    TYPED,
    UNICODE,
    WRITINGS,
    coder_call,
    deepseek_calls,
)
from tests.golden.outputs import THINKING_OFF, THINKING_ON, choice, cut, ended, prompt, tokens
from tests.golden.text_cases import SEARCH, WEATHER, named

TOOLS: Body = {"tools": [WEATHER, SEARCH, TYPED]}
EVENLY, UNEVENLY = (3,), (1, 4, 2)


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _qwen3()
    yield from _without_parsers()
    yield from _other_tokenizers()
    yield from _other_parsers()
    yield from _completions()
    yield from _refused()


def _chunks(
    name: str, ids: Sequence[int], sizes: Sequence[int], finish_reason: str | None = "stop", **of_choice: Any
) -> list[Body]:
    """The calls of one choice: the last has the finish reason, unless that is None."""
    parts = list(cut(ids, *sizes))
    logprobs, stop_reason = of_choice.pop("logprobs", None), of_choice.pop("stop_reason", None)
    calls = []
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        said = choice(part, finish_reason if is_last else None, logprobs=logprobs, **of_choice)
        if is_last and stop_reason is not None:
            said["stop_reason"] = stop_reason
        calls.append(_call(name, said))
    return calls


def _call(name: str, *choices: Body, **of_chunk: Any) -> Body:
    return {"generate_chunk": {"request_id": f"chatcmpl-{name}", "choices": list(choices), **of_chunk}}


def _usage(name: str, prompt_tokens: int, completion_tokens: int) -> Body:
    total = prompt_tokens + completion_tokens
    return _call(name, usage={"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total})


def _flush(name: str, finish_reason: str = "stop", **of_choice: Any) -> Body:
    """A chunk that has a finish reason and no tokens."""
    return _call(name, choice([], finish_reason, **of_choice))


def _stream(server: str, name: str, calls: Sequence[Body], asked: Body | None = None, turn: str = "", **of_body: Any) -> Case:
    body: Body = {
        "stream": True,
        "chat_request": {"messages": [user(name.replace("-", " "))], "stream": True, **(asked or {})},
        "prompt_token_ids": prompt(server, turn),
        **of_body,
    }
    body = {key: value for key, value in body.items() if value is not None}
    return Case(server, f"stream-{name}", DERENDER_CHAT, body, tuple(calls))


def _text(
    server: str,
    name: str,
    text: str,
    sizes: Sequence[int],
    finish: str | None = "stop",
    *,
    behind: Sequence[Body] = (),
    **more: Any,
) -> Case:
    """The stream of one choice that says `text`, and the calls `behind` it."""
    of_choice = {key: more.pop(key) for key in ("logprobs", "stop_reason", "index") if key in more}
    calls = [*_chunks(name, tokens(server, text), sizes, finish, **of_choice), *behind]
    return _stream(server, name, calls, **more)


def _qwen3() -> Iterator[Case]:
    """Hermes's calls and Qwen3's reasoning."""
    server = "qwen3"

    def thought(name: str, text: str, sizes: Sequence[int], *finish: Any, **more: Any) -> Case:
        return _text(server, name, text, sizes, *finish, **more)

    def plain(name: str, text: str, sizes: Sequence[int], *finish: Any, asked: Body | None = None, **more: Any) -> Case:
        return _text(server, name, text, sizes, *finish, asked=NO_THINKING | (asked or {}), turn=THINKING_OFF, **more)

    yield plain("answer", "It is four.", (1,), "length")
    yield plain("answer-usage", "It is five.", EVENLY, "length", behind=[_usage("answer-usage", 12, 4)])
    yield plain("answer-flushed", "It is six", (1,), None, behind=[_flush("answer-flushed")])
    yield plain("answer-at-once", "It is seven, as I said before.", (100,), "length")
    yield plain("answer-unicode", "天气 🙂 schön 👍🏽", (1,), "length")
    yield plain("answer-empty-chunks", "It is eight", (0, 1), "length")
    yield plain(
        "answer-stopped",
        "It is nine\n",
        (2,),
        "stop",
        stop_reason="\n",
        asked={"stop": ["\n"], "include_stop_str_in_output": True},
    )
    yield thought("thinking", "<think>\nTwo and two.\n</think>\n\nIt is four.", (1,), "length")
    yield thought("thinking-in-threes", "<think>\nTwo and three.\n</think>\n\nIt is five.", EVENLY, "length")
    yield thought("thinking-uneven", "<think>\nTwo 🙂 four.\n</think>\n\nIt is six.", UNEVENLY, "length")
    yield thought("thinking-cut", "<think>\nTwo and", (1,), "length")
    yield thought("thinking-cut-flushed", "<think>\nOne and", (2,), None, behind=[_flush("thinking-cut-flushed", "length")])
    yield thought("thinking-hidden", "<think>\nSecret.\n</think>\n\nFour.", (2,), "length", asked={"include_reasoning": False})
    yield thought("thinking-opened", "Two and two.\n</think>\n\nFour.", (1,), "length", turn=THINKING_ON)
    yield thought("thinking-then-call", f"<think>\nI ask.\n</think>\n\n{PARIS}", (1,), asked=TOOLS)
    yield thought("thinking-then-call-uneven", f"<think>\nI do.\n</think>\n\n{OSLO}", UNEVENLY, asked=TOOLS)
    yield plain("call", PARIS, (1,), asked=TOOLS)
    yield plain("call-in-threes", OSLO, EVENLY, asked=TOOLS)
    yield plain("call-at-once", FIND, (100,), asked=TOOLS)
    yield plain("call-behind-text", f"Let me look.\n{FIND}", UNEVENLY, asked=TOOLS)
    yield plain("calls", f"{PARIS}\n{OSLO}", (2,), asked=TOOLS)
    yield plain("calls-one-by-one", f"{FIND}\n{PARIS}", (1,), asked=TOOLS)
    yield plain("call-nested", NESTED, UNEVENLY, asked=TOOLS)
    yield plain("call-unicode", UNICODE, (1,), asked=TOOLS)
    yield plain("call-flushed", FIND, (4,), None, behind=[_flush("call-flushed"), _usage("call-flushed", 30, 20)], asked=TOOLS)
    yield plain("call-named", PARIS, (5,), asked=TOOLS | {"tool_choice": named("get_weather")})
    yield plain("call-required", OSLO, (7,), asked=TOOLS | {"tool_choice": "required"})
    yield plain("call-not-wanted", "I would search.", (2,), "length", asked=TOOLS | {"tool_choice": "none"})
    yield plain("call-first-only", f"{PARIS}\n{FIND}", (6,), asked=TOOLS | {"parallel_tool_calls": False})
    yield plain("token-ids", "Ids of it", (2,), "length", asked={"return_token_ids": True})
    for name, text, sizes, finish, fields in (
        ("logprobs", "It is ten.", (1,), "length", {"top_logprobs": 2}),
        ("logprobs-uneven", "It is 天气 eleven.", UNEVENLY, "length", {"top_logprobs": 1}),
        ("logprobs-no-candidates", "It is twelve.", EVENLY, "length", {"top_logprobs": 0}),
        ("logprobs-call", FIND, (2,), "stop", {"top_logprobs": 1} | TOOLS),
        ("logprobs-call-behind-text", f"I look.\n{PARIS}", UNEVENLY, "stop", {"top_logprobs": 1} | TOOLS),
        ("logprobs-not-wanted", "It is thirteen.", (2,), "length", {"logprobs": False}),
    ):
        yield plain(name, text, sizes, finish, logprobs=fields.get("top_logprobs", 1), asked={"logprobs": True, **fields})
    thinking = "<think>\nTen and one.\n</think>\n\nEleven."
    yield thought("logprobs-thinking", thinking, (1,), "length", logprobs=1, asked={"logprobs": True, "top_logprobs": 1})
    yield thought("no-thinking", "It is four, without a thought.", (1,), "length")
    one = _chunks("choices", tokens(server, "One is this"), (1,), "length")
    two = _chunks("choices", tokens(server, PARIS), (7,), "stop", index=1)
    mixed = [call for pair in zip(one, two, strict=False) for call in pair] + one[len(two) :] + two[len(one) :]
    yield _stream(server, "choices", mixed, asked=NO_THINKING | TOOLS | {"n": 2}, turn=THINKING_OFF)


def _without_parsers() -> Iterator[Case]:
    server = "qwen3-plain"
    flag = tokens(server, "a 🏳️‍🌈 b")
    yield _text(server, "ended", ended(server, "It is four."), (1,))
    yield _text(server, "ended-in-threes", ended(server, "It is five, you know."), EVENLY)
    yield _stream(server, "emoji", _chunks("emoji", flag, (1,), "length"))
    yield _stream(server, "emoji-cut", _chunks("emoji-cut", flag[:-4], (2,), "length"))
    yield _text(server, "request-unknown", "who asked", (1,), "length", chat_request=None)
    yield _text(server, "prompt-unknown", " who knows", (1,), "length", prompt_token_ids=None)
    yield _text(server, "prompt-count", "counted", (2,), "length", prompt_tokens=77, behind=[_usage("prompt-count", 5, 2)])
    yield _text(server, "usage-each", "a b c", (1,), None, behind=[_usage("usage-each", 3, 3), _flush("usage-each")])
    yield _text(server, "usage-first", "d e f", (100,), "length", behind=[])
    yield _text(server, "markers-are-text", f"<think>a</think>{FIND}", UNEVENLY, "length")
    yield _text(server, "special-tokens-left-out", "a<|im_start|>b", (1,), "length")
    yield _text(server, "special-tokens-kept", "a<|im_start|> b", (1,), "length", asked={"skip_special_tokens": False})
    yield _text(server, "logprobs", "Fine day", (1,), "length", logprobs=2, asked={"logprobs": True, "top_logprobs": 2})
    yield _text(
        server, "logprobs-unicode", "a 天气 b", UNEVENLY, "length", logprobs=1, asked={"logprobs": True, "top_logprobs": 1}
    )
    yield _text(server, "token-ids", "Ids of them", (2,), "length", asked={"return_token_ids": True})
    yield _text(server, "second-choice", "the other one", (2,), "length", index=1)
    three = [_chunks("interleaved", tokens(server, f"{n} was here"), (1,), "length", index=n) for n in range(3)]
    calls = [call for together in zip(*three, strict=True) for call in together] + [_usage("interleaved", 9, 9)]
    yield _stream(server, "interleaved", calls, asked={"n": 3})


def _other_tokenizers() -> Iterator[Case]:
    for server, name, sizes in (
        ("gemma", "spaces", (1,)),
        ("gemma", "chinese", (2,)),
        ("gemma", "emoji", (1,)),
        ("gemma", "symbols", UNEVENLY),
        ("qwen3-plain", "arabic", (1,)),
        ("qwen3-plain", "code", UNEVENLY),
    ):
        yield _text(server, f"writes-{name}", WRITINGS[name], sizes, "length")
    yield _text("gemma", "space-first", " four is it", (1,), "length")
    yield _text("gemma", "space-first-prompt-unknown", " five is it", (1,), "length", prompt_token_ids=None)
    yield _text("gemma", "ended", ended("gemma", "It is four."), (2,))
    yield _text("smollm2", "emoji", "So 👍🏽 it", (1,), "length")
    yield _text("smollm2", "call", PARIS, (1,), asked=TOOLS)
    yield _text("smollm2", "calls-uneven", f"{FIND}\n{OSLO}", (3, 8), asked=TOOLS)
    yield _text("llama", "text", "The weather is fine", (1,), "length", asked=TOOLS)
    yield _text("llama", "call", '{"name": "get_weather", "parameters": {"city": "Paris"}}', (1,), asked=TOOLS)
    yield _text("llama", "call-unicode", '{"name": "search", "parameters": {"query": "天气 🙂"}}', (1,), asked=TOOLS)
    call = '{"name": "search", "parameters": {"query": "logprobs"}}'
    yield _text("llama", "logprobs-call", call, (1,), logprobs=2, asked=TOOLS | {"logprobs": True, "top_logprobs": 2})
    yield _text("deepseek_v3", "text", "It is four.", (1,), "length", asked=TOOLS)
    yield _text("deepseek_v3", "call", deepseek_calls(("get_weather", '{"city": "Paris"}')), (1,), asked=TOOLS)


def _other_parsers() -> Iterator[Case]:
    yield _text("qwen3-coder", "call", coder_call("get_weather", city="Paris"), (1,), asked=TOOLS)
    yield _text("qwen3-coder", "call-uneven", coder_call("typed", text="5", count="5", flag="true"), UNEVENLY, asked=TOOLS)
    calls = coder_call("get_weather", city="Oslo") + "\n" + coder_call("search", query="x y")
    yield _text("qwen3-coder", "calls", calls, (3,), asked=TOOLS)
    yield _text("qwen3-coder", "call-behind-text", "I ask.\n" + coder_call("search", query="天气 🙂"), (1,), asked=TOOLS)
    yield _text("qwen3-r1", "thinking", "Two and two.\n</think>\n\nIt is four.", (1,), "length", turn=THINKING_ON)
    yield _text("qwen3-r1", "thinking-uneven", "Two and 🙂.\n</think>\n\nIt is five.", UNEVENLY, "length", turn=THINKING_ON)
    yield _text("qwen3-r1", "thinking-cut", "Two and", (1,), "length", turn=THINKING_ON)
    thought = "Here is my thought process: two and two.\nHere is my response: four."
    yield _text("smollm2-granite", "thinking", thought, (1,), "length")
    yield _text("smollm2-granite", "no-thinking", "It is four, of course.", (1,), "length")
    yield _text("llama-pythonic", "call", '[get_weather(city="Paris")]', (1,), asked=TOOLS)
    yield _text("llama-pythonic", "calls", "[search(query='x'), get_weather(city='Oslo')]", (1,), asked=TOOLS)
    yield _text("llama4-pythonic", "call", '[get_weather(city="Oslo")]', (1,), asked=TOOLS)


def _completion(server: str, name: str, calls: Sequence[Body], asked: Body | None = None, **of_body: Any) -> Case:
    body: Body = {"stream": True, **of_body}
    if asked is not None:
        body["completion_request"] = {"prompt": name, "stream": True, **asked}
    return Case(server, f"stream-completion-{name}", DERENDER_COMPLETION, body, tuple(calls))


def _completions() -> Iterator[Case]:
    for server, text in {
        "qwen3": "once 🙂 upon",
        "gemma": " there 🙂 was",
        "llama": "an old 🙂 one",
        "deepseek_v3": " 天气 and",
    }.items():
        yield _completion(
            server, "text", _chunks("text", tokens(server, text), (1,), "length"), asked={"max_tokens": len(text)}
        )
    server = "qwen3-plain"
    calls = _chunks("logprobs", tokens(server, "a 天 b 🙂"), (2,), "length", logprobs=2)
    yield _completion(server, "logprobs", calls, asked={"logprobs": 2})
    calls = _chunks("logprobs-none", tokens(server, "c d e"), (1,), "length", logprobs=0)
    yield _completion(server, "logprobs-none", calls, asked={"logprobs": 0}, prompt_token_ids=[5, 6])
    calls = [*_chunks("usage", tokens(server, ended(server, "f g")), (1,)), _usage("usage", 4, 3)]
    yield _completion(server, "usage", calls, prompt_tokens=4)
    calls = [*_chunks("flushed", tokens(server, "h 🙂")[:-1], (1,), None), _flush("flushed", "length")]
    yield _completion(server, "flushed", calls)
    both = [_chunks("two", tokens(server, f"{n} of two"), (1,), "length", index=n) for n in range(2)]
    yield _completion(server, "two", [call for pair in zip(*both, strict=True) for call in pair], asked={"n": 2})
    calls = _chunks("kept", tokens(server, "i<|im_start|>j"), (1,), "length")
    yield _completion(server, "kept", calls, asked={"skip_special_tokens": False})


def _refused() -> Iterator[Case]:
    """Calls that do not fit; those in front of them do."""
    server = "qwen3"
    good = _call("x", choice(tokens(server, "ok")[:1], None))
    two = _call("x", choice([5], None), choice([5], None, index=1))
    yield _stream(server, "error-two-choices", [two], asked=NO_THINKING, turn=THINKING_OFF)
    yield _stream(server, "error-two-choices-later", [good, two], asked=NO_THINKING, turn=THINKING_OFF)
    yield _stream(server, "error-prompt-unknown", [good], prompt_token_ids=None)
    yield _stream(server, "error-request-unknown", [good], chat_request=None)
    yield _stream(server, "error-other-model", [good], model="another")
    yield _stream(server, "error-no-chunk", [{}])
    yield _stream(server, "error-whole-response", [{"generate_response": {"choices": [choice([5])]}}])
    yield _stream(server, "error-state-text", [good | {"stream_state": "x"}])
    yield _stream(server, "error-state-list", [good, good | {"stream_state": [1]}], asked=NO_THINKING, turn=THINKING_OFF)
    yield _stream(server, "error-too-long", [_call("x", choice([5] * 2100, None))])
    yield _stream(server, "error-text-mode", [_call("x", choice([5], None) | {"text": "x"}, output_mode="text")])
    yield _completion(server, "error-two-choices", [two])
    yield _completion(server, "error-state-text", [good | {"stream_state": "x"}])
    yield _completion(server, "error-other-model", [good | {"model": "another"}])
