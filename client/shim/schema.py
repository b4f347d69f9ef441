"""The served OpenAPI document. Handlers read their bodies themselves; here is said what they take and give."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from triton_renderer.protocol.base import ErrorResponse
from triton_renderer.protocol.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderMessagesRequest,
    DerenderMessagesStreamRequest,
    DerenderResponsesRequest,
    DerenderResponsesStreamRequest,
)
from triton_renderer.protocol.generate import AbortRequest, GenerateRequest, GenerateResponse
from triton_renderer.protocol.messages.request import CountTokensRequest, MessagesRequest
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest, ModelList
from triton_renderer.protocol.responses.request import ResponsesRequest

_COMPONENTS = "#/components/schemas/{model}"
_MODELS: tuple[type[BaseModel], ...] = (
    AbortRequest, ChatCompletionRequest, CompletionRequest, CountTokensRequest, DerenderChatRequest, DerenderChatStreamRequest,
    DerenderCompletionRequest, DerenderCompletionStreamRequest, DerenderMessagesRequest, DerenderMessagesStreamRequest,
    DerenderResponsesRequest, DerenderResponsesStreamRequest, ErrorResponse, GenerateRequest, GenerateResponse,
    MessagesRequest, ModelList, ResponsesRequest,
)  # fmt: skip


def reference(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of `model`, by its name."""
    return {"$ref": _COMPONENTS.format(model=model.__name__)}


def takes(
    model: type[BaseModel] | tuple[type[BaseModel], ...],
    gives: dict[str, Any] | None = None,
    *,
    streams: bool = False,
    is_empty: bool = False,
) -> dict[str, Any]:
    """`openapi_extra` of a route that reads `model`, or one of several, and answers with a document of schema `gives`, or
    with nothing at all."""
    body = {"anyOf": [reference(each) for each in model]} if isinstance(model, tuple) else reference(model)
    answer: dict[str, Any] = {} if is_empty else {"application/json": {"schema": gives or {"type": "object"}}}
    if streams:
        answer["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {"description": "The answer", "content": answer},
            "default": {"description": "An error", "content": {"application/json": {"schema": reference(ErrorResponse)}}},
        },
    }


class DocumentedApp(FastAPI):
    """An app whose OpenAPI document has the schemas that `takes` refers to."""

    def openapi(self) -> dict[str, Any]:
        """The document of all routes; made once."""
        if not self.openapi_schema:
            document = get_openapi(title=self.title, version=self.version, description=self.description, routes=self.routes)
            _, schemas = models_json_schema([(model, "validation") for model in _MODELS], ref_template=_COMPONENTS)
            # Those with an underscore stand for what is always refused; unions leave them out, and so nothing refers to them.
            told = {name: schema for name, schema in schemas["$defs"].items() if not name.startswith("_")}
            document.setdefault("components", {}).setdefault("schemas", {}).update(told)
            self.openapi_schema = document
        return self.openapi_schema
