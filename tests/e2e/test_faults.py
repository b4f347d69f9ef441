"""A stage that goes wrong at some point of a request: its client gets one error, the others their answers, nobody waits.

The stages are the real ones, but a request whose name says so makes one of them raise, or answer with something else than
was agreed. A stage whose process dies is in test_killed_stages.py.
"""

import json
import queue
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import pytest
import tritonclient.grpc

from tests.e2e.asking import MODEL, image_part, noise, probe, tensor, user
from tests.e2e.watching import metrics, wait_for
from triton_renderer.launcher.runtime import MODEL_REPOSITORY
from triton_renderer.launcher.supervisor import Stack, free_ports, serve
from triton_renderer.settings import load_settings
from triton_renderer.tensors import REQUEST

FAULTS = {
    "render": """
_answer = TritonPythonModel.answer

def answer(self, request):
    document = self.adapter.document(request, REQUEST)
    if b"fault-render-raises" in document:
        raise RuntimeError("the secret reason")
    if b"fault-render-loses" in document:
        return self.adapter.response({TOKEN_IDS: np.empty(0, np.int64)})
    return _answer(self, request)

TritonPythonModel.answer = answer
""",
    "encode": """
_answer = TritonPythonModel.answer

def answer(self, request):
    document = self.adapter.document(request, CONTEXT)
    if b"fault-encode-raises" in document:
        raise RuntimeError("the secret reason")
    if b"fault-encode-loses" in document:
        return self.adapter.response({EMBEDDINGS: NOTHING.embeddings})
    if b"fault-encode-empties" in document:
        return self.adapter.response({EMBEDDINGS: NOTHING.embeddings, ENCODED: bytes(_answer(self, request).output_tensors()[1].as_numpy()[0])})
    if b"fault-encode-halves" in document:
        response = _answer(self, request)
        outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        halved = outputs["embeddings"][: len(outputs["embeddings"]) // 2]
        return self.adapter.response({EMBEDDINGS: halved, ENCODED: bytes(outputs["encoded"][0])})
    return _answer(self, request)

TritonPythonModel.answer = answer
""",
    "prefill_decode": """
_start, _send = TritonPythonModel.start, Sink.send

def start(self, request, stream):
    document = self.adapter.document(request, CONTEXT)
    if b"fault-prefill_decode-raises" in document:
        raise RuntimeError("the secret reason")
    stream.is_to_break = b"fault-prefill_decode-breaks" in document
    return _start(self, request, stream)

def send(self, chunk, token_ids):
    if self.stream.is_to_break and (chunk.number == 2 or chunk.final):
        raise RuntimeError("the secret reason")
    return _send(self, chunk, token_ids)

TritonPythonModel.start, Sink.send = start, send
""",
    "derender": """
_answer, marked = TritonPythonModel.answer, {}

def answer(self, request):
    document = self.adapter.document(request, CHUNK)
    if operation(document)[0] is not None:
        return _answer(self, request)
    chunk = parse(GeneratedChunk, document)
    if chunk.derender is not None:
        marked[chunk.id] = chunk.derender.id
    name = marked[chunk.id]
    if "fault-derender-raises" in name:
        raise RuntimeError("the secret reason")
    if "fault-derender-breaks" in name and (chunk.number == 2 or chunk.final):
        raise RuntimeError("the secret reason")
    if "fault-derender-ends-badly" in name and chunk.final:
        raise RuntimeError("the secret reason")
    if "fault-derender-loses" in name and (chunk.number == 2 or chunk.final):
        return self.adapter.response({})
    if "fault-derender-swaps" in name and (chunk.number == 2 or chunk.final):
        chunk = chunk.model_copy(update={"number": chunk.number + 1})
        return self.adapter.response({RESPONSE: self.derenderer.chunk(self.adapter.array(request, OUTPUT_TOKEN_IDS), chunk)})
    return _answer(self, request)

TritonPythonModel.answer = answer
""",
}
BEFORE_THE_FIRST_CHUNK = [
    "fault-render-raises",
    "fault-render-loses",
    "fault-encode-raises",
    "fault-encode-loses",
    "fault-encode-empties",
    "fault-encode-halves",
    "fault-prefill_decode-raises",
    "fault-derender-raises",
]
IN_THE_MIDDLE = [
    "fault-prefill_decode-breaks",
    "fault-derender-breaks",
    "fault-derender-ends-badly",
    "fault-derender-loses",
    "fault-derender-swaps",
]
ROUTE = "/v1/chat/completions"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models") / "repository"
    shutil.copytree(MODEL_REPOSITORY, repository, ignore=shutil.ignore_patterns("__pycache__"))
    for stage, fault in FAULTS.items():
        with (repository / stage / "1" / "model.py").open("a") as file:
            file.write(fault)
    with serve(load_settings(**free_ports()), tmp_path_factory.mktemp("logs"), repository=repository) as stack:
        yield stack


def ask(stack: Stack, name: str, stream: bool, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": user(image_part(noise(5)), "What is in this picture?"), "request_id": name}
    body |= {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "stream": stream} | fields
    return httpx.post(stack.shim_url + ROUTE, json=body, timeout=30)


def requests_by_outcome(stack: Stack) -> Counter[str]:
    shown = metrics(stack.shim_url)
    names = ("ok", "client_error", "server_error", "cancelled")
    return Counter({name: int(shown.get(("triton_renderer_requests_total", name, ROUTE), 0)) for name in names})


def check_error(error: dict[str, Any]) -> None:
    assert error["code"] == 500
    assert error["message"]
    assert "secret" not in error["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_CHUNK + IN_THE_MIDDLE)
def test_fault_is_one_error_of_its_request_alone(stack: Stack, fault: str, stream: bool) -> None:
    before = requests_by_outcome(stack)
    with ThreadPoolExecutor(3) as pool:
        faulty, *others = pool.map(lambda name: ask(stack, name, stream), [fault, "well", "well, too"])
    if stream and fault in IN_THE_MIDDLE:
        assert faulty.status_code == 200
        *chunks, error, done = [line.removeprefix("data: ") for line in faulty.text.splitlines() if line]
        assert done == "[DONE]"
        check_error(json.loads(error)["error"])
        assert chunks
        for chunk in map(json.loads, chunks):
            assert [choice["finish_reason"] for choice in chunk["choices"]] == [None]
    else:
        error = faulty.json()["error"]
        check_error(error)
        assert faulty.status_code == error["code"]
    for other in others:
        assert other.status_code == 200, other.text
        assert other.text.count('"finish_reason":"length"') == 1
    outcomes = requests_by_outcome(stack) - before
    assert outcomes == Counter(ok=2, server_error=1)
    with tritonclient.grpc.InferenceServerClient(stack.triton_grpc) as client:
        wait_for(lambda: probe(client, "prefill_decode")["running"] == 0, 10, "the work behind the request to end")
    assert httpx.get(f"{stack.shim_url}/health", timeout=5).status_code == 200


@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_CHUNK + IN_THE_MIDDLE)
def test_triton_itself_ends_the_request_once(stack: Stack, fault: str) -> None:
    """Of a caller of the ensemble, without the shim: one error, and behind it nothing but other requests' answers."""
    body = {"messages": user(image_part(noise(5)), "?"), "stream": True, "max_tokens": 40, "ignore_eos": True}
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(stack.triton_grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), stream_timeout=60)
        for name in (fault, "well"):
            request = {"kind": "chat", "id": f"{name} {uuid4().hex}", "external_id": name, "body": body}
            inputs = [tensor(REQUEST, json.dumps(request).encode())]
            client.async_stream_infer("chat", inputs, request_id=name, enable_empty_final_response=True)
        ended: Counter[str] = Counter()
        errors: list[Exception] = []
        while ended["well"] == 0 or ended.total() + len(errors) < 2:
            result, error = answers.get(timeout=30)
            if error is not None:
                errors.append(error)
                continue
            response = result.get_response()
            assert not ended[response.id], "an answer behind the end"
            ended[response.id] += response.parameters["triton_final_response"].bool_param
        client.stop_stream(cancel_requests=True)
        wait_for(lambda: probe(client, "prefill_decode")["running"] == 0, 10, "the work behind the requests to end")
    assert len(errors) == 1, errors
    assert "secret" not in str(errors[0])
