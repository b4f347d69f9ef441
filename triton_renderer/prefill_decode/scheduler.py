"""Decides what the next step of the engine works on.

A step prefills some waiting requests and decodes one token of every running sequence. Order is by priority (lower first),
then by arrival. The scheduler knows tokens and places, not tensors.
"""

import bisect
from dataclasses import dataclass

from triton_renderer.errors import InvalidRequest, QueueFull
from triton_renderer.prefill_decode.sequence import Request, Sequence


@dataclass(frozen=True)
class Step:
    """The work of one step: whole prompts to prefill, then sequences to decode one token of."""

    prefills: list[Request]
    decodes: list[Sequence]


class Scheduler:
    """First come, first served within a priority; bounded places and a bounded queue."""

    def __init__(self, max_running: int, max_waiting: int, max_prefill_tokens: int) -> None:
        """
        max_running: sequences that decode as one batch.
        max_waiting: requests that wait for a place.
        max_prefill_tokens: prompt tokens of one step, so that running sequences are not held up for long; one prompt that
            is longer goes alone.
        """
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.max_prefill_tokens = max_prefill_tokens
        self.waiting: list[Request] = []
        self.running: list[Sequence] = []

    def add(self, request: Request) -> None:
        """Queues a request. Raises QueueFull, or InvalidRequest where it could never run."""
        if len(request.sequences) > self.max_running:
            raise InvalidRequest(f"n is {len(request.sequences)}, at most {self.max_running} choices can run at once", "n")
        if len(self.waiting) >= self.max_waiting:
            raise QueueFull(f"{len(self.waiting)} requests are waiting, no more are taken")
        bisect.insort(self.waiting, request, key=lambda waiting: (waiting.context.priority, waiting.arrival))

    def schedule(self) -> Step:
        """The next step. Its requests leave the queue; they join the running ones with `started`."""
        decodes = list(self.running)
        prefills: list[Request] = []
        places = self.max_running - len(self.running)
        tokens = self.max_prefill_tokens
        while self.waiting:
            request = self.waiting[0]
            length = len(request.prompt.token_ids)
            if len(request.sequences) > places or (length > tokens and prefills):
                break
            prefills.append(self.waiting.pop(0))
            places -= len(request.sequences)
            tokens -= length
        return Step(prefills, decodes)

    def started(self, request: Request) -> None:
        """The request was prefilled: those of its sequences that go on decode from the next step."""
        self.running += [sequence for sequence in request.sequences if not sequence.is_finished]

    def remove(self, request: Request) -> None:
        """Forgets a request, wherever it is."""
        if request in self.waiting:
            self.waiting.remove(request)
        self.running = [sequence for sequence in self.running if sequence.request is not request]

    def retire(self) -> None:
        """Forgets the sequences that have finished."""
        self.running = [sequence for sequence in self.running if not sequence.is_finished]

    @property
    def is_idle(self) -> bool:
        """There is nothing to do."""
        return not self.waiting and not self.running
