"""Structured outputs: what `sampling_params.structured_outputs` allows next, by xgrammar.

A constraint is compiled by a thread of its own kind, never the engine's, and the compiled grammar is kept for the next
request that asks for the same. Each choice has a `Constraint` of its own, which follows its tokens.
"""

import json
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import torch
import xgrammar
from transformers import PreTrainedTokenizerFast

from triton_renderer.errors import InvalidRequest, QueueFull, RendererError
from triton_renderer.text.pieces import pieces_of
from triton_renderer.text.reasoning import ReasoningMarks, ReasoningState

COMPILE_TIMEOUT_S = 10.0
MAX_COMPILED_BYTES = 64 * 2**20
"""Memory of the compiled grammars that are kept."""
MAX_WAITING = 64
"""Requests that may wait for their grammar at the same time."""
MAX_DOCUMENT_CHARS = 2**18
MAX_NESTING = 64
"""Levels of a JSON schema, as in the reference; xgrammar descends by recursion, and thousands would overflow its stack."""
TAG_NESTING = 16
"""Further levels that a structural tag may put around a schema."""
MAX_WHITESPACE = 64
"""Characters of white space in one place of a JSON document: some models would not stop to write them."""
NUM_COMPILERS = 2

_OPTIONS = frozenset({"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"})
_IGNORED_BY_XGRAMMAR = frozenset(
    {
        "multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "not", "if", "dependentRequired",
        "dependentSchemas", "dependencies", "$dynamicRef",
    }
)  # fmt: skip
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SCHEMAS = ("items", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems")

Spec = tuple[str, str, bool]
"""What a compiled grammar is kept by: the kind of constraint, its document, and `disable_any_whitespace`."""
Job = tuple[tuple[Spec, bool], "Future[xgrammar.CompiledGrammar]"]
Done = Callable[["xgrammar.CompiledGrammar | RendererError"], None]


BUSY = "the grammars of other requests are still being compiled"


class Grammars:
    """Compiles constraints for one tokenizer. Safe to use from several threads."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        vocab_size: int,
        eos_token_ids: Collection[int],
        timeout_s: float = COMPILE_TIMEOUT_S,
        max_bytes: int = MAX_COMPILED_BYTES,
    ) -> None:
        """`vocab_size`: the model's, padding included. `max_bytes`: of compiled grammars that are kept."""
        pieces = pieces_of(tokenizer)
        texts = [pieces.bytes_of(token_id) for token_id in range(vocab_size)]
        self._timeout_s, self._max_bytes = timeout_s, max_bytes
        self.vocab_size = vocab_size
        self._eos = sorted(token_id for token_id in eos_token_ids if token_id < vocab_size)
        self._special = pieces.special_ids
        # A special token is text to the grammar only where the client gets to see that text.
        hidden = [b"" if token_id in pieces.special_ids else text for token_id, text in enumerate(texts)]
        self._compilers = {skip: self._compiler(hidden if skip else texts) for skip in (True, False)}
        self._compiled: OrderedDict[tuple[Spec, bool], xgrammar.CompiledGrammar] = OrderedDict()
        self._pending: dict[tuple[Spec, bool], Future[xgrammar.CompiledGrammar]] = {}
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # Daemons: a grammar that takes for ever must not keep the process from its end.
        for _ in range(NUM_COMPILERS):
            threading.Thread(target=self._work, name="grammar", daemon=True).start()

    def compile(self, structured_outputs: dict[str, Any], skip_special_tokens: bool, where: str, done: Done) -> None:
        """Calls `done` with the compiled grammar or with what is wrong: at once where it is known, else from a thread.

        `where`: the parameter that errors name. Raises InvalidRequest for a document that is no constraint.
        """
        spec, where = read_constraint(structured_outputs, where)
        key = (spec, skip_special_tokens)
        with self._lock:
            compiled = self._compiled.get(key)
            if compiled is None:
                if self._num_waiting >= MAX_WAITING:
                    raise QueueFull(f"the grammars of {MAX_WAITING} requests are being compiled, no more are taken")
                self._num_waiting += 1
                future = self._pending.get(key)
                if future is None:
                    future = self._pending[key] = Future()
                    self._jobs.put((key, future))
            else:
                self._compiled.move_to_end(key)
        if compiled is not None:
            done(compiled)
            return
        threading.Thread(target=self._wait, args=(key, future, where, done), name="grammar-wait", daemon=True).start()

    def close(self) -> None:
        """Ends the threads, each behind the grammar that it is at."""
        for _ in range(NUM_COMPILERS):
            self._jobs.put(None)

    def matcher(self, compiled: xgrammar.CompiledGrammar, stop_token_ids: Collection[int]) -> xgrammar.GrammarMatcher:
        """A matcher at the grammar's start. Behind its end come the model's end tokens, or special ones that stop."""
        # A stop token that is ordinary text ends the output wherever the grammar has a place for that text.
        ending = {*self._eos, *(token_id for token_id in stop_token_ids if token_id in self._special)}
        return xgrammar.GrammarMatcher(
            compiled, override_stop_tokens=sorted(ending) or None, terminate_without_stop_token=not ending
        )

    def _compiler(self, texts: list[bytes]) -> xgrammar.GrammarCompiler:
        info = xgrammar.TokenizerInfo(
            texts, xgrammar.VocabType.RAW, vocab_size=self.vocab_size, stop_token_ids=self._eos or None
        )
        return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            key, future = job
            spec, skip_special_tokens = key
            if not future.set_running_or_notify_cancel():
                continue
            try:
                compiled = _compile(self._compilers[skip_special_tokens], spec)
            except Exception as error:
                with self._lock:
                    del self._pending[key]
                future.set_exception(error)
            else:
                with self._lock:
                    del self._pending[key]
                    self._keep(key, compiled)
                future.set_result(compiled)

    def _keep(self, key: tuple[Spec, bool], compiled: xgrammar.CompiledGrammar) -> None:
        self._compiled[key] = compiled
        while len(self._compiled) > 1 and sum(kept.memory_size_bytes for kept in self._compiled.values()) > self._max_bytes:
            self._compiled.popitem(last=False)

    def _wait(self, key: tuple[Spec, bool], future: "Future[xgrammar.CompiledGrammar]", where: str, done: Done) -> None:
        result: xgrammar.CompiledGrammar | RendererError
        try:
            result = future.result(self._timeout_s)
        except TimeoutError:
            result = InvalidRequest(f"{where}: it takes longer than {self._timeout_s:g} s to compile", where)
            if future.cancel():  # nobody has begun with it, and nobody is to, after all who wanted it are told
                with self._lock:
                    self._pending.pop(key, None)
                result = QueueFull(BUSY)
        except CancelledError:
            result = QueueFull(BUSY)
        except RuntimeError as error:  # what xgrammar raises for every grammar that it does not take
            result = InvalidRequest(f"{where}: {_complaint(error)}", where)
        except Exception as error:
            result = RendererError(f"{where}: it could not be compiled")
            result.__cause__ = error
        with self._lock:
            self._num_waiting -= 1
        done(result)


class Constraint:
    """What one choice may go on with.

    The constraint holds behind the reasoning: `reasoning` is "open" where the prompt left it open, "closed" where there
    will be none, and None where the model's first token decides.
    """

    def __init__(
        self,
        matcher: xgrammar.GrammarMatcher,
        reasoning: ReasoningState = "closed",
        marks: ReasoningMarks | None = None,
    ) -> None:
        self.matcher = matcher
        self._marks = marks
        self._reasoning: ReasoningState = "closed" if marks is None else reasoning

    @property
    def holds(self) -> bool:
        """The next token has to be the grammar's, or `alternative`."""
        return self._reasoning != "open"

    @property
    def alternative(self) -> int | None:
        """A token that may come next besides those of the grammar: the one that opens the reasoning."""
        return self._marks.start if self._reasoning is None and self._marks is not None else None

    @property
    def is_finished(self) -> bool:
        """The grammar has come to its end, and so has the output."""
        return bool(self.matcher.is_terminated())

    def push(self, token_id: int) -> bool:
        """Follows the choice by one token. False where the grammar does not have it."""
        if self._reasoning != "closed" and self._marks is not None:
            if self._reasoning == "open":
                if token_id == self._marks.end:
                    self._reasoning = "closed"
                return True
            self._reasoning = "open" if token_id == self._marks.start else "closed"
            if self._reasoning == "open":
                return True
        return bool(self.matcher.accept_token(token_id))


def read_constraint(structured_outputs: dict[str, Any], where: str) -> tuple[Spec, str]:
    """The one constraint of a `structured_outputs` document, and its name behind `where`.

    Raises InvalidRequest for anything but one constraint of the documented form, and for a JSON schema that asks for what
    the compiler would silently leave out.
    """
    given = {name: value for name, value in structured_outputs.items() if value is not None}
    if given.get("whitespace_pattern"):
        raise InvalidRequest(f"{where}.whitespace_pattern: not supported", f"{where}.whitespace_pattern")
    kinds = [name for name in given if name not in _OPTIONS and not name.startswith("_")]
    if len(kinds) != 1 or kinds[0] not in _READERS:
        raise InvalidRequest(f"{where}: exactly one of {', '.join(_READERS)} is expected, not {kinds}", where)
    (kind,) = kinds
    if where.endswith("structured_outputs"):  # a response_format, or tools, have no such part
        where = f"{where}.{kind}"
    document = _READERS[kind](given[kind], where)
    if len(document) > MAX_DOCUMENT_CHARS:
        raise InvalidRequest(f"{where}: {len(document)} characters, at most {MAX_DOCUMENT_CHARS} are taken", where)
    return (kind, document, bool(given.get("disable_any_whitespace"))), where


def _read_schema(value: Any, where: str) -> str:
    schema = _json(value, where, MAX_NESTING)
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{where}: a JSON schema is an object, or true or false", where)
    for keyword in _ignored_keywords(schema):
        raise InvalidRequest(f"{where}: the JSON schema has {keyword}, which cannot be enforced", where)
    return json.dumps(schema, ensure_ascii=False)


def _read_json_object(value: Any, where: str) -> str:
    if value is not True:
        raise InvalidRequest(f"{where}: true is expected; leave it out where any output is fine", where)
    return '{"type": "object"}'


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidRequest(f"{where}: a text without NUL is expected", where)
    return value


def _read_choice(value: Any, where: str) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise InvalidRequest(f"{where}: a list of texts is expected, at least one", where)
    elements = [{"type": "const_string", "value": text} for text in dict.fromkeys(value)]
    return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": elements}}, ensure_ascii=False)


def _read_tag(value: Any, where: str) -> str:
    tag = _json(value, where, MAX_NESTING + TAG_NESTING)
    if not isinstance(tag, dict):
        raise InvalidRequest(f"{where}: an object is expected", where)
    return json.dumps(_in_new_form(tag, where) if "structures" in tag else tag, ensure_ascii=False)


def _in_new_form(tag: dict[str, Any], where: str) -> dict[str, Any]:
    """The form with `structures` and `triggers`, which the OpenAI route of the reference still documents."""
    try:
        tags = [
            {
                "type": "tag",
                "begin": structure["begin"],
                "content": {"type": "json_schema", "json_schema": structure["schema"]},
                "end": structure["end"],
            }
            for structure in tag["structures"]
        ]
        return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}}
    except (KeyError, TypeError) as error:
        raise InvalidRequest(f"{where}: begin, schema and end of each structure are expected, and triggers", where) from error


_READERS: dict[str, Callable[[Any, str], str]] = {
    "json": _read_schema,
    "json_object": _read_json_object,
    "regex": _read_text,
    "choice": _read_choice,
    "grammar": _read_text,
    "structural_tag": _read_tag,
}


def _json(value: Any, where: str, max_nesting: int) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{where}: not valid JSON", where) from error
    level, depth = [value], 0
    while level:
        if (depth := depth + 1) > max_nesting + 1:
            raise InvalidRequest(f"{where}: objects and arrays may nest {max_nesting} levels deep, not deeper", where)
        level = [inner for outer in level for inner in _children(outer)]
    return value


def _children(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _ignored_keywords(schema: Any) -> Iterator[str]:
    """The keywords of a schema, and of those in it, that xgrammar reads over."""
    if not isinstance(schema, dict):
        return
    yield from sorted(_IGNORED_BY_XGRAMMAR & schema.keys())
    if len(schema.get("allOf") or ()) > 1:
        yield "allOf with several schemas"
    if "pattern" in schema and ("minLength" in schema or "maxLength" in schema):
        yield "a pattern together with minLength or maxLength"
    if isinstance(schema.get("$ref"), str) and not schema["$ref"].startswith("#"):
        yield "$ref to another document"
    for name in _SCHEMAS_BY_NAME:
        if isinstance(schema.get(name), dict):
            for inner in schema[name].values():
                yield from _ignored_keywords(inner)
    for name in _LISTS_OF_SCHEMAS:
        if isinstance(schema.get(name), list):
            for inner in schema[name]:
                yield from _ignored_keywords(inner)
    for name in _SCHEMAS:
        yield from _ignored_keywords(schema.get(name))


def _compile(compiler: xgrammar.GrammarCompiler, spec: Spec) -> xgrammar.CompiledGrammar:
    """Raises RuntimeError for what is no grammar."""
    kind, document, compact = spec
    match kind:
        case "json" | "json_object":
            return compiler.compile_json_schema(
                document,
                any_whitespace=not compact,
                separators=(",", ":") if compact else None,
                max_whitespace_cnt=None if compact else MAX_WHITESPACE,
            )
        case "regex":
            return compiler.compile_regex(document)
        case "grammar":
            return compiler.compile_grammar(document) if "::=" in document else compiler.compile_lark(document)
    return compiler.compile_structural_tag(document)


def _complaint(error: RuntimeError) -> str:
    """xgrammar's words without the time and the place in its source."""
    return str(error).strip().split("\n")[0].rpartition(".cc:")[2].partition(": ")[2][:300] or "not a grammar"


_filler = xgrammar.BatchGrammarMatcher(max_threads=1)


def fill_bitmask(bitmask: torch.Tensor, constraints: list[Constraint], rows: list[int]) -> None:
    """Sets for each row which tokens its constraint lets through.

    bitmask: [batch, (vocabulary + 31) // 32] int32 on the CPU, bit `id % 32` of word `id // 32` for each token id.
    """
    _filler.batch_fill_next_token_bitmask([constraint.matcher for constraint in constraints], bitmask, rows)
    for row, constraint in zip(rows, constraints, strict=True):
        if (token_id := constraint.alternative) is not None:
            bitmask[row] |= packed([token_id], bitmask.shape[1])


def packed(token_ids: Collection[int], num_words: int) -> torch.Tensor:
    """The bitmask of these token ids alone, [num_words] int32."""
    bits = torch.zeros(num_words * 32, dtype=torch.bool)
    bits[list(token_ids)] = True
    weights = (1 << torch.arange(32, dtype=torch.int64)) * bits.view(num_words, 32)
    # The sum is a whole number of 32 bits without a sign: its upper half wraps round.
    return weights.sum(dim=1).to(torch.int32)
