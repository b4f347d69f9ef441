"""Decides what the next step of the engine works on.

A step has a budget of tokens. Every decoding sequence gets its one token first, so that no prompt holds a stream up for
longer than a step takes; what is left of the budget goes to prompts, the longer ones in chunks. Far into a long prompt each
token also attends to all before it: beside decoding sequences it counts for as many as it takes the time of. Order is by priority (lower
first), then by arrival. Where the KV cache is full, the last sequence in this order gives its blocks up and waits again;
it computes them anew later, and loses nothing that it has sent. The scheduler knows tokens and blocks, not tensors.
"""

import bisect
import math
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from triton_renderer.errors import QueueFull
from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from triton_renderer.prefill_decode.sequence import Picture, Request, Sequence


@dataclass(frozen=True)
class Work:
    """What a step computes of a sequence: `length` of its tokens, after the `start` that the cache has."""

    sequence: Sequence
    start: int
    length: int

    @property
    def end(self) -> int:
        """Tokens of the sequence in the cache after the step."""
        return self.start + self.length

    @property
    def samples(self) -> bool:
        """The step computes the newest token, so that the next one can be chosen."""
        return self.end == self.sequence.num_tokens


class Scheduler:
    """Places, blocks and the queue."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_running: int,
        max_waiting: int,
        max_step_tokens: int,
        prefix_caching: bool = True,
        whole_pictures: bool = False,
        context_cost: float = 0.0,
    ) -> None:
        """
        max_running: sequences that have a place in the batch.
        max_waiting: requests that wait for a place.
        max_step_tokens: tokens of one step; at least `max_running`, as every decoding sequence takes one.
        whole_pictures: a picture's tokens see each other both ways, so that a chunk has to take all of them.
        context_cost: what each token before it adds to the time of a prompt's token, as a part of what that takes without any.
        """
        if max_step_tokens < max_running:
            raise ValueError(f"a step of {max_step_tokens} tokens has no room for {max_running} sequences")
        self.pool = pool
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.max_step_tokens = max_step_tokens
        self.num_preemptions = 0
        self._prefix_caching = prefix_caching
        self._whole_pictures = whole_pictures
        self._context_cost = context_cost
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    def add(self, request: Request) -> None:
        """Queues a request. Raises QueueFull."""
        if self.num_waiting_requests >= self.max_waiting:
            raise QueueFull(f"{self.max_waiting} requests are waiting, no more are taken")
        for sequence in request.sequences:
            bisect.insort(self.waiting, sequence, key=_order)

    @property
    def num_waiting_requests(self) -> int:
        """Requests of which no choice has a place yet, or which lost it."""
        return len({id(sequence.request) for sequence in self.waiting})

    def waiting_since_before(self, moment_s: float) -> list[Request]:
        """Requests that arrived before it (on the clock `time.monotonic`) and never had a place."""
        first = [sequence for sequence in self.waiting if sequence.index == 0 and sequence.placed_s is None]
        return [sequence.request for sequence in first if sequence.request.arrived_s < moment_s]

    @property
    def is_idle(self) -> bool:
        """There is nothing to do."""
        return not self.waiting and not self.running

    def schedule(self) -> list[Work]:
        """The next step's work, the decoding sequences first. What it needs of the cache is allocated."""
        decodes = self._schedule_decodes()
        budget = self.max_step_tokens - len(decodes)
        # Where nobody waits for the step's end, smaller chunks would only cost time.
        context_cost = self._context_cost if decodes else 0.0
        prefills: list[Work] = []
        for sequence in self.running:
            if budget > 0 and sequence.num_uncomputed > 1:
                budget -= self._prefill(sequence, budget, context_cost, prefills)
        for sequence in list(self.waiting):
            if budget <= 0 or len(self.running) >= self.max_running:
                break
            if self._waits_for_sibling(sequence):
                continue
            if not self._admit(sequence):
                break
            budget -= self._prefill(sequence, budget, context_cost, prefills)
        return decodes + sorted(prefills, key=lambda work: work.length > 1)

    def _schedule_decodes(self) -> list[Work]:
        """One token of each sequence that decodes; those that find no block push the last ones out."""
        decodes = []
        for sequence in list(self.running):
            # It may have been pushed out by one before it.
            if not sequence.blocks or sequence.num_uncomputed != 1:
                continue
            while len(sequence.blocks) < blocks_for(sequence.num_tokens) and sequence.blocks:
                if self.pool.num_unused:
                    sequence.blocks += self.pool.allocate(1)
                else:
                    self._preempt(self.running[-1])
            if sequence.blocks:
                decodes.append(Work(sequence, sequence.num_computed, 1))
        return decodes

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self.running.remove(sequence)
        self._release(sequence)
        bisect.insort(self.waiting, sequence, key=_order)

    def _prefill(self, sequence: Sequence, budget: int, context_cost: float, prefills: list[Work]) -> int:
        """Adds the sequence's next chunk; returns what it takes of the budget."""
        weight = 1 + context_cost * sequence.num_computed
        end = min(sequence.num_tokens, sequence.num_computed + max(1, int(budget / weight)))
        if self._whole_pictures:
            end = _beside_pictures(end, sequence.request.prompt.pictures, sequence.num_computed)
        length = end - sequence.num_computed
        prefills.append(Work(sequence, sequence.num_computed, length))
        return math.ceil(length * weight)

    def _waits_for_sibling(self, sequence: Sequence) -> bool:
        """The choices of a request share what the first one computes of the prompt."""
        first = sequence.request.sequences[0]
        return sequence is not first and not first.is_finished and first.num_computed < first.request.prompt.num_tokens

    def _admit(self, sequence: Sequence) -> bool:
        """Gives the sequence a place and blocks for all its tokens and one more. False where there are not enough."""
        shared = self._shared_blocks(sequence)
        count = blocks_for(sequence.num_tokens + 1) - len(shared)
        self.pool.share(shared)
        # Each running sequence may soon need a block: to admit one and push it out again would compute it twice.
        if count + len(self.running) > self.pool.num_unused:
            self.pool.release(shared)
            return False
        sequence.blocks = shared + self.pool.allocate(count)
        sequence.num_computed = len(shared) * BLOCK_TOKENS
        if sequence.placed_s is None:
            sequence.num_cached = sequence.num_computed
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=_order)
        return True

    def _shared_blocks(self, sequence: Sequence) -> list[int]:
        """Blocks of other sequences, or of earlier ones, that hold the beginning of this one.

        The newest token is never among them: what comes after it has to be computed.
        """
        if sequence.prompt_logprobs is not None:
            return []  # its prompt has to be computed, from the first token
        first = sequence.request.sequences[0]
        most = sequence.num_tokens - 1
        if self._prefix_caching:
            found = self.pool.find(sequence.hashes.up_to(sequence.token_ids(0, most), most))
        elif sequence is not first and first.blocks:
            found = first.blocks[: min(most, sequence.request.prompt.num_tokens) // BLOCK_TOKENS]
        else:
            found = []
        if self._whole_pictures:
            tokens = len(found) * BLOCK_TOKENS
            while tokens and _beside_pictures(tokens, sequence.request.prompt.pictures, 0) != tokens:
                tokens -= BLOCK_TOKENS
            found = found[: tokens // BLOCK_TOKENS]
        return found

    def computed(self, works: Ordered[Work]) -> None:
        """The step is done: its tokens are in the cache, and full blocks can be found."""
        for work in works:
            sequence = work.sequence
            sequence.num_computed = work.end
            first, behind = work.start // BLOCK_TOKENS, work.end // BLOCK_TOKENS
            if self._prefix_caching and first < behind:
                hashes = sequence.hashes.up_to(sequence.token_ids(0, work.end), work.end)
                for block, block_hash in zip(sequence.blocks[first:behind], hashes[first:behind], strict=True):
                    self.pool.publish(block, block_hash)

    def finish(self, sequence: Sequence) -> None:
        """The sequence has ended, or its request has: its blocks are free."""
        for queue in (self.running, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed = 0

    def distrust(self, request: Request) -> list[int]:
        """The request's own blocks, to be erased: what they hold may not be numbers, and is not to be found any more."""
        return [block for sequence in request.sequences for block in self.pool.distrust(sequence.blocks)]

    def start_over(self) -> None:
        """Forgets what runs, and all that is cached: the books are as new."""
        self.pool.reset()
        for sequence in self.running:
            sequence.blocks, sequence.num_computed = [], 0
        self.running.clear()

    def check_integrity(self) -> None:
        """Raises RuntimeError where the pool's books and the sequences do not agree."""
        self.pool.check_integrity(sequence.blocks for sequence in self.running)


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.request.context.priority, sequence.request.arrival, sequence.index


def _beside_pictures(end: int, pictures: Ordered[Picture], start: int) -> int:
    """Where a chunk from `start` that should end at `end` does, so that it cuts no picture."""
    for picture in pictures:
        if picture.start < end < picture.end:
            return picture.start if picture.start > start else picture.end
    return end
