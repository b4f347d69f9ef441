"""Tensors in and out, and the one final flag of every request."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.unit import fake_pb_utils as pb
from triton_renderer.adapter import Adapter, Outbox, ResponseStream, operation
from triton_renderer.errors import InvalidRequest, StageUnavailable, from_wire
from triton_renderer.tensors import CHUNK, CONTEXT, EMBEDDINGS, MEDIA, OUTPUT_TOKEN_IDS, RESPONSE, TOKEN_IDS, optional

ADAPTER = Adapter(pb)
OUTPUTS = {OUTPUT_TOKEN_IDS: np.array([1, 2]), CHUNK: b"{}"}


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def sender() -> pb.Sender:
    return pb.Sender()


@pytest.fixture
def stream(outbox: Outbox, sender: pb.Sender) -> ResponseStream:
    return ResponseStream(ADAPTER, pb, sender, outbox)


def test_left_out_optional_input_is_empty_and_a_required_one_is_refused() -> None:
    assert ADAPTER.array(pb.Request({}), MEDIA).size == 0
    with pytest.raises(InvalidRequest, match="token_ids is missing"):
        ADAPTER.array(pb.Request({}), TOKEN_IDS)


@pytest.mark.parametrize("array", [np.array([1], np.int32), np.array([[1]]), np.array(1)])
def test_input_of_another_dtype_or_shape_is_refused(array: np.ndarray) -> None:
    with pytest.raises(InvalidRequest, match="token_ids"):
        ADAPTER.array(pb.Request({"token_ids": array}), TOKEN_IDS)


def test_control_input_holds_one_document() -> None:
    assert ADAPTER.document(pb.Request({"context": pb.document(b"{}")}), CONTEXT) == b"{}"
    with pytest.raises(InvalidRequest, match="one JSON document"):
        ADAPTER.document(pb.Request({"context": np.array([], dtype=object)}), CONTEXT)


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"\xff", b"3"])
def test_control_document_that_is_no_object_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidRequest):
        operation(document)


def test_outputs_have_the_dtype_of_their_spec() -> None:
    response = ADAPTER.response({OUTPUT_TOKEN_IDS: np.array([1, 2], np.int32), CHUNK: b"{}", RESPONSE: [b"a", b"b"]})
    assert response.outputs["output_token_ids"].dtype == np.int64
    assert response.outputs["chunk"].tolist() == [b"{}"]
    assert response.outputs["response"].tolist() == [b"a", b"b"]
    assert ADAPTER.response({RESPONSE: []}).outputs["response"].shape == (0,)


class Gpu:
    """Notes what the adapter does to the GPU, whose tensors are stood in for by some on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)
        monkeypatch.setattr(pb, "get_input_tensor_by_name", lambda request, name: self)
        monkeypatch.setattr(pb.Tensor, "from_dlpack", self.from_dlpack, raising=False)
        self.memory = torch.arange(4, dtype=torch.uint8)

    def synchronize(self) -> None:
        self.log.append("wait")

    def from_dlpack(self, name: str, value: Any) -> pb.Tensor:
        self.log.append("hand over")
        return pb.Tensor(name, value.array)

    def is_cpu(self) -> bool:
        return False

    def to_dlpack(self) -> Any:
        self.log.append("take")
        return torch.utils.dlpack.to_dlpack(self.memory)


@dataclass
class OnGpu:
    """A tensor of torch."""

    array: npt.NDArray[Any]
    is_cuda: bool = True
    device: str = "cuda:0"


def test_tensor_on_the_gpu_is_computed_before_another_process_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    response = ADAPTER.response({EMBEDDINGS: OnGpu(np.arange(3, dtype=np.uint8))})
    assert gpu.log == ["wait", "hand over"]
    assert response.outputs["embeddings"].tolist() == [0, 1, 2]


def test_tensor_that_comes_on_the_gpu_is_copied_before_triton_frees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    taken = ADAPTER.bytes_tensor(pb.Request({}), EMBEDDINGS)
    assert gpu.log == ["take", "wait"], "the copy has not run when the request may end"
    gpu.memory.zero_()
    assert taken.tolist() == [0, 1, 2, 3]


def test_bytes_on_the_cpu_are_copied_as_well_and_left_out_ones_are_empty() -> None:
    memory = np.arange(4, dtype=np.uint8)
    taken = ADAPTER.bytes_tensor(pb.Request({"embeddings": memory}), EMBEDDINGS)
    memory[:] = 0
    assert taken.tolist() == [0, 1, 2, 3]
    assert ADAPTER.bytes_tensor(pb.Request({}), optional(EMBEDDINGS)).shape == (0,)


def test_one_bad_request_does_not_harm_its_neighbours() -> None:
    def answer(value: int) -> object:
        if value == 1:
            raise InvalidRequest("no ones", "value")
        if value == 2:
            raise ZeroDivisionError("inner workings")
        return ADAPTER.response({RESPONSE: [b"%d" % value]})

    responses = ADAPTER.answer_each([0, 1, 2, 3], answer)
    assert [response.error is None for response in responses] == [True, False, False, True]
    refused = from_wire("in ensemble 'chat', " + responses[1].error.message)
    assert (type(refused), refused.message, refused.param) == (InvalidRequest, "no ones", "value")
    assert responses[1].error.code == pb.TritonError.INVALID_ARG
    assert "inner workings" not in responses[2].error.message
    assert from_wire(responses[2].error.message).status == 500


def test_success_has_one_final_flag_on_the_last_response(stream: ResponseStream, sender: pb.Sender, outbox: Outbox) -> None:
    stream.send(OUTPUTS)
    stream.send(OUTPUTS, final=True)
    outbox.close()
    assert [flags for _, flags in sender.sent] == [0, 1]


def test_failure_has_one_final_flag(stream: ResponseStream, sender: pb.Sender, outbox: Outbox) -> None:
    stream.send(OUTPUTS)
    stream.fail(StageUnavailable("going down"))
    outbox.close()
    assert [flags for _, flags in sender.sent] == [0, 1]
    assert sender.sent[1][0].error.code == pb.TritonError.UNAVAILABLE  # type: ignore[union-attr]


def test_nothing_follows_the_end(stream: ResponseStream, sender: pb.Sender, outbox: Outbox) -> None:
    stream.send(OUTPUTS, final=True)
    stream.send(OUTPUTS)
    stream.fail(RuntimeError())
    stream.send(OUTPUTS, final=True)
    outbox.close()
    assert sender.num_final == len(sender.sent) == 1


def test_response_that_cannot_be_built_becomes_the_error_that_ends_the_stream(
    stream: ResponseStream, sender: pb.Sender, outbox: Outbox
) -> None:
    stream.send({OUTPUT_TOKEN_IDS: np.array(["text"])})
    outbox.close()
    ((response, flags),) = sender.sent
    assert flags == 1
    assert response is not None
    assert response.error is not None
    stream.send(OUTPUTS, final=True)
    assert sender.num_final == 1


def test_sender_that_raises_does_not_stop_the_outbox(outbox: Outbox, sender: pb.Sender) -> None:
    gone = pb.Sender([(None, 1)])  # everything more raises
    ResponseStream(ADAPTER, pb, gone, outbox).send(OUTPUTS, final=True)
    ResponseStream(ADAPTER, pb, sender, outbox).send(OUTPUTS, final=True)
    outbox.close()
    assert sender.num_final == 1


@pytest.mark.parametrize("failures", [1, 2])
def test_response_that_cannot_be_sent_still_ends_its_stream(outbox: Outbox, failures: int) -> None:
    class Full(pb.Sender):
        """No shared memory left for the first responses."""

        def send(self, response: pb.InferenceResponse | None = None, flags: int = 0) -> None:
            nonlocal failures
            if response is not None and failures:
                failures -= 1
                raise RuntimeError("failed to increase the shared memory pool")
            super().send(response, flags)

    sender = Full()
    stream = ResponseStream(ADAPTER, pb, sender, outbox)
    stream.send(OUTPUTS)
    stream.send(OUTPUTS)
    stream.send(OUTPUTS, final=True)
    outbox.close()
    assert [flags for _, flags in sender.sent] == [1], "exactly one response with the final flag, and nothing that looks whole"
    assert sender.sent[0][0] is None or sender.sent[0][0].error is not None


def test_racing_ends_give_one_final_flag(outbox: Outbox) -> None:
    senders = [pb.Sender() for _ in range(50)]
    for sender in senders:
        stream = ResponseStream(ADAPTER, pb, sender, outbox)
        threads = [
            threading.Thread(target=stream.fail, args=(StageUnavailable("x"),)),
            threading.Thread(target=stream.send, args=(OUTPUTS, True)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    outbox.close()
    assert [sender.num_final for sender in senders] == [1] * 50


def test_cancellation_is_seen_until_the_end(stream: ResponseStream, sender: pb.Sender) -> None:
    assert not stream.is_cancelled()
    sender.cancelled = True
    assert stream.is_cancelled()
    stream.fail(RuntimeError())
    assert not stream.is_cancelled()
