"""Every setting, once: an environment variable (the field's name in capitals), a flag (--the-name), a make variable.

The launcher, the shim and the stages read the same environment. An unusable value is refused with its name, the value
and what would do; an empty variable counts as unset.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from triton_renderer.text.formats import REASONING_FORMATS, TOOL_FORMATS, go_together

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "models" / "shapes-vl"

_HOST = r"[^\s/:?#@*\[\]]+|\[?[0-9a-f:.]*:[0-9a-f:.]*\]?"
"""A name, which says nothing of a port, or an IPv6 address."""

Port = Annotated[int, Field(ge=1, le=65535)]


class SettingsError(Exception):
    """A setting has a value that cannot be used."""


class Settings(BaseSettings):
    """The settings, read from the environment once and never changed."""

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True)

    model: str = Field(
        str(BUNDLED_MODEL),
        description="Hugging Face id or folder of the model, or smollm2, a text model that is fetched as a package",
    )
    served_model_name: str | None = Field(
        None, pattern=r"\S", description="name that clients use (default: the id, or the folder's name)"
    )
    role: Literal["all", "render"] = Field(
        "all", description="stages that this server runs: all, or render and derender alone, which need no weights"
    )
    host: str = Field("127.0.0.1", min_length=1, description="address that the shim listens on")
    triton_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address that Triton's own ports listen on; they have no key, and model control",
    )
    shim_port: Port = Field(9000, description="port of the OpenAI and renderer API")
    triton_http_port: Port = Field(8000, description="port of Triton's HTTP endpoint")
    triton_grpc_port: Port = Field(8001, description="port of Triton's gRPC endpoint")
    triton_metrics_port: Port = Field(8002, description="port of Triton's metrics")
    max_model_len: int | None = Field(None, ge=1, description="context length in tokens (default: the model's)")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="dtype of weights and KV cache (auto: the checkpoint's, but float32 on a CPU without it)"
    )
    tool_call_parser: str = Field(
        "auto",
        description="tool call format, a name of docs/parsers.md or none (auto: hermes for the bundled model, else none)",
    )
    reasoning_parser: str = Field(
        "auto", description="reasoning format, a name of docs/parsers.md or none (auto: qwen3 for the bundled model, else none)"
    )
    api_key: str | None = Field(None, description="key that every route but /health asks for")
    allowed_media_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="comma-separated host names that image URLs may name (default: data URLs only)"
    )
    allowed_local_media_path: str | None = Field(
        None, description="folder of this machine that file:// URLs of requests may lead into (default: none)"
    )
    max_request_bytes: int = Field(
        64 * 2**20, ge=1024, description="largest HTTP request body, and the most that a request's URLs may bring together"
    )
    trust_request_chat_template: bool = Field(
        False, description="let a request bring its own chat template, which is a program that render runs"
    )
    trust_request_mm_kwargs: bool = Field(
        False, description="let a request change how its media are read and processed, which can cost memory and time"
    )
    vllm_enable_scale_out_endpoints: bool | None = Field(
        None,
        validation_alias=AliasChoices("vllm_enable_scale_out_endpoints", "enable_scale_out"),
        description="serve the render, derender and generate routes (also --enable-scale-out; default: only with ROLE=render)",
    )
    encoder_cache_bytes: int = Field(256 * 2**20, ge=0, description="memory for encoder outputs")
    max_image_pixels: int = Field(178_956_970, ge=1, description="largest picture, or frame of a video, in pixels")
    max_images: int = Field(32, ge=1, le=256, description="pictures of one request")
    max_videos: int = Field(4, ge=1, le=64, description="videos of one request")
    max_video_frames: int = Field(768, ge=2, le=4096, description="frames that are taken of one video")
    max_running_requests: int = Field(32, ge=1, description="requests that decode as one batch")
    max_step_tokens: int = Field(
        512, ge=1, description="tokens that prefill_decode computes in one step: longer prompts are prefilled in chunks"
    )
    kv_cache_bytes: int | None = Field(
        None, ge=1, description="memory for the KV cache (default: 1 GiB, or 80 percent of a GPU's free memory)"
    )
    prefix_caching: bool = Field(True, description="keep the KV cache of prompts for later ones that begin alike")
    cuda_graphs: bool = Field(
        True, description="on a GPU, record the kernels of steps that only decode, and start them all at once"
    )
    attention_kernel: str | None = Field(
        None,
        description="kernel that decoding on a GPU attends by, as transformers names it, such as flash_attention_3, or the "
        "Hugging Face id of one (default: torch's own attention)",
    )
    max_waiting_requests: int = Field(1024, ge=1, description="requests that may wait for a place; more get a 429")
    queue_timeout_s: float = Field(
        300.0, ge=0.01, le=86_400, description="longest time that a request may wait for a place in the batch, in seconds"
    )
    request_timeout_s: float = Field(600.0, ge=0.01, le=86_400, description="longest time that a request may take, in seconds")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="verbosity of the logs")

    @field_validator("served_model_name", mode="before")
    @classmethod
    def _decoded(cls, value: Any) -> Any:
        return _from_environment(value) if isinstance(value, str) else value

    @field_validator("allowed_media_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: Any) -> Any:
        if isinstance(value, str):
            hosts = _from_environment(value).split(",")
            return tuple(host.strip().lower().rstrip(".") for host in hosts if host.strip())
        return value

    @field_validator("allowed_media_hosts")
    @classmethod
    def _names_of_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not re.fullmatch(_HOST, host):
                raise ValueError(f"{host!r} is not the name of a host, without scheme, port or path")
        return hosts

    @field_validator("tool_call_parser")
    @classmethod
    def _known_tool_parser(cls, name: str) -> str:
        return _known(name, TOOL_FORMATS)

    @field_validator("reasoning_parser")
    @classmethod
    def _known_reasoning_parser(cls, name: str) -> str:
        return _known(name, REASONING_FORMATS)

    @model_validator(mode="after")
    def _check_role(self) -> "Settings":
        if self.role == "render" and self.vllm_enable_scale_out_endpoints is False:
            raise ValueError(
                "ROLE=render serves nothing but the render and derender routes, and VLLM_ENABLE_SCALE_OUT_ENDPOINTS=0 "
                "switches them off: leave it out, or set it to 1"
            )
        return self

    @model_validator(mode="after")
    def _check_parsers(self) -> "Settings":
        tools, reasoning = self.tool_parser_name, self.reasoning_parser_name
        if tools is not None and reasoning is not None and not go_together(reasoning, tools):
            raise ValueError(
                f"TOOL_CALL_PARSER={tools} and REASONING_PARSER={reasoning} are of different models: one of the two has to be "
                "another, or none"
            )
        return self

    @property
    def scale_out_enabled(self) -> bool:
        """The render and derender routes are served, and generate where there is the stage for it."""
        return self.role == "render" if self.vllm_enable_scale_out_endpoints is None else self.vllm_enable_scale_out_endpoints

    @property
    def is_bundled_model(self) -> bool:
        """The model is the one that comes with the project."""
        path = Path(self.model)
        return path.is_dir() and path.resolve() == BUNDLED_MODEL.resolve()

    @property
    def model_id(self) -> str:
        """What of `model` may be shown, and does not depend on this machine: the Hugging Face id, or the folder's name."""
        return Path(self.model).resolve().name if Path(self.model).is_dir() else self.model

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self.served_model_name or self.model_id

    @property
    def tool_parser_name(self) -> str | None:
        """The configured tool call parser; None where there is none."""
        return self._parser(self.tool_call_parser, "hermes")

    @property
    def reasoning_parser_name(self) -> str | None:
        """The configured reasoning parser; None where there is none."""
        return self._parser(self.reasoning_parser, "qwen3")

    def _parser(self, name: str, bundled: str) -> str | None:
        if name == "auto":
            return bundled if self.is_bundled_model else None
        return None if name == "none" else name

    def environment(self) -> dict[str, str]:
        """These settings as environment variables, for a child process."""
        values = self.model_dump(exclude_none=True)
        return {
            name.upper(): ",".join(value)
            if isinstance(value, tuple)
            else str(int(value) if value is True or value is False else value)
            for name, value in values.items()
        }


def _from_environment(text: str) -> str:
    """A stage's interpreter starts in the C locale and reads the environment as ASCII, other bytes as surrogates."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8")


def _known(name: str, formats: Iterable[str]) -> str:
    names = ("auto", "none", *formats)
    if name not in names:
        raise ValueError(f"one of {', '.join(names)} is expected")
    return name


def reachable(host: str) -> str:
    """Where a process on this machine reaches a server that listens on `host`."""
    return "127.0.0.1" if host == "0.0.0.0" else host


def load_settings(**overrides: Any) -> Settings:
    """The settings from `overrides` (flags), else the environment, else the defaults.

    Raises SettingsError naming the setting, its value and what is wrong.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError("; ".join(map(_problem, error.errors(include_url=False)))) from error


def _problem(details: Any) -> str:
    """One complaint of pydantic in one line. One about several settings has no place of its own, and names them itself."""
    name = ".".join(str(part) for part in details["loc"]).upper()
    message = str(details["msg"]).removeprefix("Value error, ")
    return f"{name}={details['input']!r}: {message}" if name else message
