"""Answers of the derender routes next to the reference's: what differs on purpose in a field is put right, and counted.

docs/compatibility.md says why. A rule changes only what it names; everything else is compared as it came.
"""

import copy
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.golden.outputs import ENDS, token_text
from tests.golden.servers import SERVERS

END_TOKEN = "the text of the token that ended the output is left out"
FINISH_REASON = "finish_reason is tool_calls also where the answer is no stream"
REASONING_TOKENS = "usage counts the reasoning tokens"
ARGUMENTS = "arguments are as the model wrote them, not written anew"
PARTS = "text and bytes in front of a part of a character are given with their own token"
SPECIAL_TOKENS = "special tokens that the tokenizer's configuration does not name are left out too"
BLANK = "blank text between reasoning and a call is left out of a stream too"
LOGPROBS = "logprobs are given in a stream that parsers read"
PARAM = "the error of a stream's call names what is wrong in it, not `stream`"

RULES = (END_TOKEN, FINISH_REASON, REASONING_TOKENS, ARGUMENTS, PARTS, SPECIAL_TOKENS, BLANK, LOGPROBS, PARAM)

UNNAMED = {"qwen3": ("<|im_start|>", "<|vision_start|>")}
"""Special tokens that only tokenizer.json calls so."""

MOST_AHEAD = 2
"""Characters that a token may have in front of the part of another one."""


@dataclass
class Comparison:
    """One case's answers. Each method raises AssertionError where they differ in more than `rules` put right."""

    server: str
    request: dict[str, Any]
    rules: set[str] = field(default_factory=set)

    def whole(self, ours: Any, reference: Any) -> None:
        """A chat completion or a completion."""
        ours, reference = copy.deepcopy(ours), copy.deepcopy(reference)
        self._put_head_right(ours, reference)
        for choice, other in zip(ours["choices"], reference["choices"], strict=True):
            self._put_logprobs_right(choice, other, _Progress())
            said, name = (other["message"], "content") if "message" in other else (other, "text")
            self._leave_out_special_tokens(said, name)
            self._cut_end(said, name, other)
            if "message" not in choice:
                continue
            self._put_calls_right(choice["message"].get("tool_calls", []), said.get("tool_calls", []))
            if said.get("tool_calls") and other["finish_reason"] == "stop" and not self._is_named:
                self.rules.add(FINISH_REASON)
                other["finish_reason"] = "tool_calls"
        assert ours == reference

    def stream(self, ours: Sequence[Any], reference: Sequence[Any]) -> None:
        """The answers to the calls of a stream that are no errors.

        With a parser, what the deltas add up to is compared: it is up to a parser when it knows what it reads. Without one,
        and in all else, each chunk is.
        """
        progress: dict[int, _Progress] = defaultdict(_Progress)
        assert len({answer["chunk"]["created"] for answer in ours}) <= 1
        for answer, recorded in zip(ours, reference, strict=True):
            assert answer.keys() == recorded.keys() == {"chunk"}
            chunk, other = copy.deepcopy(answer["chunk"]), copy.deepcopy(recorded["chunk"])
            self._put_head_right(chunk, other)
            for choice, other_choice in zip(chunk["choices"], other["choices"], strict=True):
                self._put_chunk_right(choice, other_choice, progress[choice["index"]])
            assert chunk == other
        for state in progress.values():
            assert state.text.ours == state.text.reference
            ours_said, said = state.message, state.other_message
            if said.last is not None:
                self._cut_end(said.texts, "content", said.last)
            if said.calls and said.texts["reasoning"] and (said.texts["content"] or "x").isspace():
                self.rules.add(BLANK)
                said.texts["content"] = None
            self._put_calls_right(list(ours_said.calls.values()), list(said.calls.values()))
            assert ours_said == said

    def error(self, reference: dict[str, Any]) -> dict[str, Any]:
        """The reference's error of a call as it is to be compared: it reads the body as one that is no stream as well."""
        if self.request.get("stream") is not True or reference["param"] != "stream":
            return reference
        self.rules.add(PARAM)
        return reference | {"param": None}

    def _put_chunk_right(self, ours: dict[str, Any], reference: dict[str, Any], progress: "_Progress") -> None:
        """A choice of a chunk. What is compared only in sum is taken out of both, and kept in `progress`."""
        if self._has_parsers and "delta" in ours and ours["logprobs"] and reference["logprobs"] is None:
            self.rules.add(LOGPROBS)
            ours["logprobs"] = None
        self._put_logprobs_right(ours, reference, progress)
        if self._has_parsers and "delta" in ours:
            progress.message.add(ours.pop("delta"))
            progress.other_message.add(reference.pop("delta"))
            if reference["finish_reason"] is not None:
                progress.other_message.last = reference
            return
        said, other, name = (ours["delta"], reference["delta"], "content") if "delta" in ours else (ours, reference, "text")
        self._leave_out_special_tokens(other, name)
        texts = said[name] or "", other[name] or ""
        progress.text.add(*texts)
        if texts[0] != texts[1]:
            self.rules.add(PARTS)
            said[name] = other[name]

    def _put_head_right(self, ours: dict[str, Any], reference: dict[str, Any]) -> None:
        """Time and usage."""
        del ours["created"], reference["created"]
        if (
            reference["usage"]
            and not reference["usage"]["completion_tokens_details"]
            and ours["usage"]["completion_tokens_details"]
        ):
            assert 0 <= ours["usage"]["completion_tokens_details"].pop("reasoning_tokens") <= ours["usage"]["completion_tokens"]
            assert not ours["usage"]["completion_tokens_details"]
            self.rules.add(REASONING_TOKENS)
            ours["usage"]["completion_tokens_details"] = None

    def _cut_end(self, texts: dict[str, Any], name: str, choice: dict[str, Any]) -> None:
        """Cuts the token that ended `choice` off the reference's text."""
        if choice["finish_reason"] != "stop" or isinstance(choice.get("stop_reason"), str):
            return
        token_id = choice.get("stop_reason")
        end = ENDS[SERVERS[self.server].model] if token_id is None else token_text(self.server, token_id)
        if (texts[name] or "").endswith(end):
            self.rules.add(END_TOKEN)
            texts[name] = texts[name].removesuffix(end) or (None if self._has_parsers else "")

    def _leave_out_special_tokens(self, texts: dict[str, Any], name: str) -> None:
        if self._has_parsers or self._asked.get("skip_special_tokens") is False:
            return
        for token in UNNAMED.get(SERVERS[self.server].model, ()):
            if token in (texts[name] or ""):
                self.rules.add(SPECIAL_TOKENS)
                texts[name] = texts[name].replace(token, "") or (None if self.request.get("stream") else "")

    def _put_calls_right(self, ours: list[dict[str, Any]], reference: list[dict[str, Any]]) -> None:
        """Ids are random: they only have to be there, and to be different ones."""
        ids = [call.pop("id") for call in ours]
        assert all(isinstance(call_id, str) and call_id for call_id in ids)
        assert len(set(ids)) == len(ids)
        for other in reference:
            del other["id"]
        for call, other in zip(ours, reference, strict=False):
            arguments, others = call["function"]["arguments"], other["function"]["arguments"]
            if arguments != others and json.loads(arguments) == json.loads(others):
                self.rules.add(ARGUMENTS)
                other["function"]["arguments"] = arguments

    def _put_logprobs_right(self, ours: dict[str, Any], reference: dict[str, Any], progress: "_Progress") -> None:
        """Of a character that begins in one token and ends in another the reference gives all, and all in front of it in the
        first token, to the last."""
        logprobs, others = ours["logprobs"] or {}, reference["logprobs"] or {}
        for entry, other in zip(logprobs.get("content") or [], others.get("content") or [], strict=True):
            progress.tokens.add(entry["token"], other["token"])
            progress.data += bytes(entry["bytes"])
            progress.other_data += bytes(other["bytes"])
            assert progress.data.startswith(progress.other_data)
            for candidate, candidate_there in zip(
                [entry, *entry["top_logprobs"]], [other, *other["top_logprobs"]], strict=True
            ):
                if bytes(candidate["bytes"]) != candidate["token"].encode():
                    self.rules.add(PARTS)
                    candidate |= {name: candidate_there[name] for name in ("token", "bytes")}
        if "text_offset" in logprobs:
            self._put_completion_logprobs_right(logprobs, others, progress.tokens)

    def _put_completion_logprobs_right(self, ours: dict[str, Any], reference: dict[str, Any], tokens: "_Joined") -> None:
        """The same for the form of completions, whose texts are keys as well."""
        for place, (token, other) in enumerate(zip(ours["tokens"], reference["tokens"], strict=True)):
            assert ours["text_offset"][place] - reference["text_offset"][place] == tokens.ahead
            if token != other or tokens.ahead:
                self.rules.add(PARTS)
                ours["tokens"][place], ours["text_offset"][place] = other, reference["text_offset"][place]
                top, other_top = ours["top_logprobs"][place], reference["top_logprobs"][place]
                assert [*(top or {}).values()] == [*(other_top or {}).values()]
                ours["top_logprobs"][place] = other_top
            tokens.add(token, other)

    @property
    def _asked(self) -> dict[str, Any]:
        asked: dict[str, Any] = self.request.get("chat_request") or self.request.get("completion_request") or {}
        return asked

    @property
    def _has_parsers(self) -> bool:
        server = SERVERS[self.server]
        return bool(server.tool_call_parser or server.reasoning_parser) and "chat_request" in self.request

    @property
    def _is_named(self) -> bool:
        return isinstance(self._asked.get("tool_choice"), dict)


@dataclass
class _Message:
    """What the deltas of a choice add up to."""

    texts: dict[str, Any] = field(default_factory=lambda: {"content": None, "reasoning": None})
    roles: list[Any] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    last: dict[str, Any] | None = field(default=None, compare=False)
    """The choice of the chunk that says how the output ended."""

    def add(self, delta: dict[str, Any]) -> None:
        """Appends `delta`. Raises AssertionError where it has other fields, or goes on with a call as another one."""
        self.roles.append(delta.pop("role"))
        for part in delta.pop("tool_calls", []):
            function = part.pop("function")
            call = self.calls.setdefault(
                part.pop("index"), {"id": None, "type": None, "function": {"name": None, "arguments": ""}}
            )
            for name in ("id", "type"):
                value = part.pop(name)
                assert value is None or call[name] in (None, value)
                call[name] = call[name] or value
            call["function"]["name"] = call["function"]["name"] or function.pop("name")
            call["function"]["arguments"] += function.pop("arguments") or ""
        for name in self.texts:
            text = delta.pop(name)
            self.texts[name] = self.texts[name] if not text else (self.texts[name] or "") + text
        assert not delta


@dataclass
class _Joined:
    """Texts that come in pieces: ours may be a little ahead."""

    ours: str = ""
    reference: str = ""

    def add(self, ours: str, reference: str) -> None:
        """Raises AssertionError where the texts go apart."""
        self.ours += ours
        self.reference += reference
        assert self.ours.startswith(self.reference)
        assert self.ahead <= MOST_AHEAD

    @property
    def ahead(self) -> int:
        """By how many characters."""
        return len(self.ours) - len(self.reference)


@dataclass
class _Progress:
    """What was compared of a choice so far."""

    text: _Joined = field(default_factory=_Joined)
    tokens: _Joined = field(default_factory=_Joined)
    data: bytes = b""
    other_data: bytes = b""
    message: _Message = field(default_factory=_Message)
    other_message: _Message = field(default_factory=_Message)
