"""Asks a reference server what it answers, and stores it under `recordings/`.

    python -m tests.golden.record flags SERVER FOLDER    writes the model into FOLDER, prints the reference's arguments
    python -m tests.golden.record ask SERVER URL [KIND]  asks the running server at URL every case of SERVER

SERVER is one of `servers.SERVERS`, KIND `render` or `derender`; without it both are asked. The reference is vLLM's render
server: `vllm launch render FOLDER --port … ARGUMENTS`.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.golden import (
    agent_cases,
    derender_cases,
    dialect_cases,
    error_cases,
    picture_cases,
    stream_cases,
    text_cases,
    video_cases,
)
from tests.golden.cases import Case, expanded
from tests.golden.recording import KINDS, RECORDINGS, compact, save
from tests.golden.servers import SERVERS, write_model
from tests.golden.streams import shortened, stream_of

TIMEOUT_S = 120.0


def all_cases() -> list[Case]:
    """Every case of every server."""
    modules = (text_cases, agent_cases, dialect_cases, picture_cases, video_cases, error_cases, derender_cases, stream_cases)
    return [case for module in modules for case in module.cases()]


def ask(server: str, url: str, kinds: Sequence[str] = KINDS) -> None:
    """Records all cases of `server`, in order. Raises ValueError where two of them are alike, httpx.HTTPError on no answer."""
    cases = [case for case in all_cases() if case.server == server]
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise ValueError(f"two cases of {server} have one name: {sorted(name for name in names if names.count(name) > 1)}")
    RECORDINGS.mkdir(exist_ok=True)
    # A server may drop its connection after an answer of 500.
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, headers={"Connection": "close"}) as http:
        served = [model["id"] for model in http.get("/v1/models").json()["data"]]
        if served != [SERVERS[server].model]:
            raise ValueError(f"{url} serves {served}, not {SERVERS[server].model}")
        version = http.get("/version").json()["version"]
        for kind in kinds:
            lines = [recorded(http, case) for case in cases if case.kind == kind]
            if lines:
                save(server, kind, version, lines)


def recorded(http: httpx.Client, case: Case) -> dict[str, Any]:
    """A case with what the server answered."""
    line: dict[str, Any] = {"name": case.name, "route": case.route, "request": case.body}
    if not case.calls:
        reply = http.post(case.route, json=expanded(case.body))
        print(reply.status_code, case.name, reply.text[:200] if reply.is_error else "", flush=True)
        return line | {"status": reply.status_code, "answer": compact(reply.json())}
    answers = list(stream_of(lambda body: http.post(case.route, json=body), case.body, case.calls))
    print(*(status for status, _ in answers), case.name, flush=True)
    return line | {
        "calls": case.calls,
        "status": answers[-1][0],
        "answers": shortened([compact(answer) for _, answer in answers]),
    }


def main(arguments: list[str]) -> None:
    """The command line."""
    match arguments:
        case ["flags", server, folder]:
            write_model(SERVERS[server].model, Path(folder))
            print(shlex.join(SERVERS[server].reference_flags))
        case ["ask", server, url]:
            ask(server, url)
        case ["ask", server, url, kind] if kind in KINDS:
            ask(server, url, [kind])
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
