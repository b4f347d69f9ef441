"""Triton model `render`: a client's request to tokens and multimodal items. See triton_renderer/tensors.py."""

import triton_python_backend_utils as pb_utils

from triton_renderer.adapter import Adapter, operation, prepare
from triton_renderer.tensors import (
    CONTEXT,
    MEDIA,
    MEDIA_OFFSETS,
    MM_DATA,
    MM_OFFSETS,
    REQUEST,
    TOKEN_IDS,
    concatenate,
    split,
)

settings = prepare("render")  # before the imports that read files

import numpy as np  # noqa: E402
import orjson  # noqa: E402

from triton_renderer.errors import InvalidRequest  # noqa: E402
from triton_renderer.protocol.base import parse  # noqa: E402
from triton_renderer.protocol.stages import RenderJob  # noqa: E402
from triton_renderer.render import Renderer  # noqa: E402


class TritonPythonModel:
    """One tokenizer, chat template and image processor."""

    def initialize(self, args):
        self.adapter = Adapter(pb_utils)
        self.renderer = Renderer.load(settings)

    def execute(self, requests):
        return self.adapter.answer_each(requests, self.answer)

    def answer(self, request):
        document = self.adapter.document(request, REQUEST)
        op, body = operation(document)
        if op == "probe":
            facts = {"ok": True, "max_model_len": self.renderer.max_model_len}
            return self.response(np.empty(0, np.int64), [], orjson.dumps(facts))
        try:
            media = split(self.adapter.array(request, MEDIA), self.adapter.array(request, MEDIA_OFFSETS))
        except ValueError as error:
            raise InvalidRequest(f"media_offsets: {error}", "media_offsets") from error
        rendered = self.renderer.render(parse(RenderJob, body), media)
        return self.response(rendered.token_ids, rendered.items, rendered.context.model_dump_json(exclude_none=True).encode())

    def response(self, token_ids, items, context):
        mm_data, mm_offsets = concatenate(items)
        return self.adapter.response({TOKEN_IDS: token_ids, MM_DATA: mm_data, MM_OFFSETS: mm_offsets, CONTEXT: context})
