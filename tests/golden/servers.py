"""The servers that were recorded: each a model folder and its options, for the reference and for ours."""

import lzma
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODELS = Path(__file__).with_name("models")
MAX_MODEL_LEN = 2048


@dataclass(frozen=True)
class Server:
    """A render server. `model` is a folder of `models/`, and the name under which it is served."""

    model: str
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    trusts_requests: bool = False
    """A request may bring its own chat template, and change how media are read and processed."""

    @property
    def reference_flags(self) -> list[str]:
        """Arguments of the reference's command line, besides model, host and port."""
        flags = ["--served-model-name", self.model, "--max-model-len", str(MAX_MODEL_LEN)]
        if self.tool_call_parser:
            flags += ["--enable-auto-tool-choice", "--tool-call-parser", self.tool_call_parser]
        if self.reasoning_parser:
            flags += ["--reasoning-parser", self.reasoning_parser]
        if self.trusts_requests:
            flags += ["--trust-request-chat-template", "--trust-request-mm-kwargs"]
        return flags

    @property
    def settings(self) -> dict[str, Any]:
        """The same as settings of ours, besides the model's folder."""
        return {
            "served_model_name": self.model,
            "max_model_len": MAX_MODEL_LEN,
            "tool_call_parser": self.tool_call_parser or "none",
            "reasoning_parser": self.reasoning_parser or "none",
            "trust_request_chat_template": self.trusts_requests,
            "trust_request_mm_kwargs": self.trusts_requests,
            "enable_scale_out": True,
        }


SERVERS: dict[str, Server] = {
    "qwen3": Server("qwen3", "hermes", "qwen3"),
    "qwen3-plain": Server("qwen3", trusts_requests=True),
    "llama": Server("llama", "llama3_json"),
    "gemma": Server("gemma"),
    "smollm2": Server("smollm2", "hermes"),
    "deepseek_v3": Server("deepseek_v3", "deepseek_v3"),
    "qwen3-vl": Server("qwen3-vl", "hermes", "qwen3"),
    "qwen3-vl-plain": Server("qwen3-vl", trusts_requests=True),
    "qwen3-coder": Server("qwen3", "qwen3_coder"),
    "qwen3-r1": Server("qwen3", reasoning_parser="deepseek_r1"),
    "smollm2-granite": Server("smollm2", reasoning_parser="granite"),
    "llama-pythonic": Server("llama", "pythonic"),
    "llama4-pythonic": Server("llama", "llama4_pythonic"),
}

_SHARED_TOKENIZERS = {"qwen3-vl": "qwen3"}


def write_model(name: str, folder: Path) -> Path:
    """Unpacks the model `name` into `folder`, as a server loads it: configuration, tokenizer, template, no weights."""
    shutil.copytree(MODELS / name, folder)
    (folder / "tokenizer.json").write_bytes(lzma.decompress(packed_tokenizer(name).read_bytes()))
    (folder / "tokenizer.json.xz").unlink(missing_ok=True)
    return folder


def packed_tokenizer(name: str) -> Path:
    """The compressed tokenizer of the model `name`."""
    return MODELS / _SHARED_TOKENIZERS.get(name, name) / "tokenizer.json.xz"
