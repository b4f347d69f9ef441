"""Random requests after the shim's own OpenAPI document, against a real server: `python -m tests.fuzz [--requests 5000]`.

schemathesis makes them, right and wrong ones. Each must be answered in time, and with no 5xx: an exception that nobody
expected stays a 500, so that it is found here. Runs with new seeds go on until there were enough requests. Ends with
status 1 where a check failed, the server is not healthy afterwards, or a route refused all that it was sent: then nothing
behind its first checks was tried.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from triton_renderer.launcher.supervisor import free_ports, serve
from triton_renderer.settings import load_settings

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance"
REQUEST_TIMEOUT_S = 60
# Outputs are as long as this leaves room; long ones would only take time.
CONTEXT_LENGTH = 192


def answered(url: str) -> Counter[tuple[str, str]]:
    """How many requests ended, by route and outcome."""
    found: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=30).text):
        for sample in family.samples:
            if sample.name == "triton_renderer_requests_total":
                found[sample.labels["route"], sample.labels["outcome"]] += int(sample.value)
    return found


def run(url: str, seed: int, examples: int) -> bool:
    """One run of schemathesis over all routes; True where it found nothing."""
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json"),
        *("--phases", "examples,coverage,fuzzing", "--checks", CHECKS, "--continue-on-failure"),
        *("--request-timeout", str(REQUEST_TIMEOUT_S), "--max-response-time", str(REQUEST_TIMEOUT_S)),
        *("--max-examples", str(examples), "--seed", str(seed), "--workers", "2", "--no-color", "--no-shrink"),
        *("--warnings", "off"),
    ]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("hooks.py"))}
    return subprocess.run(command, check=False, env=environment).returncode == 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--examples", type=int, default=150, help="random requests a route and run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    settings = load_settings(enable_scale_out=True, max_model_len=CONTEXT_LENGTH, **free_ports())
    started = time.monotonic()
    clean = True
    with tempfile.TemporaryDirectory() as logs, serve(settings, Path(logs)) as stack:
        seed, before = options.seed, answered(stack.shim_url)
        counts: Counter[tuple[str, str]] = Counter()
        while sum(counts.values()) < options.requests:
            clean &= run(stack.shim_url, seed, options.examples)
            seed, counts = seed + 1, answered(stack.shim_url) - before
        health = httpx.get(f"{stack.shim_url}/health", timeout=30)
    print("\n| route | ok | client error | server error | cancelled |\n|---|---|---|---|---|")
    for route in sorted({route for route, _ in counts}):
        outcomes = (counts[route, outcome] for outcome in ("ok", "client_error", "server_error", "cancelled"))
        print(f"| {route} | " + " | ".join(map(str, outcomes)) + " |")
    print(f"\n{sum(counts.values())} requests, {time.monotonic() - started:.0f} s; /health afterwards: {health.status_code}")
    failed = sum(count for (_, outcome), count in counts.items() if outcome == "server_error")
    refused = sorted({route for route, _ in counts if not counts[route, "ok"]} - {"unknown"})
    if refused:
        print(f"All requests were refused by {', '.join(refused)}")
    return 0 if clean and not failed and not refused and health.status_code == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
