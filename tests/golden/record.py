"""Asks a reference server what it answers, and stores it under `recordings/`.

    python -m tests.golden.record flags SERVER FOLDER    writes the model into FOLDER, prints the reference's arguments
    python -m tests.golden.record ask SERVER URL         asks the running server at URL every case of SERVER

SERVER is one of `servers.SERVERS`. The reference is vLLM's render server: `vllm launch render FOLDER --port … ARGUMENTS`.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.golden import agent_cases, derender_cases, dialect_cases, error_cases, picture_cases, text_cases
from tests.golden.cases import Case, expanded
from tests.golden.recording import RECORDINGS, compact
from tests.golden.servers import SERVERS, write_model

TIMEOUT_S = 120.0


def all_cases() -> list[Case]:
    """Every case of every server."""
    return [
        *text_cases.cases(),
        *agent_cases.cases(),
        *dialect_cases.cases(),
        *picture_cases.cases(),
        *error_cases.cases(),
        *derender_cases.cases(),
    ]


def ask(server: str, url: str) -> None:
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
        lines: list[dict[str, Any]] = [{"server": server, "version": http.get("/version").json()["version"]}]
        for case in cases:
            reply = http.post(case.route, json=expanded(case.body))
            lines.append(
                {
                    "name": case.name,
                    "route": case.route,
                    "request": case.body,
                    "status": reply.status_code,
                    "answer": compact(reply.json()),
                }
            )
            print(reply.status_code, case.name, reply.text[:200] if reply.is_error else "", flush=True)
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    (RECORDINGS / f"{server}.jsonl").write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> None:
    """The command line."""
    match arguments:
        case ["flags", server, folder]:
            write_model(SERVERS[server].model, Path(folder))
            print(shlex.join(SERVERS[server].reference_flags))
        case ["ask", server, url]:
            ask(server, url)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
