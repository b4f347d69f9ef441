"""Running outputs of the bundled model's tokenizer through derender, whole and in streams."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from triton_renderer.derender.derenderer import Derenderer
from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.open_requests import OpenRequests
from triton_renderer.protocol.generate import GenerateLogprobs, GenerateTokenLogprob
from triton_renderer.protocol.stages import ChunkChoice, DerenderContext, GeneratedChunk
from triton_renderer.settings import BUNDLED_MODEL, Settings

PROMPT_TOKENS = 11
TYPES = {
    "chat.completion": ChatCompletion,
    "chat.completion.chunk": ChatCompletionChunk,
    "text_completion": Completion,
}


@cache
def model() -> OutputModel:
    """The bundled model, with the parsers qwen3 and hermes."""
    return OutputModel.load(Settings(model=str(BUNDLED_MODEL)))


def derenderer(served: OutputModel | None = None) -> Derenderer:
    return Derenderer(served or model(), OpenRequests(4, 60))


def tokens(text: str) -> list[int]:
    return list(model().tokenizer.encode(text, add_special_tokens=False))


def context(**options: Any) -> DerenderContext:
    options.setdefault("kind", "chat")
    options.setdefault("stream", False)
    options.setdefault("prompt_tail", tokens("a"))
    return DerenderContext(id="chatcmpl-7", created=1700000000, model="shapes-vl", **options)


@dataclass
class Output:
    """What the engine generates for one choice."""

    token_ids: list[int]
    finish_reason: str = "stop"
    stop_reason: int | str | None = None
    index: int = 0
    with_logprobs: bool = False

    def part(self, start: int, end: int) -> ChunkChoice:
        is_last = end == len(self.token_ids)
        return ChunkChoice(
            index=self.index,
            num_tokens=end - start,
            finish_reason=self.finish_reason if is_last else None,
            stop_reason=self.stop_reason if is_last else None,
            logprobs=logprobs_of(self.token_ids[start:end]) if self.with_logprobs else None,
        )


def logprobs_of(token_ids: Sequence[int]) -> GenerateLogprobs:
    entries = [{"token_id": token_id, "logprob": -0.5, "rank": 1} for token_id in token_ids]
    return GenerateLogprobs(content=[GenerateTokenLogprob(**entry, top_logprobs=[entry]) for entry in entries])


def checked(document: bytes) -> dict[str, Any]:
    """The document as JSON, after the openai client has taken it."""
    parsed: dict[str, Any] = json.loads(document)
    # OpenAI's types have no «abort», and a null only in chunks of chat, though OpenAI sends it for completions as well.
    unknown = ("abort",) if parsed["object"] == "chat.completion.chunk" else ("abort", None)
    choices = [
        choice | ({"finish_reason": "stop"} if choice["finish_reason"] in unknown else {}) for choice in parsed["choices"]
    ]
    TYPES[parsed["object"]].model_validate(parsed | {"choices": choices})
    return parsed


def whole(output: Output, served: OutputModel | None = None, **options: Any) -> dict[str, Any]:
    """The answer that is no stream."""
    chunk = GeneratedChunk(
        id="1",
        choices=[output.part(0, len(output.token_ids))],
        final=True,
        prompt_tokens=PROMPT_TOKENS,
        derender=context(**options),
    )
    (document,) = derenderer(served).chunk(np.array(output.token_ids, np.int64), chunk)
    return checked(document)


def stream(
    output: Output, cuts: Sequence[int] | None = None, served: OutputModel | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The documents of a stream, by default of one chunk a token."""
    cuts = range(len(output.token_ids) + 1) if cuts is None else cuts
    under_test = derenderer(served)
    documents = []
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        chunk = GeneratedChunk(
            id="1",
            number=number,
            choices=[output.part(start, end)],
            final=end == len(output.token_ids),
            prompt_tokens=PROMPT_TOKENS,
            derender=context(stream=True, **options) if number == 0 else None,
        )
        documents += under_test.chunk(np.array(output.token_ids[start:end], np.int64), chunk)
    return [checked(document) for document in documents]


@dataclass
class Answer:
    """One choice as the client sees it in the end; ids of calls are left out."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    tokens: list[str] = field(default_factory=list)
    """The texts of the logprobs."""
    token_ids: list[int] = field(default_factory=list)


def of_whole(document: dict[str, Any]) -> Answer:
    (choice,) = document["choices"]
    message = choice.get("message") or {"content": choice["text"]}
    return Answer(
        message.get("reasoning") or "",
        message["content"] or "",
        [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])],
        choice["finish_reason"],
        choice["stop_reason"],
        _texts(choice["logprobs"]),
        choice["token_ids"] or [],
    )


def of_stream(documents: list[dict[str, Any]]) -> Answer:
    answer = Answer()
    for document in documents:
        for choice in document["choices"]:
            assert answer.finish_reason is None, "nothing comes behind the finish reason"
            delta = choice["delta"] if "delta" in choice else {"content": choice["text"]}
            answer.reasoning += delta.get("reasoning") or ""
            answer.content += delta.get("content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(answer.calls)
                    answer.calls.append((call["function"]["name"], ""))
                name, arguments = answer.calls[call["index"]]
                answer.calls[call["index"]] = (name, arguments + call["function"]["arguments"])
            answer.finish_reason = choice["finish_reason"]
            answer.stop_reason = choice.get("stop_reason")
            answer.tokens += _texts(choice["logprobs"])
            answer.token_ids += choice.get("token_ids") or []
    return answer


def _texts(logprobs: dict[str, Any] | None) -> list[str]:
    if logprobs is None:
        return []
    return [entry["token"] for entry in logprobs["content"]] if "content" in logprobs else logprobs["tokens"]


def both(output: Output, served: OutputModel | None = None, **options: Any) -> Answer:
    """The answer, which must be the same whole and streamed token by token."""
    answer = of_whole(whole(output, served, **options))
    assert of_stream(stream(output, served=served, **options)) == answer
    return answer
