"""Triton model `derender`: tokens to text, reasoning and tool calls. See triton_renderer/tensors.py."""

import triton_python_backend_utils as pb_utils

from triton_renderer.adapter import PROBE_ANSWER, Adapter, operation, prepare
from triton_renderer.tensors import CHUNK, OUTPUT_TOKEN_IDS, RESPONSE, optional

settings = prepare("derender")  # before the imports that read files

from triton_renderer.derender import Derenderer  # noqa: E402
from triton_renderer.protocol.base import parse  # noqa: E402
from triton_renderer.protocol.stages import GeneratedChunk  # noqa: E402


class TritonPythonModel:
    """One tokenizer and the state of the open streams: a single instance, which sees all chunks of a stream."""

    def initialize(self, args):
        self.adapter = Adapter(pb_utils)
        self.derenderer = Derenderer.load(settings)

    def execute(self, requests):
        return self.adapter.answer_each(requests, self.answer)

    def answer(self, request):
        document = self.adapter.document(request, CHUNK)
        match operation(document):
            case "probe", _:
                documents = [PROBE_ANSWER]
            case "derender_chat", body:
                documents = [self.derenderer.derender_chat(body.get("body"))]
            case "derender_completion", body:
                documents = [self.derenderer.derender_completion(body.get("body"))]
            case "derender_responses", body:
                documents = [self.derenderer.derender_responses(body.get("body"))]
            case "derender_messages", body:
                documents = [self.derenderer.derender_messages(body.get("body"))]
            case _:
                token_ids = self.adapter.array(request, optional(OUTPUT_TOKEN_IDS))
                documents = self.derenderer.chunk(token_ids, parse(GeneratedChunk, document))
        return self.adapter.response({RESPONSE: documents})
