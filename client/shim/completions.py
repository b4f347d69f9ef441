"""Several prompts of one completion request: as many calls, one answer."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from client.shim.concurrency import interleaved

Document = dict[str, Any]


def merged_document(documents: Sequence[bytes]) -> bytes:
    """One completion with the choices of all, in the order of their indices, and the sum of their usage."""
    if len(documents) == 1:
        return documents[0]
    parsed: list[Document] = [orjson.loads(document) for document in documents]
    choices = sorted((choice for document in parsed for choice in document["choices"]), key=lambda choice: choice["index"])
    return orjson.dumps(parsed[0] | {"choices": choices, "usage": _sum([document["usage"] for document in parsed])})


async def merged_events(streams: Sequence[AsyncGenerator[bytes, None]], limit: int) -> AsyncGenerator[bytes, None]:
    """The chunks of all streams as they come, of which `limit` run at once.

    Their closing usage chunks are held back and leave as one, at the end.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]):
            async for document in streams[0]:
                yield document
        return
    usage_chunks: list[Document] = []
    documents = interleaved(streams, limit)
    async with aclosing(documents):
        async for document in documents:
            chunk = orjson.loads(document)
            if chunk["choices"] or not chunk.get("usage"):
                yield document
            else:
                usage_chunks.append(chunk)
    if usage_chunks:
        yield orjson.dumps(usage_chunks[0] | {"usage": _sum([chunk["usage"] for chunk in usage_chunks])})


def _sum(counts: Sequence[Document | None]) -> Document:
    """Usage objects added up, those inside them too; null where a count is null everywhere."""
    total: Document = {}
    for count in counts:
        for name, value in (count or {}).items():
            if isinstance(value, dict):
                total[name] = _sum([total.get(name), value])
            elif value is not None:
                total[name] = (total.get(name) or 0) + value
            else:
                total.setdefault(name)
    return total
