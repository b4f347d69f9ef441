"""The engine: one thread that schedules, runs the model, samples, and hands the tokens out.

    add, abort (any thread) ─→ inbox ─→ step: schedule → forward → sample → stop? → sink
                                                    one pass over all tokens of the step

A request ends exactly once, whatever happens: with its final chunk, or with `sink.fail`. After an exception in a step each
of its sequences is tried alone, and the request at fault fails. An exception in the scheduler's own books fails all that are
not merely waiting, since the books can no longer be trusted: they are begun anew, and the engine goes on.
"""

import itertools
import logging
import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import torch

from triton_renderer.errors import Cancelled, QueueFull, RendererError, StageUnavailable
from triton_renderer.prefill_decode.metrics import EngineMetrics
from triton_renderer.prefill_decode.model_runner import ModelRunner
from triton_renderer.prefill_decode.sampler import rank, sample
from triton_renderer.prefill_decode.scheduler import Scheduler, Work
from triton_renderer.prefill_decode.sequence import Request, Sequence
from triton_renderer.protocol.generate import GenerateLogprobs
from triton_renderer.protocol.stages import ChunkChoice, GeneratedChunk

log = logging.getLogger(__name__)

MAX_REMEMBERED_ABORTS = 10_000
CANCEL_POLL_S = 0.05
"""How often open requests are asked whether their client is gone: each answer is a round trip to Triton's process."""

CHUNKS_PER_CORE_S = 100
MAX_CHUNKS_PER_S = min(2000, CHUNKS_PER_CORE_S * (os.cpu_count() or 1))
"""Chunks that are sent a second. On its way through the models behind this one, Triton, the shim and HTTP one takes 0.8 ms of
processor time (measured); where the engine computes on the same cores it loses twice that, since a step waits for its slowest
thread. On many cores the limit is what one derender stage carries, with room to spare. Where the engine makes more tokens than
that, a stream's next chunk waits and takes the tokens in between along; the first one and the last one never wait."""

INTERNAL_ERROR = "the engine failed on this request; the server's log has the reason"


class Engine:
    """Owns the model, the KV cache and every request from `add` to its end."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, queue_timeout_s: float = float("inf")) -> None:
        """`queue_timeout_s`: how long a request may wait for its first place in the batch."""
        self._runner = runner
        self._scheduler = scheduler
        self._queue_timeout_s = queue_timeout_s
        self.metrics = EngineMetrics()
        self._watch()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._requests: dict[int, Request] = {}  # open ones, by arrival
        self._late: dict[int, Request] = {}  # of these, streams with tokens that are not sent yet
        # An abort can overtake its request, which may still be in an earlier stage.
        self._aborted: OrderedDict[str, None] = OrderedDict()
        self._closed = False
        self._lock = threading.Lock()  # orders add against close
        self._next_poll = 0.0
        self._num_preemptions = 0
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
        return {"running": len(self._scheduler.running), "waiting": self._scheduler.num_waiting_requests}

    def _watch(self) -> None:
        """Gauges, read by the thread that shows them: whole numbers and lengths, right as of some moment in a step."""
        pool = self._scheduler.pool
        watch = self.metrics.watch
        watch("running_sequences", "Sequences that have a place in the batch", lambda: self.load["running"])
        watch("waiting_requests", "Requests that wait for a place", lambda: self.load["waiting"])
        watch("kv_cache_used_ratio", "Blocks that sequences use, of all", lambda: 1 - pool.num_unused / pool.num_usable)
        watch("kv_cache_cached_blocks", "Blocks whose content later prompts can find", lambda: pool.num_cached)

    # Below: the engine's thread only.

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            self._runner.take_thread()
            while self._turn():
                pass
        finally:
            with self._lock:
                self._closed = True
            while self._take_messages_safely(block=False) and not self._inbox.empty():
                pass
            for request in list(self._requests.values()):
                self._end(request, StageUnavailable("the server is shutting down"))

    def _turn(self) -> bool:
        """One round: messages, then a step. False when the engine is to end."""
        if not self._take_messages_safely():
            return False
        self.heartbeat = time.monotonic()  # an idle engine comes round as well
        try:
            self._drop_hopeless()
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

    def _start_over(self) -> None:
        """Fails every request that has a part in the cache, whose books cannot be trusted any more; those that wait stay."""
        running = {sequence.request for sequence in self._scheduler.running}
        self._scheduler.start_over()
        for request in list(self._requests.values()):
            if request in running or request.is_finished:
                self._end(request, RendererError(INTERNAL_ERROR))

    def _take_messages(self, block: bool = True) -> bool:
        """Handles what came in, waiting for it where there is nothing to do. False when the engine is to end."""
        wait = block and self._scheduler.is_idle
        if wait:
            self._scheduler.check_integrity()
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
                sequence.stop.finish()
        log.info("request %s aborted after %d output tokens", request.id, request.num_output_tokens)
        self._forget(request)
        self._deliver(request)

    def _drop_hopeless(self) -> None:
        """Ends requests whose client is gone, and those that waited too long."""
        now = time.monotonic()
        if now < self._next_poll:
            return
        for request in list(self._requests.values()):
            if _is_cancelled(request):
                log.info("request %s cancelled after %d output tokens", request.id, request.num_output_tokens)
                self._end(request, Cancelled("the client cancelled the request"))
        for request in self._scheduler.waiting_since_before(now - self._queue_timeout_s):
            self._end(request, QueueFull(f"no place came free within {self._queue_timeout_s:g} s"))
        # Asking takes at most a tenth of the time, however many requests wait.
        done = time.monotonic()
        self._next_poll = done + max(CANCEL_POLL_S, 9 * (done - now))

    def _step(self) -> None:
        works = self._scheduler.schedule()
        self._count(works)
        if not works:
            return
        try:
            logits = self._forward(works)
        except Exception as error:
            if len(works) == 1:
                self._fail(works[0].sequence.request, error)
                return
            # A step writes to its own sequences' blocks only: each can be tried again, and the one at fault fails alone.
            log.warning("a step of %d sequences failed; each is tried alone", len(works), exc_info=True)
            for work in works:
                self._step_alone(work)
        else:
            self._advance(works, logits)

    def _count(self, works: list[Work]) -> None:
        """What the scheduler decided, for the metrics."""
        now = time.monotonic()
        for work in works:
            sequence = work.sequence
            if sequence.placed_s is None:
                sequence.placed_s = now
                self.metrics.queue_time.observe(now - sequence.request.arrived_s)
                self.metrics.prefix_cache_queried.inc(sequence.request.prompt.num_tokens)
                self.metrics.prefix_cache_hit.inc(sequence.num_cached)
        if new := self._scheduler.num_preemptions - self._num_preemptions:
            self.metrics.preemptions.inc(new)
            self._num_preemptions += new

    def _step_alone(self, work: Work) -> None:
        if work.sequence.request.arrival not in self._requests:
            return  # ended with a sibling
        try:
            logits = self._forward([work])
        except Exception as error:
            self._fail(work.sequence.request, error)
        else:
            self._advance([work], logits)

    def _fail(self, request: Request, error: Exception) -> None:
        if not isinstance(error, RendererError):
            log.error("request %s failed", request.id, exc_info=error)
            error = RendererError(INTERNAL_ERROR)
        self._end(request, error)

    def _forward(self, works: list[Work]) -> torch.Tensor:
        """Logits after each work that samples, in their order: [sampling works, vocabulary]."""
        self.heartbeat = time.monotonic()
        ends = list(itertools.accumulate(work.length for work in works))
        wanted = [end - 1 for work, end in zip(works, ends, strict=True) if work.samples]
        prompts = [_PromptSpan(work, end) for work, end in zip(works, ends, strict=True) if work.sequence.prompt_logprobs]
        of_prompts = [place for span in prompts for place in span.places]
        # A model that is asked for no logits computes them all.
        logits = self._runner.forward(works, (wanted + of_prompts) or [0])
        at = len(wanted)
        for span in prompts:
            span.note(logits[at : at + len(span.places)])
            at += len(span.places)
        return logits[: len(wanted)]

    def _advance(self, works: list[Work], logits: torch.Tensor) -> None:
        """The step is computed: chooses the next token of every sequence that is complete, and hands it out."""
        sequences = [work.sequence for work in works if work.samples]
        self._scheduler.computed(works)
        if not sequences:
            return
        failed = self._append(logits, sequences)
        for request, error in failed.items():
            self._runner.erase(self._scheduler.distrust(request))
            self._end(request, error)
        for sequence in sequences:
            if sequence.is_finished:
                self._scheduler.finish(sequence)
        self._deliver_all([sequence for sequence in sequences if sequence.request not in failed])

    def _append(self, logits: torch.Tensor, sequences: list[Sequence]) -> dict[Request, RendererError]:
        """Samples and notes one token of each sequence; returns the requests that cannot go on.

        logits: [sequences, vocabulary].
        """
        sampled = sample(logits, sequences)
        now = time.monotonic()
        failed = {
            sequence.request: error for sequence, error in zip(sequences, sampled.errors, strict=True) if error is not None
        }
        for sequence, token_id, logprob in zip(sequences, sampled.token_ids, sampled.logprobs, strict=True):
            if sequence.request in failed:
                continue
            if not sequence.push(token_id):
                log.error("request %s: token %d was sampled, which its grammar does not have", sequence.request.id, token_id)
                failed[sequence.request] = RendererError(INTERNAL_ERROR)
                continue
            self._note_token(sequence, now)
            if logprob is not None:
                sequence.logprobs.append(logprob)
        return failed

    def _note_token(self, sequence: Sequence, now: float) -> None:
        request = sequence.request
        self.metrics.generated_tokens.inc()
        if sequence.newest_token_s is None:
            self.metrics.time_to_first_token.observe(now - request.arrived_s)
            if sequence is request.sequences[0]:
                self.metrics.prompt_tokens.inc(request.prompt.num_tokens)
        else:
            self.metrics.inter_token_latency.observe(now - sequence.newest_token_s)
        sequence.newest_token_s = now

    def _deliver_all(self, sequences: list[Sequence]) -> None:
        now = time.monotonic()
        for request in dict.fromkeys(sequence.request for sequence in sequences):
            if request.is_finished:
                self._forget(request)
                self._deliver(request)
            elif request.context.stream:
                self._late[request.arrival] = request
        gap_s = len(self._late) / MAX_CHUNKS_PER_S
        for request in list(self._late.values()):
            if now >= request.next_chunk_s:
                request.next_chunk_s = now + gap_s
                self._deliver(request)

    def _deliver(self, request: Request) -> None:
        """Sends what is new; a request whose answer cannot be made ends with an error."""
        self._late.pop(request.arrival, None)
        try:
            self._send(request)
        except Exception as error:
            self._fail(request, error)

    def _send(self, request: Request) -> None:
        """Without streaming, what is new is everything, at the end."""
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
        for choice in choices:
            if choice.finish_reason:
                self.metrics.finished.labels(choice.finish_reason).inc()
        if request.is_finished:
            self.metrics.request_time.observe(time.monotonic() - request.arrived_s)

    def _end(self, request: Request, error: RendererError) -> None:
        """The request ends without an answer."""
        self._forget(request)
        self.metrics.failed.labels(str(error.status)).inc()
        request.sink.fail(error)

    def _forget(self, request: Request) -> None:
        for sequence in request.sequences:
            self._scheduler.finish(sequence)
        self._late.pop(request.arrival, None)
        self._requests.pop(request.arrival, None)  # last: until here a failure still finds it, and tells it


class _PromptSpan:
    """The part of a work whose logits tell of the prompt's tokens."""

    def __init__(self, work: Work, end: int) -> None:
        """`end`: the place in the step behind the work's last token."""
        prompt = work.sequence.prompt_logprobs
        assert prompt is not None
        first, behind = prompt.wanted(work.start, work.end)
        self.places = range(end - work.end + first, end - work.end + behind)
        """In the step: each place's logits are of the prompt's token behind it."""
        self._prompt = prompt
        self._token_ids = work.sequence.token_ids(first + 1, behind + 1).tolist() if self.places else []

    def note(self, logits: torch.Tensor) -> None:
        """logits: [places, vocabulary]."""
        if self.places:
            for own, best in rank(logits, self._token_ids, self._prompt.count):
                self._prompt.add(own, best)


def _is_cancelled(request: Request) -> bool:
    try:
        return request.sink.is_cancelled()
    except Exception:  # the others are asked all the same
        log.exception("whether request %s is cancelled could not be found out", request.id)
        return False


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
        prompt_tokens=request.prompt.num_tokens,
        completion_tokens=request.num_output_tokens,
        cached_tokens=request.sequences[0].num_cached,
        derender=context.derender if first else None,
        prompt_token_ids=request.prompt.token_ids.tolist() if echo_prompt else None,
        mm_placeholders=placeholders or None,
        ec_transfer_params=request.ec_transfer_params if request.is_finished else None,
        # An abort may come before all of them are known.
        prompt_logprobs=prompt.entries if first and (prompt := request.prompt_logprobs) and prompt.is_complete else None,
    )
