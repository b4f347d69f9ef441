"""The stages without Triton: real render, real derender, and between them an engine that says what a test tells it to."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from client.shim.health import PROBE_TENSORS
from client.shim.triton import SPECS, Tensor, Tensors, document_tensor
from tests.unit.derender.answers import derenderer, tokens
from triton_renderer.derender import Derenderer
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.generate import GenerateLogprobs, GenerateTokenLogprob
from triton_renderer.protocol.stages import ChunkChoice, GeneratedChunk, RenderJob, RequestContext
from triton_renderer.render import Rendered, Renderer
from triton_renderer.tensors import (
    CHUNK,
    CONTEXT,
    MEDIA,
    MEDIA_OFFSETS,
    MM_DATA,
    MM_OFFSETS,
    REQUEST,
    RESPONSE,
    TOKEN_IDS,
    TensorSpec,
    concatenate,
    split,
)


@dataclass
class Says:
    """What the engine answers, and how it comes to its end."""

    text: str
    finish_reason: str = "stop"
    stop_reason: str | None = None
    tokens_a_chunk: int = 1

    @property
    def token_ids(self) -> list[int]:
        ends_by_itself = self.finish_reason == "stop" and self.stop_reason is None
        return tokens(self.text + ("<|im_end|>" if ends_by_itself else ""))


@dataclass
class InProcessStages:
    """`Stages` of one model. `says` is the answer to the next requests, `rendered` what they were rendered to."""

    renderer: Renderer
    derenderer: Derenderer = field(default_factory=derenderer)
    says: Says = field(default_factory=lambda: Says("hello"))
    rendered: list[Rendered] = field(default_factory=list)
    failure: tuple[int, Exception] | None = None
    """Raised behind so many chunks."""

    async def call(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> Tensors:
        control = {"render": REQUEST, "derender": CHUNK}.get(model, CONTEXT)
        document = orjson.loads(inputs[control.name][0])
        if document.get("op") == "probe":
            answer = {PROBE_TENSORS[model][1].name: self._probe_answer()}
        elif model == "render":
            answer = self._render(document, inputs)
        else:
            answer = self._derender(document)
        return {spec.name: answer[spec.name] for spec in outputs or SPECS[model].outputs}

    async def stream(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> AsyncGenerator[Tensors, None]:
        if model != "chat":
            yield {PROBE_TENSORS[model][1].name: self._probe_answer()}
            return
        rendered = self._rendered(orjson.loads(inputs[REQUEST.name][0]), inputs)
        for number, (token_ids, chunk) in enumerate(self._generate(rendered)):
            if self.failure is not None and self.failure[0] == number:
                raise self.failure[1]
            yield _documents(self.derenderer.chunk(np.array(token_ids, np.int64), chunk))

    async def is_live(self) -> bool:
        return True

    async def reload(self, stage: str) -> None:
        raise AssertionError(f"{stage} is never dead")

    async def close(self) -> None:
        pass

    def _probe_answer(self) -> Tensor:
        return document_tensor(orjson.dumps({"ok": True, "max_model_len": self.renderer.max_model_len}))

    def _rendered(self, document: dict[str, Any], inputs: Tensors) -> Rendered:
        media = split(inputs[MEDIA.name], inputs[MEDIA_OFFSETS.name])
        self.rendered.append(self.renderer.render(parse(RenderJob, document), media))
        return self.rendered[-1]

    def _render(self, document: dict[str, Any], inputs: Tensors) -> Tensors:
        rendered = self._rendered(document, inputs)
        data, offsets = concatenate(rendered.items)
        return {
            TOKEN_IDS.name: rendered.token_ids,
            MM_DATA.name: data,
            MM_OFFSETS.name: offsets,
            CONTEXT.name: document_tensor(rendered.context.model_dump_json(exclude_none=True).encode()),
        }

    def _derender(self, document: dict[str, Any]) -> Tensors:
        operations = {
            "derender_chat": self.derenderer.derender_chat,
            "derender_completion": self.derenderer.derender_completion,
            "derender_responses": self.derenderer.derender_responses,
            "derender_messages": self.derenderer.derender_messages,
        }
        return _documents([operations[document["op"]](document["body"])])

    def _generate(self, rendered: Rendered) -> list[tuple[list[int], GeneratedChunk]]:
        # As between Triton's models: through JSON.
        context = RequestContext.model_validate_json(rendered.context.model_dump_json(exclude_none=True))
        token_ids = self.says.token_ids
        size = self.says.tokens_a_chunk if context.stream else len(token_ids)
        chunks = []
        for number, start in enumerate(range(0, len(token_ids), size)):
            part = token_ids[start : start + size]
            final = start + size >= len(token_ids)
            choice = ChunkChoice(
                index=0,
                num_tokens=len(part),
                finish_reason=self.says.finish_reason if final else None,
                stop_reason=self.says.stop_reason if final else None,
                logprobs=_logprobs(part) if context.sampling_params.logprobs is not None else None,
            )
            chunk = GeneratedChunk(
                id=context.id,
                number=number,
                choices=[choice],
                final=final,
                prompt_tokens=len(rendered.token_ids),
                completion_tokens=start + len(part),
                derender=context.derender if number == 0 else None,
            )
            chunks.append((part, chunk))
        return chunks


def _logprobs(token_ids: list[int]) -> GenerateLogprobs:
    return GenerateLogprobs(content=[GenerateTokenLogprob(token_id=token_id, logprob=-0.5) for token_id in token_ids])


def _documents(documents: list[bytes]) -> Tensors:
    return {RESPONSE.name: np.array(documents, np.object_)}
