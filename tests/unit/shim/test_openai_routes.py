"""The coupled routes: chat, completions, models."""

import asyncio
import base64
from typing import Any

import orjson
import pytest

from client.shim.jobs import Jobs
from client.shim.triton import Tensors
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.stages import RenderJob

from .conftest import Running, Start
from .fakes import until

HELLO = {"model": "served", "messages": [{"role": "user", "content": "one two three"}]}


def events(body: bytes) -> list[Any]:
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [part.removeprefix("data: ") if part == "data: [DONE]" else orjson.loads(part[6:]) for part in parts]


async def test_chat_answers_with_the_one_document_of_the_ensemble(running: Running) -> None:
    response = await running.http.post("/v1/chat/completions", json=HELLO)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert document["choices"] == [{"index": 0, "content": "one two three", "finish_reason": "stop"}]
    assert document["usage"]["total_tokens"] == 9


async def test_chat_streams_documents_as_events_and_ends_with_done(running: Running) -> None:
    response = await running.http.post("/v1/chat/completions", json=HELLO | {"stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, done = events(response.content)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["content"] for chunk in chunks] == ["one", "two", "three", ""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_first_chunk_is_sent_before_the_last_one_is_made(running: Running) -> None:
    running.stages.pause_after = 2
    connection = running.connect("/v1/chat/completions", HELLO | {"stream": True})
    await running.stages.paused.wait()
    await connection.until(lambda c: len(c.events) == 2)
    assert not connection.complete
    running.stages.go_on.set()
    await connection.end()
    assert connection.events[-1] == "[DONE]"


async def test_stream_null_means_false(running: Running) -> None:
    response = await running.http.post("/v1/chat/completions", json=HELLO | {"stream": None})
    assert response.json()["choices"][0]["content"] == "one two three"


async def test_data_urls_travel_beside_the_document(running: Running) -> None:
    pictures = [b"\x89PNG first", b"second picture"]
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}
        for data in pictures
    ]
    content = [parts[0], {"type": "text", "text": "look"}, parts[1]]
    response = await running.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
    assert response.json()["choices"][0]["content"] == "look 10 14"
    ((_, job),) = running.stages.calls
    sent = job["body"]["messages"][0]["content"]
    assert [part["image_url"]["url"] for part in sent if "image_url" in part] == ["attached:0", "attached:1"]
    assert bytes(running.stages.inputs[0]["media"]) == b"".join(pictures)


async def test_large_bodies_give_the_same_answer_from_a_thread(running: Running) -> None:
    url = "data:image/png;base64," + base64.b64encode(bytes(400_000)).decode()
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]}
    response = await running.http.post("/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["content"] == "400000"


@pytest.mark.parametrize(
    ("headers", "field", "expected"),
    [({}, {"request_id": "mine"}, "chatcmpl-mine"), ({"x-request-id": "theirs"}, {"request_id": "mine"}, "chatcmpl-theirs")],
)
async def test_the_clients_id_is_echoed_and_never_the_key(
    running: Running, headers: dict[str, str], field: dict[str, str], expected: str
) -> None:
    responses = [await running.http.post("/v1/chat/completions", json=HELLO | field, headers=headers) for _ in range(2)]
    assert [response.json()["id"] for response in responses] == [expected, expected]
    first, second = (job["id"] for _, job in running.stages.calls)
    assert first != second
    assert expected not in (first, second)


async def test_without_an_id_each_answer_has_a_new_one(running: Running) -> None:
    ids = {(await running.http.post("/v1/chat/completions", json=HELLO)).json()["id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(id.startswith("chatcmpl-") for id in ids)


async def test_completion_with_one_prompt_is_passed_on_as_it_is(running: Running) -> None:
    response = await running.http.post("/v1/completions", json={"prompt": "a b", "request_id": "x"})
    document = response.json()
    assert document["id"] == "cmpl-x"
    assert document["choices"] == [{"index": 0, "text": "a b", "finish_reason": "stop"}]


@pytest.mark.parametrize(
    ("prompt", "said"), [(["a b", "c"], ["a b", "c"]), ([1, 2], ["1 2"]), ([[1, 2], [3]], ["1 2", "3"]), ("a", ["a"])]
)
async def test_all_four_forms_of_prompt(running: Running, prompt: Any, said: list[str]) -> None:
    response = await running.http.post("/v1/completions", json={"prompt": prompt})
    assert [choice["text"] for choice in response.json()["choices"]] == said


async def test_several_prompts_become_one_document(running: Running) -> None:
    response = await running.http.post("/v1/completions", json={"prompt": ["a b", "c", "d e f"], "n": 2, "request_id": "x"})
    document = response.json()
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [choice["text"] for choice in document["choices"]] == ["a b", "a b", "c", "c", "d e f", "d e f"]
    assert document["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 12,
        "total_tokens": 18,
        "prompt_tokens_details": None,
    }
    jobs = [job for _, job in running.stages.calls]
    assert {job["external_id"] for job in jobs} == {"cmpl-x"}
    assert len({job["id"] for job in jobs}) == 3
    assert len({job["created"] for job in jobs}) == 1
    assert sorted(job["choice_offset"] for job in jobs) == [0, 2, 4]


async def test_several_prompts_stream_interleaved_with_one_usage_chunk_and_one_done(running: Running) -> None:
    body = {"prompt": ["a b", "c", "d e f"], "stream": True, "stream_options": {"include_usage": True}}
    response = await running.http.post("/v1/completions", json=body)
    *chunks, usage, done = events(response.content)
    assert done == "[DONE]"
    said: dict[int, str] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        said[choice["index"]] = said.get(choice["index"], "") + choice["text"]
    assert said == {0: "ab", 1: "c", 2: "def"}
    assert sum(chunk["choices"][0].get("finish_reason") == "stop" for chunk in chunks) == 3
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 6, "completion_tokens": 12, "total_tokens": 18}


async def test_without_usage_being_asked_for_there_is_no_usage_chunk(running: Running) -> None:
    response = await running.http.post("/v1/completions", json={"prompt": ["a", "b"], "stream": True})
    assert all(event == "[DONE]" or event["choices"] for event in events(response.content))


@pytest.mark.parametrize("stream", [False, True])
async def test_one_failing_prompt_fails_the_request_and_ends_the_others(running: Running, stream: bool) -> None:
    others_wait = asyncio.Event()

    async def on_step(job: dict[str, Any], number: int) -> None:
        if job["body"]["prompt"] == "bad":
            raise InvalidRequest("no room", "prompt")
        await others_wait.wait()

    running.stages.on_step = on_step
    response = await running.http.post("/v1/completions", json={"prompt": ["a", "bad", "c"], "stream": stream})
    assert response.status_code == 400
    assert response.json()["error"] == {"message": "no room", "type": "BadRequestError", "param": "prompt", "code": 400}
    ids = {job["body"]["prompt"]: job["id"] for _, job in running.stages.calls}
    assert sorted(running.stages.given_up) == sorted([ids["a"], ids["c"]])
    await until(lambda: running.stages.aborts)
    assert sorted(running.stages.aborts[0]["request_ids"]) == sorted(ids.values())


@pytest.mark.parametrize("prompts", [2, 5])
async def test_more_prompts_than_can_wait_are_refused(start: Start, prompts: int) -> None:
    async with start(max_waiting_requests=4) as running:
        response = await running.http.post("/v1/completions", json={"prompt": ["x"] * prompts})
    assert response.status_code == (200 if prompts <= 4 else 400)


async def test_a_job_holds_what_was_set_of_the_known_fields(running: Running) -> None:
    sent = {"max_tokens": None, "stop": "x", "temperature": 0.5, "seed": 7, "unknown": {"a": 1}}
    await running.http.post("/v1/completions", json={"prompt": ["a", "b"], **sent})
    expected = {"max_tokens": None, "stop": ["x"], "temperature": 0.5, "seed": 7}
    assert [job["body"] for _, job in running.stages.calls] == [{"prompt": prompt, **expected} for prompt in "ab"]
    message = {"role": "user", "content": "hi", "name": "kept for the template"}
    await running.http.post("/v1/chat/completions", json={"messages": [message], **sent})
    assert running.stages.calls[-1][1]["body"] == {"messages": [message], **expected}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/completions/render"])
@pytest.mark.parametrize(("prompts", "status"), [(1, 200), (20, 200), (40, 413)])
async def test_prompts_that_multiply_a_large_body_are_413(start: Start, path: str, prompts: int, status: int) -> None:
    body = {"prompt": ["x"] * prompts, "kv_transfer_params": {"padding": "y" * 3000}, "unknown": "z" * 50_000}
    async with start(max_request_bytes=100_000) as running:
        response = await running.http.post(path, json=body)
        assert response.status_code == status
        if status == 413:
            error = response.json()["error"]
            assert (error["type"], error["param"]) == ("RequestTooLargeError", "prompt")
            assert "each of the 40 prompts" in error["message"]
            assert running.stages.calls == []


@pytest.mark.parametrize(
    ("path", "stream"), [("/v1/completions", False), ("/v1/completions", True), ("/v1/completions/render", False)]
)
async def test_prompts_are_sent_as_many_at_once_as_can_run(
    start: Start, path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    inputs = Jobs.inputs

    async def counted(jobs: Jobs[Any], job: RenderJob) -> Tensors:
        made.append(job.id)
        return await inputs(jobs, job)

    monkeypatch.setattr(Jobs, "inputs", counted)
    async with start(max_running_requests=2) as running:
        running.stages.pause_after = 0
        connection = running.connect(path, {"prompt": list("abcde"), "stream": stream})
        await until(lambda: len(running.stages.calls) == 2)
        await asyncio.sleep(0.05)
        assert len(running.stages.calls) == len(made) == 2
        running.stages.go_on.set()
        await connection.end()
        assert connection.status == 200
        assert len(running.stages.calls) == len(made) == 5


async def test_models_lists_the_served_one(running: Running) -> None:
    response = await running.http.get("/v1/models")
    (card,) = response.json()["data"]
    assert response.json()["object"] == "list"
    assert card["id"] == "served"
    assert card["max_model_len"] == 512
    assert card["root"] == "shapes-vl"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("model", [None, "", "served"])
async def test_no_model_means_the_served_one(running: Running, path: str, model: str | None) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "model": model}
    assert (await running.http.post(path, json=body)).status_code == 200
