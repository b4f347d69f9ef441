"""Several calls of stages for one request, without a task that outlives it."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")

_BUFFERED = 2
"""Items of each generator that may wait for a slow client; more, and the generator waits itself."""


@dataclass(frozen=True)
class _End:
    """One generator is through."""

    failure: Exception | None


async def all_of(calls: Sequence[Coroutine[Any, Any, Item]]) -> list[Item]:
    """The results of all calls, run at once. The first failure ends the others and is raised."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def interleaved(generators: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """The items of all generators as they come. The first failure ends the others and is raised."""
    queue: asyncio.Queue[Item | _End] = asyncio.Queue(_BUFFERED * len(generators))

    async def forward(generator: AsyncGenerator[Item, None]) -> None:
        failure = None
        try:
            async with aclosing(generator):
                async for item in generator:
                    await queue.put(item)
        except Exception as error:  # carried to the consumer, who raises it
            failure = error
        await queue.put(_End(failure))

    tasks = [asyncio.create_task(forward(generator)) for generator in generators]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if not isinstance(item, _End):
                yield item
            elif item.failure:
                raise item.failure
            else:
                running -= 1
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
