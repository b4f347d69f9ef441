"""One request on its way to the client: its chunks come in, its documents go out."""

from collections.abc import Sequence

from triton_renderer.derender.choice import Choice, Piece, Prompt, in_order
from triton_renderer.derender.documents import ChatDocuments, CompletionDocuments, Documents, Extras, JsonObject, Usage, dumped
from triton_renderer.derender.model import OutputModel
from triton_renderer.derender.reading import Reading
from triton_renderer.errors import RendererError
from triton_renderer.protocol.stages import ChunkChoice, DerenderContext, GeneratedChunk


class Answer:
    """The state of one request between its chunks."""

    def __init__(self, model: OutputModel, context: DerenderContext, is_strict: bool = True) -> None:
        """`is_strict`: a choice must have a finish reason, and logprobs where they are wanted; else these are null."""
        self._reading = Reading.of(model, context)
        self._prompt = Prompt(context.prompt_tail, context.reasoning_open, len(context.echo))
        self._is_strict = is_strict
        self._context = context
        self._documents: Documents = (
            CompletionDocuments(context)
            if context.kind == "completion"
            else ChatDocuments(context, has_parsers=self._reading.has_parsers)
        )
        self._choices: dict[int, Choice] = {}
        self._pieces: dict[int, list[Piece]] = {}  # of an answer that is no stream, kept until its end
        self._next_number = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def push(self, token_ids: Sequence[int], chunk: GeneratedChunk) -> list[bytes]:
        """`documents` as JSON."""
        return [dumped(document) for document in self.documents(token_ids, chunk)]

    def documents(self, token_ids: Sequence[int], chunk: GeneratedChunk) -> list[JsonObject]:
        """The documents that are ready: the newest of a stream, or the whole answer with its last chunk.

        Raises RendererError for a chunk that is not the next one, or that contradicts itself or an earlier one.
        """
        if chunk.number != self._next_number:
            raise RendererError(f"chunk {chunk.number} of request {chunk.id} came where {self._next_number} was due")
        self._next_number += 1
        if (announced := sum(choice.num_tokens for choice in chunk.choices)) != len(token_ids):
            raise RendererError(f"output_token_ids has {len(token_ids)} tokens, chunk announces {announced}")
        self._prompt_tokens = chunk.prompt_tokens or self._prompt_tokens
        self._cached_tokens = chunk.cached_tokens or self._cached_tokens
        documents: list[JsonObject] = []
        position = 0
        for part in chunk.choices:
            documents += self._continue(part, token_ids[position : position + part.num_tokens], chunk)
            position += part.num_tokens
        if chunk.final:
            documents += self._end(chunk)
        return documents

    def _continue(self, part: ChunkChoice, token_ids: Sequence[int], chunk: GeneratedChunk) -> list[JsonObject]:
        index = self._context.choice_offset + part.index
        choice = self._choices.get(index)
        documents: list[JsonObject] = []
        if choice is None:
            choice = self._choices[index] = Choice(self._reading, self._prompt)
            self._pieces[index] = []
            if self._context.stream:
                documents = self._documents.opening(index, self._continuous_usage(choice), self._prompt_token_ids(chunk))
        if choice.is_finished:
            raise RendererError(f"choice {part.index} of request {chunk.id} goes on behind its end")
        if self._context.want_logprobs and self._is_strict:
            self._check_logprobs(part, chunk.id)
        said = (token_ids, part.finish_reason, part.stop_reason, part.logprobs)
        # A chunk does not say whether its content or its calls come first: for a translator it has one of them only.
        pieces = [choice.push(*said)] if self._context.form is None else choice.push_apart(*said)
        return documents + self._give(index, pieces, choice)

    def _give(self, index: int, pieces: list[Piece], choice: Choice) -> list[JsonObject]:
        """The chunks that pieces make; none where they are kept for the whole answer."""
        if not self._context.stream:
            self._pieces[index] += pieces
            return []
        usage = self._continuous_usage(choice)
        deltas = [self._documents.delta(index, piece, usage) for piece in pieces]
        return [delta for delta in deltas if delta is not None]

    def _end(self, chunk: GeneratedChunk) -> list[JsonObject]:
        documents: list[JsonObject] = []
        for index, choice in self._choices.items():
            if not choice.is_finished:
                if self._is_strict:
                    raise RendererError(f"request {chunk.id} ended without a finish reason for choice {index}")
                documents += self._give(index, in_order(choice.close()), choice)
        usage = self._usage(list(self._choices.values()))
        if self._context.stream:
            return documents + ([self._documents.usage(usage)] if self._context.include_usage else [])
        extras = Extras(
            self._prompt_token_ids(chunk), chunk.prompt_logprobs, chunk.kv_transfer_params, chunk.ec_transfer_params
        )
        return [self._documents.whole(self._pieces, usage, extras)]

    def _prompt_token_ids(self, chunk: GeneratedChunk) -> list[int] | None:
        if not self._context.return_token_ids:
            return None
        return self._context.prompt_token_ids or chunk.prompt_token_ids

    def _continuous_usage(self, choice: Choice) -> Usage | None:
        return self._usage([choice]) if self._context.continuous_usage else None

    def _usage(self, choices: list[Choice]) -> Usage:
        return Usage(
            self._prompt_tokens,
            sum(choice.num_tokens for choice in choices),
            sum(choice.num_reasoning_tokens for choice in choices) if self._reading.reasoning_parser else None,
            self._cached_tokens,
        )

    def _check_logprobs(self, part: ChunkChoice, request_id: str) -> None:
        entries = len(part.logprobs.content or []) if part.logprobs else 0
        if entries != part.num_tokens:
            raise RendererError(f"choice {part.index} of request {request_id}: {entries} logprobs for {part.num_tokens} tokens")
