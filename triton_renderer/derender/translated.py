"""An answer in the form of another API: made as a chat stream, and translated chunk by chunk."""

from collections.abc import Sequence

from triton_renderer.derender.answer import Answer
from triton_renderer.derender.documents import JsonObject, dumped
from triton_renderer.derender.model import OutputModel
from triton_renderer.protocol.dialects import translator
from triton_renderer.protocol.forms import AnswerForm
from triton_renderer.protocol.stages import DerenderContext, GeneratedChunk

AS_STREAM = {"stream": True, "include_usage": False, "continuous_usage": True}
"""What a context is set to for a translator: its chunks carry the usage, so that the one with the finish reason is the last."""


class TranslatedAnswer:
    """Does what `Answer` does. One that does not stream is what the events of its stream add up to."""

    def __init__(self, model: OutputModel, context: DerenderContext, form: AnswerForm, is_strict: bool = True) -> None:
        self._answer = Answer(model, context.model_copy(update=AS_STREAM), is_strict)
        self._translator = translator(form)
        self._is_stream = context.stream
        self._events: list[JsonObject] = []

    def push(self, token_ids: Sequence[int], chunk: GeneratedChunk) -> list[bytes]:
        """`documents` as JSON."""
        return [dumped(document) for document in self.documents(token_ids, chunk)]

    def documents(self, token_ids: Sequence[int], chunk: GeneratedChunk) -> list[JsonObject]:
        """The events that are ready, or the whole answer with its last chunk. Raises RendererError as `Answer` does."""
        chunks = self._answer.documents(token_ids, chunk)
        events = [event for document in chunks for event in self._translator.push(document)]
        if self._is_stream:
            return events
        self._events += events
        if not chunk.final:
            return []
        extras = {"kv_transfer_params": chunk.kv_transfer_params, "ec_transfer_params": chunk.ec_transfer_params}
        self._events += self._translator.finish()
        return [self._translator.whole(self._events, extras)]


def answer_for(model: OutputModel, context: DerenderContext, is_strict: bool = True) -> Answer | TranslatedAnswer:
    """A new answer in the form that `context` names."""
    if context.form is None:
        return Answer(model, context, is_strict)
    return TranslatedAnswer(model, context, context.form, is_strict)
