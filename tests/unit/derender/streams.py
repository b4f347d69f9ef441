"""Sending a generate stream through the streaming derender routes, chunk by chunk."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.unit.derender.answers import Output, logprobs_of, model, tokens
from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.streaming import StreamDerenderer

CHAT = {"messages": [{"role": "user", "content": "x"}]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
PROMPT = tokens("<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n")


def call(
    token_ids: list[int], state: Any = None, chat: dict[str, Any] | None = None, *, usage: Any = None, **choice: Any
) -> dict[str, Any]:
    """The body of one call of the chat route."""
    return {
        "stream": True,
        "generate_chunk": {
            "request_id": "generate-tokens-7",
            "choices": [{"index": 0, "token_ids": token_ids} | choice],
            "usage": usage,
        },
        "chat_request": CHAT | (chat or {}),
        **({"prompt_token_ids": PROMPT} if state is None else {"stream_state": state}),
    }


@dataclass
class Message:
    """A choice as a client puts it together."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None
    logprobs: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


@dataclass
class Stream:
    """One choice's stream: as many calls as there are chunks, with the state carried from each to the next."""

    kind: str = "chat"
    asked: dict[str, Any] = field(default_factory=dict)
    prompt: list[int] | None = field(default_factory=lambda: PROMPT)
    served: OutputModel | None = None
    index: int = 0
    state: Any = None
    chunks: list[dict[str, Any]] = field(default_factory=list)
    message: Message = field(default_factory=Message)

    def __post_init__(self) -> None:
        self.derenderer = StreamDerenderer(self.served or model(), lambda: 1700000000.5)

    def send(self, **chunk: Any) -> dict[str, Any]:
        """One call, with this generate chunk; its answer's chunk."""
        name = "chat_request" if self.kind == "chat" else "completion_request"
        request = (CHAT if self.kind == "chat" else {"prompt": "x"}) | self.asked
        body = {"stream": True, "generate_chunk": {"request_id": "generate-tokens-7", "choices": []} | chunk, name: request}
        body |= {"stream_state": self.state} if self.state else {"prompt_token_ids": self.prompt}
        answer = json.loads(getattr(self.derenderer, self.kind)(json.loads(json.dumps(body))))
        self.state = answer["stream_state"]
        self.chunks.append(answer["chunk"])
        for choice in answer["chunk"]["choices"]:
            self._add(choice)
        result: dict[str, Any] = answer["chunk"]
        return result

    def push(self, token_ids: list[int], *, logprobs: bool = False, **choice: Any) -> dict[str, Any]:
        """One call with more tokens of the choice."""
        entry = {"index": self.index, "token_ids": token_ids} | choice
        if logprobs:
            entry["logprobs"] = logprobs_of(token_ids).model_dump()
        return self.send(choices=[entry])

    def run(self, output: Output, cuts: Sequence[int] | None = None, *, finish_apart: bool = False) -> Message:
        """A whole output, by default one token a call; `finish_apart`: its finish reason comes behind all its tokens."""
        ending = {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
        length = len(output.token_ids)
        for start, end in itertools.pairwise(range(length + 1) if cuts is None else cuts):
            is_last = end == length and not finish_apart
            self.push(output.token_ids[start:end], logprobs=output.with_logprobs, **(ending if is_last else {}))
        if finish_apart:
            self.push([], **ending)
        return self.message

    def _add(self, choice: dict[str, Any]) -> None:
        message = self.message
        assert message.finish_reason is None, "nothing comes behind the finish reason"
        assert choice["index"] == self.index
        delta = choice["delta"] if self.kind == "chat" else {"content": choice["text"]}
        message.reasoning += delta.get("reasoning") or ""
        message.content += delta.get("content") or ""
        for part in delta.get("tool_calls", []):
            if part["id"] is not None:
                assert part["index"] == len(message.calls)
                message.calls.append((part["function"]["name"], ""))
                message.ids.append(part["id"])
            name, arguments = message.calls[part["index"]]
            message.calls[part["index"]] = (name, arguments + (part["function"]["arguments"] or ""))
        message.finish_reason, message.stop_reason = choice["finish_reason"], choice["stop_reason"]
        message.token_ids += choice["token_ids"] or []
        if logprobs := choice["logprobs"]:
            message.logprobs += logprobs["content"] if self.kind == "chat" else logprobs["tokens"]
            message.offsets += [] if self.kind == "chat" else logprobs["text_offset"]
