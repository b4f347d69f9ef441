"""The prefill_decode stage: checks a request against the model and the encoder's rows, and gives it to the engine."""

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

import blake3
import numpy as np
import numpy.typing as npt
import torch
from xgrammar import CompiledGrammar

from triton_renderer import checkpoint
from triton_renderer.errors import InvalidRequest, RendererError, StageUnavailable
from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, BlockHashes, BlockPool, blocks_for
from triton_renderer.prefill_decode.compiling import CompilingRequests
from triton_renderer.prefill_decode.decode_graphs import CudaRecorder
from triton_renderer.prefill_decode.engine import INTERNAL_ERROR, Engine
from triton_renderer.prefill_decode.model_runner import TYPES, ModelRunner
from triton_renderer.prefill_decode.scheduler import Scheduler
from triton_renderer.prefill_decode.sequence import MultimodalInputs, Picture, PromptLogprobs, Request, Sequence, Sink
from triton_renderer.prefill_decode.shaping import Shaping, tokens_of_bad_words
from triton_renderer.prefill_decode.stopping import StopChecker
from triton_renderer.prefill_decode.structured import Constraint, Grammars
from triton_renderer.protocol.sampling import MAX_LOGPROBS
from triton_renderer.protocol.stages import EncodedItem, EncodedItems, RequestContext
from triton_renderer.settings import Settings, SettingsError
from triton_renderer.text.detokenizer import PROMPT_TAIL
from triton_renderer.text.logprobs import LogprobsDecoder
from triton_renderer.text.reasoning import ReasoningMarks, ReasoningState
from triton_renderer.text.tokenizer import eos_token_ids, load_tokenizer
from triton_renderer.transfer import to_device

log = logging.getLogger(__name__)

_EMBEDDING_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_BAD_WORDS = 128
"""Sequences of tokens, as in the reference: a word can be two, with and without a space in front."""


class PrefillDecode:
    """The language model behind an engine."""

    def __init__(self, runner: ModelRunner, settings: Settings) -> None:
        self._runner = runner
        self._request_timeout_s = settings.request_timeout_s
        self._tokenizer = load_tokenizer(settings.model)
        self.max_model_len = checkpoint.context_length(runner.config, settings)
        self._eos_token_ids = eos_token_ids(settings.model, runner.config, self._tokenizer)
        self._grammars = Grammars(self._tokenizer, vocab_size=runner.vocab_size, eos_token_ids=self._eos_token_ids)
        self._compiling = CompilingRequests()
        self._reasoning_parser = settings.reasoning_parser_name
        self._reasoning = ReasoningMarks.load(self._reasoning_parser, self._tokenizer)
        num_blocks = _num_blocks(runner, settings, self.max_model_len)
        runner.allocate_cache(num_blocks)
        if settings.cuda_graphs and runner.device.type == "cuda":
            runner.use_graphs(CudaRecorder())
        scheduler = Scheduler(
            BlockPool(num_blocks),
            max_running=settings.max_running_requests,
            max_waiting=settings.max_waiting_requests,
            max_step_tokens=max(settings.max_step_tokens, settings.max_running_requests),
            prefix_caching=settings.prefix_caching,
            whole_pictures=runner.pictures_are_whole,
            context_cost=runner.context_cost,
        )
        self.engine = Engine(runner, scheduler, settings.queue_timeout_s)
        self.engine.start()

    @classmethod
    def load(cls, settings: Settings) -> "PrefillDecode":
        """Loads the language model's weights and starts the engine. Raises CheckpointError or SettingsError."""
        started = time.monotonic()
        runner = ModelRunner.load(settings)
        size = runner.weight_bytes / 2**20
        log.info("%.1f MiB of weights loaded in %.1f s (%s, %s)", size, time.monotonic() - started, runner.dtype, runner.device)
        return cls(runner, settings)

    def submit(
        self,
        token_ids: npt.NDArray[np.int64],
        embeddings: torch.Tensor,
        encoded: EncodedItems,
        context: RequestContext,
        sink: Sink,
    ) -> None:
        """Starts a request; `sink` gets its chunks, or its failure.

        token_ids: [tokens] int64; embeddings: [bytes] uint8 on any device, as `encoded` describes; neither is kept.
        Raises InvalidRequest where they do not fit the model or each other.
        """
        self._check_sampling(context)
        self._check_tokens(token_ids, context)
        # A caller of this stage alone may leave the features out; encode must not leave out one of theirs.
        if len(encoded.items) < len(context.features):
            raise InvalidRequest(
                f"encoded describes {len(encoded.items)} items, the request has {len(context.features)}", "encoded"
            )
        multimodal, grids = self._multimodal(token_ids, embeddings, encoded)
        prompt = self._runner.make_prompt(token_ids.copy(), multimodal, grids)
        params = context.sampling_params
        bad_words = self._bad_words(context)
        make_request = functools.partial(
            Request,
            context=context,
            prompt=prompt,
            max_tokens=self._max_tokens(len(token_ids), context),
            sink=sink,
            ec_transfer_params=encoded.ec_transfer_params,
            prompt_logprobs=None
            if params.prompt_logprobs is None or context.stream
            else PromptLogprobs(
                prompt.num_tokens, params.prompt_logprobs, LogprobsDecoder(self._tokenizer, prompt.token_ids[:1].tolist()).texts
            ),
        )

        def start(grammar: CompiledGrammar | None) -> None:
            make_sequence = functools.partial(self._make_sequence, bad_words=bad_words, grammar=grammar)
            self.engine.add(make_request(make_sequence=make_sequence))

        if params.structured_outputs is None:
            start(None)
        else:
            self._start_compiled(context, sink, start)

    def _start_compiled(self, context: RequestContext, sink: Sink, start: Callable[[CompiledGrammar], None]) -> None:
        """Calls `start` when the request's grammar is there. Until then the engine does not know of the request."""
        structured_outputs = context.sampling_params.structured_outputs
        assert structured_outputs is not None

        def done(compiled: CompiledGrammar | RendererError) -> None:
            try:
                if isinstance(compiled, RendererError):
                    raise compiled
                start(compiled)
            except Exception as error:
                log.info("request %s was not started", context.id, exc_info=not isinstance(error, RendererError))
                sink.fail(error if isinstance(error, RendererError) else RendererError(INTERNAL_ERROR))
            finally:
                self.engine.abort(self._compiling.ended(context))

        where = context.constraint_param or "sampling_params.structured_outputs"
        if self._reasoning_parser == "openai_gptoss" and structured_outputs.get("structural_tag") is None:
            raise InvalidRequest(
                f"{where}: with REASONING_PARSER=openai_gptoss only a structural tag, which says how the channels go", where
            )
        self._compiling.began(context)
        try:
            self._grammars.compile(structured_outputs, context.sampling_params.skip_special_tokens, where, done)
        except BaseException:
            self._compiling.ended(context)
            raise

    def abort(self, request_ids: Iterable[str], remember: bool = False) -> None:
        """See `Engine.abort`."""
        ids = list(request_ids)
        self._compiling.abort(ids)
        self.engine.abort(ids, remember)

    def check_health(self) -> dict[str, int]:
        """Facts for whoever asks: the context length in tokens, the sequences that run and the requests that wait.

        Raises StageUnavailable unless the engine's thread runs and comes round.
        """
        if not self.engine.is_alive:
            raise StageUnavailable("the engine of prefill_decode has stopped")
        # A step may take long on a slow machine; past this limit every request in it has failed anyway.
        if (idle := time.monotonic() - self.engine.heartbeat) > self._request_timeout_s:
            raise StageUnavailable(f"the engine of prefill_decode has not made a step for {idle:.0f} s")
        return {"max_model_len": self.max_model_len} | self.engine.load

    def close(self) -> None:
        """Ends the engine; open requests fail."""
        self._grammars.close()
        self.engine.close()

    def _make_sequence(
        self, request: Request, index: int, *, bad_words: list[list[int]], grammar: CompiledGrammar | None
    ) -> Sequence:
        params = request.context.sampling_params
        generator = None
        if not params.is_greedy:
            generator = torch.Generator()
            if params.seed is None:
                generator.seed()
            else:
                generator.manual_seed(params.seed + index)
        stop = StopChecker(
            params,
            request.max_tokens,
            eos_token_ids=self._eos_token_ids,
            tokenizer=self._tokenizer,
            prompt_tail=request.prompt.token_ids[-PROMPT_TAIL:].tolist(),
            want_text=request.context.output_mode == "text",
        )
        hashes = BlockHashes(
            request.context.cache_salt,
            [(picture.start, picture.end, picture.digest) for picture in request.prompt.pictures],
        )
        shaping = Shaping(params, request.prompt.token_ids, stop.ending_ids, bad_words, self._runner.vocab_size)
        constraint = None
        if grammar is not None:
            constraint = Constraint(
                self._grammars.matcher(grammar, params.stop_token_ids), self._reasoning_state(request), self._reasoning
            )
        return Sequence(request, index, stop, generator, hashes, shaping, constraint)

    def _reasoning_state(self, request: Request) -> ReasoningState:
        """What the prompt says of the reasoning, unless the client knows better."""
        if self._reasoning is None or request.context.reasoning_ended:
            return "closed"
        return self._reasoning.state(request.prompt.token_ids)

    def _bad_words(self, context: RequestContext) -> list[list[int]]:
        where = "sampling_params.bad_words"
        words = list(dict.fromkeys(context.sampling_params.bad_words or ()))
        if "" in words:
            raise InvalidRequest(f"{where}: no word may be empty", where)

        def encode(text: str) -> list[int]:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
            return ids

        try:
            found = tokens_of_bad_words(words[: MAX_BAD_WORDS + 1], encode)
        except ValueError as error:
            raise InvalidRequest(f"{where}: {error}", where) from error
        if len(found) > MAX_BAD_WORDS:
            raise InvalidRequest(f"{where}: they make more than {MAX_BAD_WORDS} sequences of tokens", where)
        return found

    def _check_sampling(self, context: RequestContext) -> None:
        params = context.sampling_params
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name)
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                where = f"sampling_params.{name}"
                raise InvalidRequest(f"{where}: 0 to {MAX_LOGPROBS} is expected, not {count}", where)
        if params.prompt_logprobs and context.stream:
            where = "sampling_params.prompt_logprobs"
            raise InvalidRequest(f"{where}: not with stream: true", where)
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token_id in getattr(params, name) or ():
                self._check_token(token_id, f"sampling_params.{name}")
        ending = set(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_token_ids)
        if params.min_tokens and params.allowed_token_ids and ending.issuperset(params.allowed_token_ids):
            where = "sampling_params.allowed_token_ids"
            raise InvalidRequest(f"{where}: all of them end the output, and before min_tokens none may", where)
        if context.kv_transfer_params:
            raise InvalidRequest("kv_transfer_params is not supported by this server", "kv_transfer_params")

    def _check_token(self, token_id: int, where: str) -> None:
        if not 0 <= token_id < self._runner.vocab_size:
            raise InvalidRequest(f"{where}: {token_id} is not one of the {self._runner.vocab_size} token ids", where)

    def _check_tokens(self, token_ids: npt.NDArray[np.int64], context: RequestContext) -> None:
        if token_ids.ndim != 1 or token_ids.size == 0:
            raise InvalidRequest(f"token_ids has shape {list(token_ids.shape)}, at least one token is needed", "token_ids")
        for extreme in (int(token_ids.min()), int(token_ids.max())):
            self._check_token(extreme, "token_ids")
        if len(token_ids) >= self.max_model_len:
            raise InvalidRequest(
                f"the prompt has {len(token_ids)} tokens and leaves no room for output in the context of {self.max_model_len}",
                "token_ids",
            )
        max_tokens = context.sampling_params.max_tokens
        if max_tokens is not None and max_tokens > self.max_model_len:
            raise InvalidRequest(
                f"max_tokens is {max_tokens}, the model's context has {self.max_model_len} tokens", "sampling_params.max_tokens"
            )

    def _max_tokens(self, num_prompt_tokens: int, context: RequestContext) -> int:
        room = self.max_model_len - num_prompt_tokens
        asked = context.sampling_params.max_tokens
        return room if asked is None else min(asked, room)

    def _multimodal(
        self, token_ids: npt.NDArray[np.int64], embeddings: torch.Tensor, encoded: EncodedItems
    ) -> tuple[MultimodalInputs | None, list[dict[str, torch.Tensor]]]:
        """The rows of each item in the order of the prompt, checked against its placeholders, and the items' grids."""
        types = self._runner.token_types(token_ids)
        items = sorted(encoded.items, key=lambda item: item.placeholder.offset)
        _check_placeholders(items, types)
        if not items and embeddings.numel() == 0:
            return None, []
        features = self._features(embeddings, encoded)
        order = sorted(range(len(features)), key=lambda index: encoded.items[index].placeholder.offset)
        ordered = [features[index] for index in order]
        grids = [self._runner.checked_grids(item) for item in items]
        places = types.nonzero()[0]
        # A range may begin and end with tokens of the text: the picture is what takes rows.
        behind = np.cumsum([item.rows for item in items])
        pictures = tuple(
            Picture(int(places[end - item.rows]), int(places[end - 1]) + 1, _digest(rows, grid))
            for item, end, rows, grid in zip(items, behind, ordered, grids, strict=True)
            if item.rows
        )
        is_video = types[places] == TYPES["video"]
        of_video = to_device(torch.from_numpy(is_video), self._runner.device) if is_video.any() else None
        return MultimodalInputs(torch.cat(ordered, dim=1), places, pictures, encoded.form, of_video), grids

    def _features(self, embeddings: torch.Tensor, encoded: EncodedItems) -> list[torch.Tensor]:
        """For each item [1 + deepstack, rows, hidden], a copy in the model's dtype on its device."""
        if encoded.dtype not in _EMBEDDING_DTYPES:
            raise InvalidRequest(f"embeddings of dtype {encoded.dtype!r} are not accepted", "encoded")
        dtype = _EMBEDDING_DTYPES[encoded.dtype]
        if encoded.deepstack != self._runner.num_deepstack:
            raise InvalidRequest(
                f"encoded has {encoded.deepstack} DeepStack sets, the model takes {self._runner.num_deepstack}", "encoded"
            )
        depth, hidden = 1 + encoded.deepstack, self._runner.config.get_text_config().hidden_size
        shapes = [(depth, item.rows, encoded.hidden) for item in encoded.items]
        expected = sum(depth * rows * width for depth, rows, width in shapes) * dtype.itemsize
        if encoded.hidden != hidden or embeddings.numel() != expected:
            raise InvalidRequest(
                f"embeddings has {embeddings.numel()} bytes of width {encoded.hidden}; {expected} of width {hidden} are expected",
                "embeddings",
            )
        rows = embeddings.view(dtype).to(self._runner.device, self._runner.dtype, copy=True)
        parts = rows.split([depth * count * width for depth, count, width in shapes])  # type: ignore[no-untyped-call]
        if not bool(rows.isfinite().all()):
            wrong = next(item for item, part in zip(encoded.items, parts, strict=True) if not bool(part.isfinite().all()))
            where = _place(wrong, encoded.items)
            raise InvalidRequest(f"{where}: the encoder's rows of it are not finite", where)
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _place(item: EncodedItem, items: list[EncodedItem]) -> str:
    """What errors call an item of the prompt: its number among those of its modality."""
    offsets = sorted(other.placeholder.offset for other in items if other.modality == item.modality)
    return f"features.{item.modality}.{offsets.index(item.placeholder.offset)}"


def _digest(rows: torch.Tensor, grid: dict[str, torch.Tensor]) -> bytes:
    """What a picture is to the KV cache: 32 bytes over its rows and its grid. Nobody is taken at his word for it.

    rows: [1 + deepstack, rows, hidden].
    """
    hasher = blake3.blake3(repr(sorted((name, value.tolist()) for name, value in grid.items())).encode())
    return hasher.update(rows.contiguous().view(torch.uint8).cpu().numpy().data).digest()


def _num_blocks(runner: ModelRunner, settings: Settings, max_model_len: int) -> int:
    """Blocks that the memory for the KV cache holds, the null block among them.

    Raises SettingsError where one request of the longest kind would not fit: it could never end.
    """
    size, budget = runner.bytes_per_block, settings.kv_cache_bytes
    if budget is None:
        budget = _free_bytes(runner.device)
    needed = blocks_for(max_model_len + 1) + 1
    if budget // size < needed:
        raise SettingsError(
            f"KV_CACHE_BYTES={budget} holds {budget // size * BLOCK_TOKENS} tokens, a request may have {max_model_len}: "
            f"{needed * size} bytes are needed, or a smaller MAX_MODEL_LEN"
        )
    # More than all places can use at once would only make the cache of prefixes larger, which is welcome.
    blocks = budget // size
    log.info("KV cache: %d blocks of %d tokens, %.1f MiB", blocks, BLOCK_TOKENS, blocks * size / 2**20)
    return int(blocks)


def _free_bytes(device: torch.device) -> int:
    """The default budget: on a GPU most of what the weights have left, else a gibibyte."""
    if device.type != "cuda":
        return 2**30
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * 0.8)


def _check_placeholders(items: list[EncodedItem], types: npt.NDArray[np.int32]) -> None:
    """Every token that takes a row belongs to one placeholder range, and each range has as many as its item has rows.

    items: ordered by offset. types: [tokens], as `ModelRunner.token_types` has them.
    """
    end = 0
    outside = types != 0
    counts: Counter[str] = Counter()
    for item in items:
        start, where = item.placeholder.offset, f"features.{item.modality}.{counts[item.modality]}"
        counts[item.modality] += 1
        if start < end or start + item.placeholder.length > len(types):
            raise InvalidRequest(f"{where}: its placeholder range overlaps another or leaves the prompt", where)
        end = start + item.placeholder.length
        inside = types[start:end]
        tokens = np.count_nonzero(inside == TYPES.get(item.modality, -1))
        if tokens != item.rows or tokens != np.count_nonzero(inside):
            raise InvalidRequest(
                f"{where}: its placeholder range has {tokens} {item.modality} tokens, the item has {item.rows} rows", where
            )
        outside[start:end] = False
    if outside.any():
        position = int(outside.argmax())
        raise InvalidRequest(
            f"token_ids has {'an image' if types[position] == TYPES['image'] else 'a video'} token at position {position}, outside every "
            "placeholder range",
            "token_ids",
        )
