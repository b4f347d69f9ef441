"""Work beside the event loop, and several calls of stages for one request, without a task that outlives it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")

OFFLOAD_BYTES = 256 * 1024
"""Work on more bytes than this goes to a thread: it would hold up the streams of others."""

_BUFFERED = 2
"""Items of each generator that may wait for a slow client; more, and the generator waits itself."""


@dataclass(frozen=True)
class _End:
    """One generator is through."""

    failure: Exception | None


async def offload(
    num_bytes: int, function: Callable[Arguments, Item], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Item:
    """`function(*args)`, in a thread where it works on more than a few bytes."""
    if num_bytes <= OFFLOAD_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


async def all_of(calls: Sequence[Callable[[], Coroutine[Any, Any, Item]]], limit: int) -> list[Item]:
    """The results of all calls, `limit` of which run at once. The first failure ends the others and is raised."""
    places = asyncio.Semaphore(limit)

    async def run(call: Callable[[], Coroutine[Any, Any, Item]]) -> Item:
        async with places:
            return await call()

    tasks = [asyncio.create_task(run(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def interleaved(generators: Sequence[AsyncGenerator[Item, None]], limit: int) -> AsyncGenerator[Item, None]:
    """The items of all generators as they come; `limit` run at once. The first failure ends the others and is raised."""
    queue: asyncio.Queue[Item | _End] = asyncio.Queue(_BUFFERED * limit)
    places = asyncio.Semaphore(limit)

    async def forward(generator: AsyncGenerator[Item, None]) -> None:
        failure = None
        try:
            async with places, aclosing(generator):
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
