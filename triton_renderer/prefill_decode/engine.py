"""The engine: one thread that schedules, runs the model, samples, and hands the tokens out.

    add, abort (any thread) ─→ inbox ─→ step: schedule → decode → prefill → sample → stop? → sink
                                                      one forward pass for all running sequences

A request ends exactly once, whatever happens: with its final chunk, or with `sink.fail`. An exception in a prefill fails
that request. One in the batch's decode step, or while the cache changes, fails all that are not merely waiting, since the
cache can no longer be trusted: it is thrown away, and the engine goes on.
"""

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable

import torch
from transformers import DynamicCache

from triton_renderer.errors import Cancelled, RendererError, StageUnavailable
from triton_renderer.prefill_decode.model_runner import ModelRunner
from triton_renderer.prefill_decode.sampler import sample
from triton_renderer.prefill_decode.scheduler import Scheduler, Step
from triton_renderer.prefill_decode.sequence import Request, Sequence
from triton_renderer.protocol.generate import GenerateLogprobs
from triton_renderer.protocol.stages import ChunkChoice, GeneratedChunk

log = logging.getLogger(__name__)

MAX_REMEMBERED_ABORTS = 10_000
CANCEL_POLL_S = 0.02
"""How often open requests are asked whether their client is gone: each answer is a round trip to Triton's process."""

INTERNAL_ERROR = "the engine failed on this request; the server's log has the reason"


class Engine:
    """Owns the model, the KV cache and every request from `add` to its end."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._rows: list[Sequence] = []  # sequence of each row of the KV cache
        self._requests: dict[int, Request] = {}  # open ones, by arrival
        # An abort can overtake its request, which may still be in an earlier stage.
        self._aborted: OrderedDict[str, None] = OrderedDict()
        self._closed = False
        self._lock = threading.Lock()  # orders add against close
        self._next_poll = 0.0
        self.heartbeat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts the engine's thread."""
        self._thread.start()

    def add(self, request: Request) -> None:
        """Queues a request; its sink gets what becomes of it. From any thread."""
        with self._lock:
            if self._closed:
                request.sink.fail(StageUnavailable("the server is shutting down"))
                return
            self._inbox.put(lambda: self._add(request))

    def abort(self, request_ids: Iterable[str], remember: bool = False) -> None:
        """Ends the requests with these internal or client ids: their choices finish with `abort`. From any thread.

        With `remember`, an internal id that is not here yet ends its request when it comes from an earlier stage. A
        client's id is not to be remembered, since the client may use it again.
        """
        ids = list(request_ids)
        with self._lock:
            if not self._closed:
                self._inbox.put(lambda: self._abort(ids, remember))

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends the thread; every open request fails with StageUnavailable. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """The thread runs."""
        return self._thread.is_alive()

    @property
    def load(self) -> dict[str, int]:
        """Sequences that run and requests that wait, as of the last step."""
        return {"running": len(self._scheduler.running), "waiting": len(self._scheduler.waiting)}

    # Below: the engine's thread only.

    @torch.inference_mode()  # of this thread, so that the cache's buffers are inference tensors throughout
    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            with self._lock:
                self._closed = True
            while self._take_messages_safely(block=False) and not self._inbox.empty():
                pass
            for request in list(self._requests.values()):
                request.sink.fail(StageUnavailable("the server is shutting down"))
            self._requests.clear()
            self._rows.clear()
            self._runner.cache.clear()

    def _turn(self) -> bool:
        """One round: messages, then a step. False when the engine is to end."""
        if not self._take_messages_safely():
            return False
        self.heartbeat = time.monotonic()  # an idle engine comes round as well
        try:
            self._drop_cancelled()
            self._step()
        except Exception:
            log.exception("a step failed")
            self._start_over()
        return True

    def _take_messages_safely(self, block: bool = True) -> bool:
        try:
            return self._take_messages(block)
        except Exception:
            log.exception("a message failed")
            self._start_over()
            return True

    def _start_over(self, keep: Collection[Request] = ()) -> None:
        """Throws the cache away and fails every request that had a part in it; those that wait, and `keep`, stay."""
        self._rows.clear()  # first, so that nothing of the broken cache is touched again
        self._runner.cache.clear()
        for request in list(self._requests.values()):
            if request not in self._scheduler.waiting and request not in keep:
                self._end(request, RendererError(INTERNAL_ERROR))

    def _take_messages(self, block: bool = True) -> bool:
        """Handles what came in, waiting for it where there is nothing to do. False when the engine is to end."""
        wait = block and self._scheduler.is_idle
        if wait:
            self._runner.cache.check_integrity()
        while True:
            try:
                message = self._inbox.get(block=wait, timeout=1.0 if wait else None)
            except queue.Empty:
                return True
            if message is None:
                return False
            message()
            wait = False

    def _add(self, request: Request) -> None:
        self._requests[request.arrival] = request
        if request.id in self._aborted:
            del self._aborted[request.id]
            self._finish_aborted(request)
            return
        try:
            self._scheduler.add(request)
        except RendererError as error:
            self._end(request, error)

    def _abort(self, request_ids: list[str], remember: bool) -> None:
        for request_id in request_ids:
            found = [request for request in self._requests.values() if request.answers_to(request_id)]
            for request in found:
                self._finish_aborted(request)
            if remember and not found:
                self._aborted[request_id] = None
                if len(self._aborted) > MAX_REMEMBERED_ABORTS:
                    self._aborted.popitem(last=False)

    def _finish_aborted(self, request: Request) -> None:
        for sequence in request.sequences:
            if not sequence.is_finished:
                sequence.finish_reason = "abort"
        log.info("request %s aborted after %d output tokens", request.id, request.num_output_tokens)
        self._forget(request)
        self._deliver(request)

    def _drop_cancelled(self) -> None:
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + CANCEL_POLL_S
        for request in list(self._requests.values()):
            if request.sink.is_cancelled():
                log.info("request %s cancelled after %d output tokens", request.id, request.num_output_tokens)
                self._end(request, Cancelled("the client cancelled the request"))

    def _step(self) -> None:
        step = self._scheduler.schedule()
        try:
            self._decode(step)
        except Exception:
            log.exception("a decode step failed; %d requests with it", len({id(s.request) for s in step.decodes}))
            self._start_over(keep=step.prefills)
        for request in step.prefills:
            cache = self._prefill(request)
            if cache is not None:
                self._join(request, cache)

    def _decode(self, step: Step) -> None:
        if not step.decodes:
            return
        rows = self._rows
        self.heartbeat = time.monotonic()
        logits = self._runner.decode([s.output_ids[-1] for s in rows], [s.position for s in rows])
        failed = self._append(logits, rows)
        for row in range(len(rows) - 1, -1, -1):
            if rows[row].is_finished:
                self._leave(row)
        self._scheduler.retire()
        for request, error in failed.items():
            self._end(request, error)
        self._deliver_all([sequence for sequence in step.decodes if sequence.request not in failed])

    def _prefill(self, request: Request) -> DynamicCache | None:
        """Prefills and samples the first tokens. None where it failed, and the request with it."""
        self.heartbeat = time.monotonic()
        try:
            logits, cache = self._runner.prefill(request.prompt)
            if error := self._append(logits.expand(len(request.sequences), -1), request.sequences).get(request):
                raise error
        except Exception as error:
            if not isinstance(error, RendererError):
                log.exception("the prefill of request %s failed", request.id)
                error = RendererError(INTERNAL_ERROR)
            self._end(request, error)
            return None
        return cache

    def _join(self, request: Request, cache: DynamicCache) -> None:
        for sequence in request.sequences:
            if not sequence.is_finished:
                self._runner.cache.join(cache)
                self._rows.append(sequence)
        self._scheduler.started(request)
        self._deliver_all(request.sequences)

    def _append(self, logits: torch.Tensor, sequences: list[Sequence]) -> dict[Request, RendererError]:
        """Samples and notes one token of each sequence; returns the requests that cannot go on.

        logits: [sequences, vocabulary].
        """
        sampled = sample(logits, sequences)
        failed = {
            sequence.request: error for sequence, error in zip(sequences, sampled.errors, strict=True) if error is not None
        }
        for sequence, token_id, logprob in zip(sequences, sampled.token_ids, sampled.logprobs, strict=True):
            if sequence.request in failed:
                continue
            sequence.output_ids.append(token_id)
            if logprob is not None:
                sequence.logprobs.append(logprob)
            sequence.finish_reason, sequence.stop_reason = sequence.stop.push(token_id)
        return failed

    def _deliver_all(self, sequences: list[Sequence]) -> None:
        for request in dict.fromkeys(sequence.request for sequence in sequences):
            if request.is_finished:
                self._forget(request)
            if request.context.stream or request.is_finished:
                self._deliver(request)

    def _deliver(self, request: Request) -> None:
        """Sends what is new. Without streaming that is everything, at the end."""
        token_ids: list[int] = []
        choices = []
        for sequence in request.sequences:
            new = sequence.output_ids[sequence.num_sent :]
            if sequence.end_is_sent or not (new or sequence.is_finished):
                continue
            choices.append(_choice(sequence, new))
            token_ids += new
            sequence.num_sent = len(sequence.output_ids)
            sequence.end_is_sent = sequence.is_finished
        request.sink.send(_chunk(request, choices), token_ids)
        request.num_chunks += 1

    def _end(self, request: Request, error: RendererError) -> None:
        """The request ends without an answer."""
        self._forget(request)
        request.sink.fail(error)

    def _forget(self, request: Request) -> None:
        for row in range(len(self._rows) - 1, -1, -1):
            if self._rows[row].request is request:
                self._leave(row)
        self._scheduler.remove(request)
        self._requests.pop(request.arrival, None)  # last: until here a failure still finds it, and tells it

    def _leave(self, row: int) -> None:
        """Frees a row of the cache; the last row's sequence takes its place, as its keys and values do."""
        self._runner.cache.leave(row)
        self._rows[row] = self._rows[-1]
        self._rows.pop()


def _choice(sequence: Sequence, new: list[int]) -> ChunkChoice:
    context = sequence.request.context
    logprobs = None
    if context.sampling_params.logprobs is not None:
        logprobs = GenerateLogprobs(content=sequence.logprobs)
        sequence.logprobs = []  # sent: a long stream with many candidates would keep megabytes
    return ChunkChoice(
        index=sequence.index,
        num_tokens=len(new),
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
        logprobs=logprobs,
        text=sequence.stop.take_text() if context.output_mode == "text" else None,
    )


def _chunk(request: Request, choices: list[ChunkChoice]) -> GeneratedChunk:
    context = request.context
    first = request.num_chunks == 0
    echo_prompt = first and context.return_token_ids
    placeholders: dict[str, list[object]] = {}
    for feature in context.features if echo_prompt else []:
        placeholders.setdefault(feature.modality, []).append(feature.placeholder)
    return GeneratedChunk(
        id=request.id,
        number=request.num_chunks,
        choices=choices,
        final=request.is_finished,
        prompt_tokens=len(request.prompt.token_ids),
        completion_tokens=request.num_output_tokens,
        derender=context.derender if first else None,
        prompt_token_ids=request.prompt.token_ids.tolist() if echo_prompt else None,
        mm_placeholders=placeholders or None,
        ec_transfer_params=request.ec_transfer_params if request.is_finished else None,
    )
