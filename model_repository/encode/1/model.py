"""Triton model `encode`: multimodal items to rows for the language model. See triton_renderer/tensors.py."""

import orjson
import triton_python_backend_utils as pb_utils

from triton_renderer.adapter import Adapter, operation, prepare
from triton_renderer.tensors import CONTEXT, EMBEDDINGS, ENCODED, MM_DATA, MM_OFFSETS, optional

settings = prepare("encode")  # before the imports that read files

from triton_renderer.encode import Encoder  # noqa: E402
from triton_renderer.encode.encoder import NOTHING  # noqa: E402
from triton_renderer.encode.metrics import cache_registry  # noqa: E402
from triton_renderer.protocol.base import parse  # noqa: E402
from triton_renderer.protocol.stages import RequestContext  # noqa: E402
from triton_renderer.stage_metrics import TritonMetrics  # noqa: E402


class TritonPythonModel:
    """One vision tower on the instance's device."""

    def initialize(self, args):
        self.adapter = Adapter(pb_utils)
        self.encoder = Encoder.load(settings)
        self.metrics = TritonMetrics(pb_utils, cache_registry(self.encoder.cache))
        self.metrics.start()

    def execute(self, requests):
        return self.adapter.answer_each(requests, self.answer)

    def answer(self, request):
        document = self.adapter.document(request, CONTEXT)
        if operation(document)[0] == "probe":
            cache = self.encoder.cache
            facts = {"ok": True, "cache_hits": cache.hits, "cache_misses": cache.misses, "cache_bytes": cache.num_bytes}
            return self.adapter.response({EMBEDDINGS: NOTHING.embeddings, ENCODED: orjson.dumps(facts)})
        result = self.encoder.encode(
            self.adapter.array(request, optional(MM_DATA)),
            self.adapter.array(request, optional(MM_OFFSETS)),
            parse(RequestContext, document),
        )
        return self.adapter.response({EMBEDDINGS: result.embeddings, ENCODED: result.encoded.model_dump_json().encode()})

    def finalize(self):
        self.metrics.close()
