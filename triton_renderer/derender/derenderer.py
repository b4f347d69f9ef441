"""The derender stage: generated tokens in, the client's documents out. No weights, no GPU."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from triton_renderer.derender import one_shot
from triton_renderer.derender.documents import dumped
from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.open_requests import OpenAnswer, OpenRequests
from triton_renderer.derender.streaming import StreamDerenderer
from triton_renderer.derender.translated import answer_for
from triton_renderer.errors import BadBody, InvalidRequest, RendererError
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.derender import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderMessagesRequest,
    DerenderResponsesRequest,
)
from triton_renderer.protocol.stages import GeneratedChunk
from triton_renderer.settings import Settings

SPARE_REQUESTS = 64
"""Requests that may be open here although prefill_decode has ended them: their last chunk is on its way."""


class Derenderer:
    """Continues the requests of the `chat` ensemble, and answers the stateless derender routes.

    All go through the same assembly, so they answer the same for the same tokens. Not safe for use by several threads.
    """

    def __init__(self, model: OutputModel, open_requests: OpenRequests) -> None:
        self._model = model
        self._open_requests = open_requests
        self._streams = StreamDerenderer(model)

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Loads tokenizer and configuration. Raises SettingsError or CheckpointError where they are unusable."""
        limit = settings.max_running_requests + settings.max_waiting_requests + SPARE_REQUESTS
        return cls(OutputModel.load(settings), OpenRequests(limit, settings.request_timeout_s))

    def chunk(self, token_ids: npt.NDArray[np.int64], chunk: GeneratedChunk) -> list[bytes]:
        """The JSON documents that one response of prefill_decode makes ready.

        token_ids: int64 [tokens], the choices of `chunk` one after another. With a stream these are its next chunks, which
        may be none; without, the whole answer comes with the last chunk and nothing before.
        Raises RendererError, and forgets the request, where the chunk is not the one that was due: an earlier one was lost,
        or the request is not known (any more).
        """
        try:
            answer = self._open(chunk) if chunk.number == 0 else self._open_requests.get(chunk.id)
            if answer is None:
                raise RendererError(f"chunk {chunk.number} of request {chunk.id} came, which derender does not know")
            documents = answer.push(token_ids.tolist(), chunk)
        except Exception:
            self._open_requests.remove(chunk.id)
            raise
        if chunk.final:
            self._open_requests.remove(chunk.id)
        return documents

    def derender_chat(self, body: Any) -> bytes:
        """The answer of POST /v1/chat/completions/derender to `body`, parsed JSON: with `stream` one chunk and its state.

        Raises InvalidRequest (NotFound for another model's name) before anything is decoded.
        """
        if _streams(body):
            return self._streams.chat(body)
        return dumped(one_shot.derender_chat(parse(DerenderChatRequest, body), self._model))

    def derender_completion(self, body: Any) -> bytes:
        """The same for POST /v1/completions/derender."""
        if _streams(body):
            return self._streams.completion(body)
        return dumped(one_shot.derender_completion(parse(DerenderCompletionRequest, body), self._model))

    def derender_responses(self, body: Any) -> bytes:
        """The answer of POST /v1/responses/derender to `body`: a Response, or with `stream` some events and their state."""
        if _streams(body):
            return self._streams.responses(body)
        return dumped(one_shot.derender_responses(parse(DerenderResponsesRequest, body), self._model))

    def derender_messages(self, body: Any) -> bytes:
        """The same for POST /v1/messages/derender: a message."""
        if _streams(body):
            return self._streams.messages(body)
        return dumped(one_shot.derender_messages(parse(DerenderMessagesRequest, body), self._model))

    def _open(self, chunk: GeneratedChunk) -> OpenAnswer:
        if chunk.derender is None:
            raise InvalidRequest("a job with for_generate is for the model `render` alone, it has no text form", "for_generate")
        if self._open_requests.get(chunk.id) is not None:
            raise RendererError(f"the first chunk of request {chunk.id} came twice")
        answer = answer_for(self._model, chunk.derender)
        self._open_requests.add(chunk.id, answer)
        return answer


def _streams(body: Any) -> bool:
    if not isinstance(body, dict):
        raise BadBody("the body must be a JSON object")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise BadBody(f"stream: a boolean is expected, not {stream!r}", "stream")
    return bool(stream)
