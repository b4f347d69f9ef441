"""Render and derender against what the reference answered, case by case: the whole way through the shim, in one process."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.golden.cases import CHAT, COMPLETION, DERENDER_CHAT, DERENDER_COMPLETION, MESSAGES, RESPONSES, features_of
from tests.golden.derendered import RULES, Comparison
from tests.golden.differences import ON_PURPOSE, check_hashes, check_pixels, normalized, normalized_error, take_out_pixels
from tests.golden.in_process import serving
from tests.golden.recording import compact, load
from tests.golden.servers import SERVERS, write_model
from tests.golden.streams import lengthened, stream_of

ROUTES = (CHAT, COMPLETION, RESPONSES, MESSAGES, DERENDER_CHAT, DERENDER_COMPLETION)

Recorded = dict[str, Any]

RECORDED: list[tuple[str, Recorded]] = [
    (server, case) for server in SERVERS for case in load(server) if case["route"] in ROUTES
]
"""Every recorded case, by server."""

LEAST = {"text": 150, "pictures": 60, "videos": 30, "error": 60, "derender": 120, "derender stream": 40}
"""How many cases of a kind there have to be."""
MOST_ON_PURPOSE = 0.03


def kind_of(case: Recorded) -> str:
    """Which of the counts a case belongs to."""
    if case["status"] != 200:
        return "error"
    if "calls" in case:
        return "derender stream"
    if "derender" in case["route"]:
        return "derender"
    request = json.dumps(case["request"])
    if "$video" in request or "$frames" in request:
        return "videos"
    return "pictures" if "$picture" in request else "text"


class Replay:
    """One server after the other, as the cases come: each is started once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self._name = ""
        self._http: httpx.AsyncClient | None = None
        self.rules: Counter[str] = Counter()
        """How many derendered answers differ in what."""

    def ask(self, server: str, route: str, body: Any) -> httpx.Response:
        """The answer of our `server`."""
        return self._runner.run(self._ask(server, route, body))

    def close(self) -> None:
        """Ends the last server."""
        self._runner.run(self._open.aclose())
        self._runner.close()

    async def _ask(self, server: str, route: str, body: Any) -> httpx.Response:
        if self._http is None or server != self._name:
            await self._open.aclose()
            model = self._folder / SERVERS[server].model
            if not model.exists():
                write_model(SERVERS[server].model, model)
            self._http = await self._open.enter_async_context(serving(SERVERS[server], model))
            self._name = server
        return await self._http.post(route, json=body)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replay]:
    """Our servers in place of the reference's."""
    replay = Replay(tmp_path_factory.mktemp("models"))
    yield replay
    replay.close()


@pytest.mark.parametrize(("server", "case"), RECORDED, ids=[f"{server}/{case['name']}" for server, case in RECORDED])
def test_the_answer_is_the_references(replay: Replay, server: str, case: Recorded) -> None:
    replies: list[httpx.Response] = []

    def ask(body: Any) -> httpx.Response:
        replies.append(replay.ask(server, case["route"], body))
        return replies[-1]

    answers = [answer for _, answer in stream_of(ask, case["request"], case.get("calls", [{}]))]
    status = ON_PURPOSE.get(f"{server}/{case['name']}")
    if status is None:
        check(server, replies, answers, case, replay.rules)
        return
    assert replies[-1].status_code == status, replies[-1].text[:500]
    with pytest.raises(AssertionError):  # else it is no longer a difference
        check(server, replies, answers, case, Counter())


def check(server: str, replies: list[httpx.Response], answers: list[Any], case: Recorded, rules: Counter[str]) -> None:
    """Raises AssertionError where the answers are not what the reference answered."""
    recorded = lengthened(case["answers"]) if "calls" in case else [case["answer"]]
    comparison = Comparison(server, case["request"])
    statuses = [answer.get("error", {}).get("code", 200) for answer in recorded] if "calls" in case else [case["status"]]
    for reply, reference, status in zip(replies, recorded, statuses, strict=True):
        assert reply.status_code == status, f"{reply.text[:500]}\n{json.dumps(reference)[:500]}"
        if reply.is_error:
            check_error(reply.json()["error"], comparison.error(normalized_error(reference["error"], case["route"])))
    answers = [compact(answer) for reply, answer in zip(replies, answers, strict=True) if not reply.is_error]
    recorded = [answer for reply, answer in zip(replies, recorded, strict=True) if not reply.is_error]
    if "calls" in case:
        comparison.stream(answers, recorded)
    elif "derender" in case["route"] and answers:
        comparison.whole(answers[0], recorded[0])
    elif answers:
        check_rendered(answers[0], recorded[0], case["request"])
    rules.update(comparison.rules)


def check_error(ours: Any, reference: Any) -> None:
    """The same for the error of an answer."""
    assert ours["message"]
    assert (ours["code"], ours["type"]) == (reference["code"], reference["type"])
    if reference["param"] is not None:  # it mostly names none; ours may be more exact
        assert f"{ours['param']}.".startswith(f"{reference['param']}."), ours


def check_rendered(answer: Any, recorded: Any, request: Any) -> None:
    """The same for an answer of a render route."""
    if isinstance(answer, dict) and answer.get("features"):
        check_hashes(answer["features"], recorded["features"])
    answer = normalized(answer, request, is_reference=False)
    recorded = normalized(recorded, request, is_reference=True)
    for pixels, reference in zip(take_out_pixels(answer), take_out_pixels(recorded), strict=True):
        check_pixels(pixels, reference)
    assert answer == recorded


def test_the_rules_for_derendered_answers_are_counted(replay: Replay) -> None:
    """Behind the replay: prints in how many cases a rule put something right."""
    for rule, count in replay.rules.most_common():
        print(f"{count:6} {rule}")
    assert replay.rules.keys() <= set(RULES)


def test_there_are_enough_cases_of_every_kind_and_no_two_alike() -> None:
    kinds = Counter(kind_of(case) for _, case in RECORDED)
    features = Counter(
        feature for _, case in RECORDED for feature in set(features_of(case["route"], case["request"], case.get("calls", ())))
    )
    print(f"\n{len(RECORDED)} recorded cases:", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    print("of the reference's version", ", ".join(sorted({case["version"] for _, case in RECORDED})))
    for server in SERVERS:
        print(f"{sum(name == server for name, _ in RECORDED):6} server {server}")
    for feature, count in sorted(features.items()):
        print(f"{count:6} {feature}")
    assert all(kinds[kind] >= least for kind, least in LEAST.items())
    requests = [
        (server, case["route"], json.dumps([case["request"], case.get("calls")], sort_keys=True)) for server, case in RECORDED
    ]
    assert len(set(requests)) == len(requests)


def test_few_cases_differ_on_purpose_and_each_says_why() -> None:
    recorded = {f"{server}/{case['name']}" for server, case in RECORDED}
    page = Path(__file__).parents[2].joinpath("docs", "compatibility.md").read_text(encoding="utf-8")
    assert ON_PURPOSE.keys() <= recorded
    assert len(ON_PURPOSE) <= MOST_ON_PURPOSE * len(RECORDED)
    for name in ON_PURPOSE:
        assert f"`{name}`" in page, name
