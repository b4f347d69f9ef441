"""Tool calls in the manner of Python, of Llama 3.2, ToolACE and their kin.

[get_weather(city="Paris", days=3), get_time()]
"""

import ast
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from triton_renderer.derender.parsers.as_json import as_json
from triton_renderer.derender.parsers.base import ParserState
from triton_renderer.derender.parsers.calls import CallParser, CallState
from triton_renderer.text.states import Count, Flag, Text, Texts
from triton_renderer.text.stop import beginning_at_end, first_of

_WORD_END = re.compile(r"[^\w.]")
_VALUE_MARK = re.compile(r"""['"\[\](){},]""")
_STRING_MARK = {quote: re.compile(rf"\\|{quote}") for quote in ("'", '"', "'''", '"""')}
_LITERAL = re.compile(r"""'''(?:\\.|[^\\])*?'''|\"""(?:\\.|[^\\])*?\"""|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_ESCAPED_OR_CONTROL = re.compile(r"\\.|[\n\r\t\x00]", re.DOTALL)
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_ZEROS = re.compile(r"(?<![\w.])0+(?=[1-9]\d*(?![\w.]))")
_MAX_KEYWORD = 1024
_WORDS: dict[str, Any] = {"null": None, "true": True, "false": False}


@dataclass
class PythonicState(CallState):
    """What is known between two pieces of text."""

    phase: Literal[
        "start",  # nothing but whitespace and lists of calls has come: a bracket is awaited
        "call",  # a call's name is awaited
        "name",
        "first",  # behind the parenthesis: a keyword or the end of the call
        "keyword",  # a keyword is awaited, or the end of the call
        "in_keyword",
        "equals",
        "value",
        "comma",  # behind a call: a comma or the end of the list
        "content",
    ] = "start"
    word: Texts = field(default_factory=list)  # the name or keyword that is being read
    name: Text = ""
    has_arguments: Flag = False
    text: Texts = field(default_factory=list)  # the value that is being read
    depth: Count = 0  # open brackets in it
    quote: Literal["", "'", '"', "'''", '"""'] = ""  # what ends the string in it that is open


class PythonicTools(CallParser):
    """A list of calls with which the output begins, the arguments converted to JSON one by one.

    A call has begun with its first keyword, or with its end where it has none; before that it is content. A value that is
    no literal becomes a string with what is written. Text behind the list is content.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    new_state: ClassVar[type[ParserState]] = PythonicState
    _state: PythonicState

    def _call_step(self, text: str) -> str:
        match self._state.phase:
            case "start":
                return self._start(text)
            case "name" | "in_keyword":
                return self._word(text)
            case "value":
                return self._value(text)
            case "content":
                return self._content(text)
        if text[0].isspace():
            return self._take(text, 1)
        return self._mark(text)

    def _start(self, text: str) -> str:
        if text[0].isspace():
            self._emit_content(text[0])
            return text[1:]
        if self._may_begin(text, self.markers):
            return self._hold(text)
        for marker in self.markers:
            if text.startswith(marker):
                return text[len(marker) :]
        if text[0] != "[":
            self._state.phase = "content"
            return text
        self._state.phase = "call"
        return self._take(text, 1)

    def _content(self, text: str) -> str:
        found = first_of(text, self.markers)
        if found is None:
            end = len(text) - (0 if self._final else beginning_at_end(text, self.markers))
            self._emit_content(text[:end])
            return self._hold(text[end:])
        position, marker = found
        self._emit_content(text[:position])
        self._state.phase = "start"
        return text[position + len(marker) :]

    def _mark(self, text: str) -> str:
        """A mark of the list or of a call, or the beginning of a word."""
        state = self._state
        is_word = not _WORD_END.match(text)
        match state.phase, text[0]:
            case "call", _ if is_word:
                state.phase, state.word = "name", []
                return text
            case (("first" | "keyword"), _) if is_word:
                state.phase, state.word = "in_keyword", []
                return text
            case (("first" | "keyword"), ")"):
                return self._end_call(self._take(text, 1))
            case "equals", "=":
                state.phase, state.text, state.depth, state.quote = "value", [], 0, ""
                return self._begin_call(self._take(text, 1))
            case "comma", ",":
                self._reset(phase="call")
                return text[1:]
            case "comma", "]":
                self._reset()
                return text[1:]
        return self._break(text)

    def _word(self, text: str) -> str:
        """The name of a call or of an argument."""
        state = self._state
        end = _WORD_END.search(text)
        position = end.start() if end else len(text)
        state.word.append(text[:position])
        text = self._take(text, position)
        if not text:
            return self._break(text) if state.named and sum(map(len, state.word)) > _MAX_KEYWORD else ""
        word = "".join(state.word)
        if not all(part.isidentifier() for part in word.split(".")) or len(word) > _MAX_KEYWORD:
            return self._break(text)
        if state.phase == "in_keyword":
            state.phase = "equals"
            return text
        if text[0] != "(":
            return self._break(text)
        state.name, state.phase = word, "first"
        return self._take(text, 1)

    def _value(self, text: str) -> str:
        """A value up to the comma or parenthesis behind it, with its brackets and strings followed."""
        state = self._state
        if state.quote:
            return self._in_string(text, state.quote)
        found = _VALUE_MARK.search(text)
        position = found.start() if found else len(text)
        state.text.append(text[:position])
        text = text[position:]
        if not text:
            return ""
        character, length = text[0], 1
        if character in "'\"":
            opening = text[: len(text) - len(text.lstrip(character))][:3]
            if len(opening) == len(text) < 3 and not self._final:
                return self._hold(text)
            length = len(opening)
            if length != 2:  # else it is an empty string
                state.quote = opening  # type: ignore[assignment]
        elif character in "([{":
            state.depth += 1
        elif state.depth:
            state.depth -= character in ")]}"
        elif character in ",)":
            return self._end_value(text)
        state.text.append(text[:length])
        return text[length:]

    def _in_string(self, text: str, quote: str) -> str:
        found = _STRING_MARK[quote].search(text)
        if found is None:
            end = len(text) - (0 if self._final else beginning_at_end(text, (quote,)))
            self._state.text.append(text[:end])
            return self._hold(text[end:])
        length = found.end()
        if found[0] == "\\":
            if length == len(text) and not self._final:
                self._state.text.append(text[: length - 1])
                return self._hold("\\")
            length += 1
        else:
            self._state.quote = ""
        self._state.text.append(text[:length])
        return text[length:]

    def _end_value(self, text: str) -> str:
        state = self._state
        opening = ", " if state.has_arguments else "{"
        self._emit_arguments(f"{opening}{as_json(''.join(state.word))}: {converted(''.join(state.text))}")
        state.has_arguments, state.phase, state.word, state.text = True, "keyword", [], []
        return self._end_call(text[1:]) if text[0] == ")" else text[1:]

    def _begin_call(self, text: str) -> str:
        if self._is_too_long:
            return self._as_content(text)
        if not self._state.named:
            self._start_call(self._state.name)
        return text

    def _end_call(self, text: str) -> str:
        """The call's parenthesis is closed in front of `text`."""
        if self._is_too_long:
            return self._as_content(text)
        self._begin_call("")
        self._emit_arguments("}" if self._state.has_arguments else "{}")
        self._reset(phase="comma")
        return text

    def _break(self, text: str) -> str:
        """`text` does not fit: a call that has begun ends here, what follows is content."""
        if not self._state.named:
            return self._as_content(text)
        self._emit_arguments("}" if self._state.has_arguments else "{}")
        word = "".join(self._state.word)  # it was to be a keyword
        self._reset(phase="content")
        return word + text

    def _as_content(self, text: str) -> str:
        rest = super()._as_content(text)
        self._state.phase = "content"
        return rest

    def _opening_length(self, raw: str) -> int:
        return len(raw)


def converted(text: str) -> str:
    """A Python literal as JSON; what is none, as a string.

    Beyond Python: the words and escapes of JSON, line breaks and other control characters within strings, numbers that begin
    with zeros. Tuples and sets become arrays.
    """
    text = text.strip()
    try:
        return as_json(_value_of(ast.parse(_as_python(text), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return as_json(text)


def _as_python(text: str) -> str:
    """`text` with what Python does not allow and models write."""
    parts, position = [], 0
    for literal in _LITERAL.finditer(text):
        parts.append(_ZEROS.sub("", text[position : literal.start()]))
        parts.append(_ESCAPED_OR_CONTROL.sub(_escape, literal[0]))
        position = literal.end()
    return "".join([*parts, _ZEROS.sub("", text[position:])])


def _escape(found: re.Match[str]) -> str:
    if found[0][0] != "\\":
        return repr(found[0])[1:-1]
    return "/" if found[0] == r"\/" else found[0]


def _character(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")


def _value_of(node: ast.expr) -> Any:
    """Raises ValueError for what JSON cannot say."""
    match node:
        case ast.Constant(value=str() as value):
            return _SURROGATE_PAIR.sub(_character, value)
        case ast.Constant(value=None | bool() | int() | float() as value):
            return value
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return [_value_of(element) for element in elements]
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            return {_value_of(key): _value_of(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)):
            return -number if isinstance(sign, ast.USub) else number
        case ast.JoinedStr(values=parts):  # an f-string is one where nothing is filled in
            return "".join(str(_value_of(part)) for part in parts)
    raise ValueError(f"{type(node).__name__} is no literal")
