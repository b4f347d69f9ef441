"""Chat templates that requests bring along. A template is a program: only where the operator trusts requests with that."""

from collections.abc import Mapping
from functools import lru_cache

from triton_renderer.errors import InvalidRequest
from triton_renderer.render.images import MediaPlace
from triton_renderer.render.item_cache import Modality
from triton_renderer.render.template import ChatTemplate
from triton_renderer.render.tokenizer import PromptTokenizer
from triton_renderer.settings import SettingsError

MAX_TEMPLATES = 16
"""How many are kept ready for further requests."""


class RequestTemplates:
    """The templates of one model's requests. Safe to use from several threads."""

    def __init__(self, tokenizer: PromptTokenizer, media: Mapping[Modality, MediaPlace], *, trusted: bool) -> None:
        self._tokenizer = tokenizer
        self._media = media
        self._trusted = trusted
        self._made = lru_cache(MAX_TEMPLATES)(self._make)

    def get(self, source: str, where: str = "chat_template") -> ChatTemplate:
        """The template with this source, a client's, which stood in the request's field `where`.

        Raises InvalidRequest where templates of requests are not trusted, or this one's place for a picture is unclear.
        """
        if not self._trusted:
            raise InvalidRequest(
                f"{where}: a chat template of the request's own is not trusted; TRUST_REQUEST_CHAT_TEMPLATE=1 changes that",
                where,
            )
        return self._made(source)

    def _make(self, source: str) -> ChatTemplate:
        try:
            return ChatTemplate(self._tokenizer, self._media, source, is_requests=True)
        except SettingsError as error:
            reason = str(error).removeprefix("MODEL: its chat template ")
            raise InvalidRequest(f"chat_template: the template {reason}", "chat_template") from error
