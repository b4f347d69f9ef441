"""Triton model `prefill_decode`: tokens and the encoder's rows to new tokens. See triton_renderer/tensors.py."""

import numpy as np
import orjson
import triton_python_backend_utils as pb_utils

from triton_renderer.adapter import PROBE_ANSWER, Adapter, Outbox, ResponseStream, operation, prepare
from triton_renderer.tensors import CHUNK, CONTEXT, EMBEDDINGS, ENCODED, OUTPUT_TOKEN_IDS, TOKEN_IDS, optional

settings = prepare("prefill_decode")  # before the imports that read files

from triton_renderer.prefill_decode import PrefillDecode  # noqa: E402
from triton_renderer.protocol.base import parse  # noqa: E402
from triton_renderer.protocol.stages import AbortOperation, EncodedItems, RequestContext  # noqa: E402
from triton_renderer.stage_metrics import TritonMetrics  # noqa: E402

NO_TOKENS = np.empty(0, np.int64)


class Sink:
    """Turns the engine's chunks into responses of one request."""

    def __init__(self, stream):
        self.stream = stream
        self.fail = stream.fail
        self.is_cancelled = stream.is_cancelled

    def send(self, chunk, token_ids):
        outputs = {OUTPUT_TOKEN_IDS: np.array(token_ids, np.int64), CHUNK: chunk.model_dump_json(exclude_none=True).encode()}
        self.stream.send(outputs, final=chunk.final)


class TritonPythonModel:
    """One language model on the instance's device. Decoupled: responses come from the engine's thread."""

    def initialize(self, args):
        self.adapter = Adapter(pb_utils)
        self.outbox = Outbox()
        self.stage = PrefillDecode.load(settings)
        self.metrics = TritonMetrics(pb_utils, self.stage.engine.metrics.registry)
        self.metrics.start()

    def execute(self, requests):
        for request in requests:
            stream = ResponseStream(self.adapter, pb_utils, request.get_response_sender(), self.outbox)
            try:
                self.start(request, stream)
            except Exception as error:  # whatever it is, this request ends with it and the others go on
                stream.fail(error)

    def start(self, request, stream):
        document = self.adapter.document(request, CONTEXT)
        match operation(document):
            case "probe", _:
                facts = {"ok": True} | self.stage.check_health()
                stream.send({OUTPUT_TOKEN_IDS: NO_TOKENS, CHUNK: orjson.dumps(facts)}, final=True)
            case "abort", body:
                abort = parse(AbortOperation, body)
                self.stage.abort(abort.request_ids, abort.remember)
                stream.send({OUTPUT_TOKEN_IDS: NO_TOKENS, CHUNK: PROBE_ANSWER}, final=True)
            case _:
                encoded = self.adapter.array(request, optional(ENCODED))
                self.stage.submit(
                    self.adapter.array(request, TOKEN_IDS),
                    self.adapter.bytes_tensor(request, optional(EMBEDDINGS)),
                    parse(EncodedItems, bytes(encoded[0])) if encoded.size else EncodedItems(),
                    parse(RequestContext, document),
                    Sink(stream),
                )

    def finalize(self):
        self.stage.close()
        self.outbox.close()
        self.metrics.close()
