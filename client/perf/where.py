"""Where the time of a render server's requests goes: `python -m client.perf.where --model folder`.

For each load of `client.perf.render`, with one client: the median time of a request, the computing time that each process
spends on one, and with py-spy on the path (`pip install py-spy`) the functions in which the Python processes spend it.
What a function calls is counted with it. The computing time is measured without py-spy, which slows what it looks at.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
from transformers import AutoTokenizer

from client.perf.render import (
    CONTEXT_LENGTH,
    Body,
    Figures,
    Output,
    Row,
    Server,
    about_photo,
    about_text,
    run,
    stream,
)
from triton_renderer.launcher.supervisor import Stack, free_ports, serve
from triton_renderer.settings import load_settings

RATE_HZ = 500
LEAST_SHARE = 0.03
"""Functions with less than this part of a process's time are not shown."""


def processes(stack: Stack) -> dict[str, psutil.Process]:
    """The server's processes by name: the shim, Triton, and the stages."""
    found = {name: psutil.Process(pid) for name, pid in stack.stub_pids().items()}
    for child in psutil.Process().children(recursive=True):
        command = child.cmdline()
        if command[1:] == ["-m", "client.shim"]:
            found["shim"] = child
        elif command and Path(command[0]).name == "tritonserver":
            found["triton"] = child
    return found


def computing(process: psutil.Process) -> float:
    """Seconds that all cores together have spent on the process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def functions(raw: Path) -> Counter[str]:
    """How many samples of py-spy's raw format each function was on the stack of."""
    found: Counter[str] = Counter()
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = {frame.rpartition(":")[0].strip() + ")" for frame in stack.split(";") if ":" in frame}
        found.update(dict.fromkeys(frames, int(count)))
    return found


def profiled(spy: str, targets: dict[str, psutil.Process], ask: Callable[[], int]) -> None:
    """Prints where the Python processes spend their time while `ask` runs, which says how many requests it made."""
    with tempfile.TemporaryDirectory() as folder:
        recorders = {
            name: subprocess.Popen(
                [
                    *(spy, "record", "--pid", str(process.pid), "--rate", str(RATE_HZ), "--format", "raw"),
                    *("--duration", "600", "--output", f"{folder}/{name}"),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for name, process in targets.items()
            if name != "triton"
        }
        time.sleep(2)  # it says nowhere that it has begun; whatever it misses is missing from all functions alike
        requests = ask()
        for recorder in recorders.values():
            recorder.send_signal(2)
            recorder.wait(60)
        for name in recorders:
            counts = functions(Path(folder, name))
            most = max(counts.values(), default=0)
            for function, count in counts.most_common():
                if count >= most * LEAST_SHARE:
                    print(f"    {name:9} {count / RATE_HZ / requests * 1000:8.3f} ms  {function}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", required=True, help="the folder that is served")
    parser.add_argument("--rows", nargs="*", default=[], help="only loads with one of these in their names")
    parser.add_argument("--py-spy", default=shutil.which("py-spy"), help="the program, if not on the path")
    options = parser.parse_args()
    rng = random.Random(0)
    output = Output(AutoTokenizer.from_pretrained(options.model))
    chat, derender = "/v1/chat/completions/render", "/v1/chat/completions/derender"
    loads: list[tuple[str, str, Callable[[random.Random], Body] | None, int]] = [
        ("20 words", chat, about_text(20), 1500),
        ("8,000 words", chat, about_text(8000), 600),
        ("JPEG 640×480", chat, about_photo(640, 480), 150),
        ("JPEG 1920×1080", chat, about_photo(1920, 1080), 40),
        ("derender 200 tokens", derender, output.one_shot, 1000),
        ("derender, calls of a token", derender, None, 2000),
    ]
    settings = load_settings(
        model=options.model,
        role="render",
        max_model_len=CONTEXT_LENGTH,
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
        **free_ports(),
    )
    with tempfile.TemporaryDirectory() as logs, serve(settings, Path(logs)) as stack:
        server, found = Server("ours", stack.shim_url, None), processes(stack)
        for name, path, make, count in loads:
            if options.rows and not any(part in name for part in options.rows):
                continue

            def ask(
                figures: Figures, name: str = name, path: str = path, make: Callable[[random.Random], Body] | None = make,
                count: int = count,
            ) -> Callable[[], int]:  # fmt: skip
                streamed = output.streamed(rng) if make is None else []
                encoded = [json.dumps(make(rng)).encode() for _ in range(count)] if make is not None else []

                def asked() -> int:
                    if make is None:
                        stream(server, streamed, figures)
                    else:
                        run(server, Row(name, path, make, 1, count), encoded, figures)
                    return count

                return asked

            ask(Figures())()
            figures = Figures()
            send = ask(figures)
            before = {process: computing(found[process]) for process in found}
            requests = send()
            spent = {process: (computing(found[process]) - before[process]) / requests * 1000 for process in found}
            print(
                f"{name}: p50 {statistics.median(figures.times) * 1000:.2f} ms; computing time a request: "
                + ", ".join(f"{process} {ms:.2f} ms" for process, ms in spent.items()),
                flush=True,
            )
            if options.py_spy:
                profiled(options.py_spy, found, ask(Figures()))


if __name__ == "__main__":
    main()
