"""Several clients at once, for the benchmarks."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def seconds_together(clients: int, work: Callable[[], None]) -> float:
    """Runs `work` in that many threads at once; the seconds until all have ended.

    Raises what one of them raised, after all have ended.
    """
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        runs = [pool.submit(work) for _ in range(clients)]
    seconds = time.perf_counter() - started
    for run in runs:
        run.result()
    return seconds
