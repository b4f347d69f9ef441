"""The model's chat template: found once, probed for what it takes, run in transformers' sandbox."""

import inspect
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerFast, ProcessorMixin

from triton_renderer.errors import InvalidRequest
from triton_renderer.render.images import MediaPlace
from triton_renderer.render.item_cache import Modality
from triton_renderer.render.messages import ContentFormat, TemplateMessage, systems_first
from triton_renderer.render.tokenizer import PromptTokenizer
from triton_renderer.settings import SettingsError

MAX_REASON_LENGTH = 500
_REFUSED = ("chat_template", "conversation", "messages", "tools")
"""What the request's own fields say: a client cannot set them past these."""
_WITHOUT_EFFECT = frozenset(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters) | {"self"}
"""Names that are not variables of the template but arguments around it."""


class ChatTemplate:
    """Renders messages to the prompt's text, in which media tokens stand under `tokenizer`'s secret names."""

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        media: Mapping[Modality, MediaPlace],
        source: str,
        source_with_tools: str | None = None,
        *,
        is_requests: bool = False,
    ) -> None:
        """`is_requests`: a request brought it along, for its own messages: those may be the only ones that it renders.

        Raises SettingsError where another cannot render a plain user message, and where a picture's place is
        unclear; a template that places no videos takes none.
        """
        self._is_requests = is_requests
        self._hf: PreTrainedTokenizerFast = tokenizer.hf
        self._tokenizer = tokenizer
        self._source = tokenizer.hide(source)
        self._source_with_tools = tokenizer.hide(source_with_tools if source_with_tools is not None else source)
        self._special = {
            name: tokenizer.hide(token) for name, token in self._hf.special_tokens_map.items() if isinstance(token, str)
        }
        self._knows_developer = "'developer'" in source or '"developer"' in source
        self.content_format = self._detect(media)
        self.takes_late_systems = self._takes_late_systems()
        """A system message may also come behind others."""

    @classmethod
    def load(cls, model: str, tokenizer: PromptTokenizer, media: Mapping[Modality, MediaPlace]) -> "ChatTemplate | None":
        """The template that comes with the model; None where there is none.

        A processor's own template goes before the tokenizer's, unless tools are given: the reference's order.
        """
        own = ProcessorMixin.get_processor_dict(model)[0].get("chat_template") if media else None
        if tokenizer.hf.chat_template is None:
            return cls(tokenizer, media, own) if isinstance(own, str) else None
        plain = own if isinstance(own, str) else tokenizer.hf.get_chat_template()
        return cls(tokenizer, media, plain, tokenizer.hf.get_chat_template(tools=[{}]))

    def apply(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, str]] | None = None,
        variables: dict[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt's text.

        Raises InvalidRequest with the template's own reason where it refuses the messages, and for `variables` with a
        name that is not the client's to set.
        """
        variables = variables or {}
        for name in _REFUSED:
            if name in variables:
                where = f"chat_template_kwargs.{name}"
                raise InvalidRequest(f"{where}: this name is not a request's to set", where)
        if not self._knows_developer:
            messages = systems_first(messages)
        try:
            text: str = self._hf.apply_chat_template(
                list(messages),
                tools=tools,
                documents=documents,
                chat_template=self._source_with_tools if tools else self._source,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                **self._special | {name: value for name, value in variables.items() if name not in _WITHOUT_EFFECT},
            )
            text.encode()  # what a template of a request writes need not be text: half a surrogate pair is none
        except Exception as error:  # a template refuses by raising, or fails on messages it was not written for
            reason = f"the chat template refused the messages: {self._reason(error)}"
            if self._is_requests:
                raise InvalidRequest(f"chat_template: {reason}", "chat_template") from error
            raise InvalidRequest(reason, "messages") from error
        return text

    def _reason(self, error: BaseException) -> str:
        """The template's own words, which may be wrapped; never the secret names."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, jinja2.TemplateError):
            cause = cause.__cause__ or cause.__context__
        reason = str(cause or error).encode(errors="replace").decode()
        return self._tokenizer.reveal(reason)[:MAX_REASON_LENGTH]

    def _detect(self, media: Mapping[Modality, MediaPlace]) -> ContentFormat:
        """What the template takes, found out by rendering: reading its source would miss what macros and filters do."""
        mark = secrets.token_hex(8)
        as_list = self._try([{"type": "text", "text": mark}])
        # A template for strings fails on a list, or drops it, or prints it with its keys.
        takes_lists = mark in as_list and not re.search(rf"""['"]text['"]: ?['"]{mark}""", as_list)
        if not takes_lists and not self._is_requests and mark not in self._try(mark):
            raise SettingsError("MODEL: its chat template cannot render a user message: " + self._why_not(mark))
        parts = {modality: self._part(modality, place, takes_lists) for modality, place in media.items()}
        return ContentFormat(takes_lists, {modality: part for modality, part in parts.items() if part is not None})

    def _takes_late_systems(self) -> bool:
        content = [{"type": "text", "text": "t"}] if self.content_format.takes_lists else "t"
        try:
            self.apply([{"role": role, "content": content} for role in ("system", "user", "system", "user")])
        except InvalidRequest:
            return False
        return True

    def _part(self, modality: Modality, place: MediaPlace, takes_lists: bool) -> dict[str, Any] | None:
        slot = self._tokenizer.hide(place.slot)
        written_out = {"type": "text", "text": self._tokenizer.hide(place.slot.join(place.frame))}
        if not takes_lists:
            return written_out
        # Some templates take lists but know no pictures: then the tokens are written into the text.
        for part in ({"type": modality}, written_out):
            if self._try([part]).count(slot) == 1:
                return part
        if modality == "image":
            raise SettingsError(f"MODEL: its chat template does not place pictures with {place.slot}")
        return None

    def _try(self, content: Any) -> str:
        try:
            return self.apply([{"role": "user", "content": content}], documents=[])
        except InvalidRequest:
            return ""

    def _why_not(self, content: str) -> str:
        try:
            self.apply([{"role": "user", "content": content}])
        except InvalidRequest as error:
            return error.message
        return "its text does not come out"
