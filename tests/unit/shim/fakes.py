"""Stand-ins for what the shim talks to: Triton's models on one side, an HTTP client with a cable to pull on the other."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from client.shim.health import PROBE_TENSORS
from client.shim.triton import SPECS, Tensors, document_tensor
from triton_renderer.errors import RendererError
from triton_renderer.protocol.generate import PlaceholderRange
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.protocol.stages import ChunkChoice, FeatureItem, GeneratedChunk, RenderJob, RequestContext
from triton_renderer.tensors import (
    CHUNK,
    CONTEXT,
    MEDIA,
    MEDIA_OFFSETS,
    MM_DATA,
    MM_OFFSETS,
    OUTPUT_TOKEN_IDS,
    REQUEST,
    RESPONSE,
    TOKEN_IDS,
    TensorSpec,
    concatenate,
    split,
)

PROBE = {"op": "probe"}


def job_text(job: RenderJob) -> str:
    """The prompt, or all text of the messages."""
    if job.kind == "completion":
        prompt = job.body["prompt"]
        return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
    contents = [message.get("content") or "" for message in job.body["messages"]]
    parts = [content if isinstance(content, list) else [{"text": content}] for content in contents]
    return " ".join(part["text"] for content in parts for part in content if "text" in part)


class FakeStages:
    """Models whose answers are made from what they are asked.

    chat        says every word of the prompt again, one chunk a word, and then how many bytes each attachment has
    generate    gives every token id plus one, one chunk a token
    render      has the prompt's bytes as its tokens, and each attachment as an item
    derender    says the tokens as characters
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.inputs: list[Tensors] = []
        self.aborts: list[dict[str, Any]] = []
        self.given_up: list[str] = []
        self.reloads: list[str] = []
        self.probes: list[str] = []
        self.dead: dict[str, RendererError] = {}
        self.live = True
        self.closed = False
        self.reload_repairs = True
        self.fail_after: tuple[int, Exception] | None = None
        self.pause_after: int | None = None
        self.abort_failure: RendererError | None = None
        self.empty_answers = False
        self.doubled_answers = False
        self.go_on = asyncio.Event()
        self.paused = asyncio.Event()
        self.slow_probe: Callable[[str], Awaitable[None]] | None = None
        self.on_step: Callable[[dict[str, Any], int], Awaitable[None]] | None = None

    async def call(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> Tensors:
        document = await self._begin(model, inputs)
        if document == PROBE:
            answer = {PROBE_TENSORS[model][1].name: document_tensor(b'{"ok":true,"max_model_len":512}')}
        else:
            await self._step(document, 0)
            answer = self._render(document, inputs) if model == "render" else self._derender(document)
        return {spec.name: answer[spec.name] for spec in outputs or SPECS[model].outputs}

    async def stream(
        self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[TensorSpec] | None = None
    ) -> AsyncGenerator[Tensors, None]:
        document = await self._begin(model, inputs)
        if document == PROBE:
            yield {CHUNK.name: document_tensor(b'{"ok":true,"max_model_len":512}')}
            return
        if document.get("op") == "abort":
            if self.abort_failure:
                raise self.abort_failure
            self.aborts.append(document)
            yield {CHUNK.name: document_tensor(b'{"ok":true}')}
            return
        steps = self._chat(document, inputs) if model == "chat" else self._generate(document, inputs)
        if self.empty_answers:
            steps = [_response([])]
        if self.doubled_answers:
            steps = [*steps, *steps]
        try:
            for number, step in enumerate(steps):
                await self._step(document, number)
                yield step
            await self._step(document, len(steps))
        except (GeneratorExit, asyncio.CancelledError):
            self.given_up.append(document["id"])
            raise

    async def is_live(self) -> bool:
        return self.live

    async def reload(self, stage: str) -> None:
        self.reloads.append(stage)
        if self.reload_repairs:
            self.dead.pop(stage, None)

    async def close(self) -> None:
        self.closed = True

    async def _begin(self, model: str, inputs: Tensors) -> dict[str, Any]:
        control = REQUEST if model in ("render", "chat") else CHUNK if model == "derender" else CONTEXT
        document: dict[str, Any] = orjson.loads(inputs[control.name][0])
        if document == PROBE:
            self.probes.append(model)
            if self.slow_probe:
                await self.slow_probe(model)
        elif document.get("op") != "abort":
            self.calls.append((model, document))
            self.inputs.append(inputs)
        if model in self.dead:
            raise self.dead[model]
        return document

    async def _step(self, document: dict[str, Any], number: int) -> None:
        if self.on_step:
            await self.on_step(document, number)
        if self.fail_after and self.fail_after[0] == number:
            raise self.fail_after[1]
        if self.pause_after == number:
            self.paused.set()
            await self.go_on.wait()
        await asyncio.sleep(0)

    def _chat(self, document: dict[str, Any], inputs: Tensors) -> list[Tensors]:
        job = RenderJob.model_validate(document)
        sizes = [str(len(data)) for data in split(inputs[MEDIA.name], inputs[MEDIA_OFFSETS.name])]
        words = job_text(job).split() + sizes
        head = {"id": job.external_id, "created": job.created, "model": "served"}
        usage = {"prompt_tokens": len(words), "completion_tokens": 2 * len(words), "total_tokens": 3 * len(words)}
        key = "text" if job.kind == "completion" else "content"
        if not job.body.get("stream"):
            choices = [
                {"index": job.choice_offset + i, key: " ".join(words), "finish_reason": "stop"}
                for i in range(job.body.get("n") or 1)
            ]
            return [_response([head | {"choices": choices, "usage": usage | {"prompt_tokens_details": None}}])]
        steps = [_response([head | {"choices": [{"index": job.choice_offset, key: word}]}]) for word in words]
        steps.append(_response([head | {"choices": [{"index": job.choice_offset, key: "", "finish_reason": "stop"}]}]))
        if (job.body.get("stream_options") or {}).get("include_usage"):
            steps.append(_response([]))
            steps.append(_response([head | {"choices": [], "usage": usage}]))
        return steps

    def _generate(self, document: dict[str, Any], inputs: Tensors) -> list[Tensors]:
        context = RequestContext.model_validate(document)
        prompt = inputs[TOKEN_IDS.name].tolist()
        tokens = [token + 1 for token in prompt]
        once: dict[str, Any] = {}
        if context.features:
            once["ec_transfer_params"] = {"ec_items": [{"mm_hash": item.mm_hash} for item in context.features]}
        if context.return_token_ids:
            once["prompt_token_ids"] = prompt
            once["mm_placeholders"] = {"image": [item.placeholder for item in context.features]}
        if not context.stream:
            choices = [
                ChunkChoice(index=i, num_tokens=len(tokens), finish_reason="stop") for i in range(context.sampling_params.n)
            ]
            return [_chunk(context, 0, tokens * len(choices), choices, len(prompt), final=True, **once)]
        steps = []
        for number, token in enumerate(tokens):
            last = number == len(tokens) - 1
            choices = [
                ChunkChoice(index=i, num_tokens=1, finish_reason="length" if last else None)
                for i in range(context.sampling_params.n)
            ]
            extra = once if number == 0 else {}
            steps.append(_chunk(context, number, [token] * len(choices), choices, len(prompt), final=last, **extra))
        return steps

    def _render(self, document: dict[str, Any], inputs: Tensors) -> Tensors:
        job = RenderJob.model_validate(document)
        media = [bytes(data) for data in split(inputs[MEDIA.name], inputs[MEDIA_OFFSETS.name])]
        features = [
            FeatureItem(modality="image", mm_hash=data.hex(), placeholder=PlaceholderRange(offset=2 * i, length=1))
            for i, data in enumerate(media)
        ]
        data, offsets = concatenate([part for item in media for part in (item, b"meta" + item)])
        context = RequestContext(
            id=job.id,
            external_id=job.external_id,
            sampling_params=SamplingParams(max_tokens=7),
            features=features,
            request={"model": "served"},
        )
        return {
            TOKEN_IDS.name: np.array(list(job_text(job).encode()), np.int64),
            MM_DATA.name: data,
            MM_OFFSETS.name: offsets,
            CONTEXT.name: document_tensor(context.model_dump_json().encode()),
        }

    def _derender(self, document: dict[str, Any]) -> Tensors:
        choices = document["body"]["generate_response"]["choices"]
        said = ["".join(map(chr, choice["token_ids"])) for choice in choices]
        return _response([{"op": document["op"], "said": said}])


def _response(documents: list[dict[str, Any]]) -> Tensors:
    return {RESPONSE.name: np.array([orjson.dumps(document) for document in documents], np.object_)}


def _chunk(
    context: RequestContext, number: int, tokens: list[int], choices: list[ChunkChoice], prompt_tokens: int, **fields: Any
) -> Tensors:
    chunk = GeneratedChunk(
        id=context.id,
        number=number,
        choices=choices,
        prompt_tokens=prompt_tokens,
        completion_tokens=(number + 1) * len(choices) if context.stream else len(tokens),
        **fields,
    )
    return {
        OUTPUT_TOKEN_IDS.name: np.array(tokens, np.int64),
        CHUNK.name: document_tensor(chunk.model_dump_json(exclude_none=True).encode()),
    }


class Connection:
    """One HTTP request over ASGI, whose client sees the answer as it comes and can leave at any time."""

    def __init__(self, app: Any, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": orjson.dumps(body), "more_body": False})
        self._changed = asyncio.Condition()
        self.status: int | None = None
        self.body = b""
        self.complete = False
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (name.encode(), value.encode())
                for name, value in ({"content-type": "application/json"} | (headers or {})).items()
            ],
        }
        self.task = asyncio.create_task(app(scope, self._incoming.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._changed:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            else:
                self.body += message["body"]
                self.complete = not message.get("more_body", False)
            self._changed.notify_all()

    @property
    def events(self) -> list[Any]:
        """The data of all events so far; `[DONE]` as text."""
        parts = [event.removeprefix(b"data: ") for event in self.body.split(b"\n\n") if event]
        return ["[DONE]" if part == b"[DONE]" else orjson.loads(part) for part in parts]

    async def until(self, condition: Callable[["Connection"], bool]) -> None:
        """Waits until what has come fulfils `condition`."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition(self))

    def leave(self) -> None:
        """The client closes its connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def end(self) -> None:
        """Waits until the server is through with the request."""
        with suppress(asyncio.CancelledError):
            await self.task


async def until(condition: Callable[[], Any]) -> None:
    """Waits until `condition` holds. The test's own deadline is the limit."""
    while not condition():  # noqa: ASYNC110  # what is waited for has no event
        await asyncio.sleep(0.002)
