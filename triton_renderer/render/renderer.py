"""The render stage: one request in, everything that the later stages need out. No weights, no GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_renderer.checkpoint import context_length, load_config
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import check_model_name, parse
from triton_renderer.protocol.dialects import REQUESTS, DialectRequest, FormOf, translated
from triton_renderer.protocol.openai import ChatCompletionRequest, CompletionRequest
from triton_renderer.protocol.responses.request import ResponsesRequest
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.protocol.stages import FeatureItem, RenderJob, RequestContext
from triton_renderer.render.checks import check_chat, check_coupled, check_coupled_response, check_request
from triton_renderer.render.contexts import (
    Request,
    chat_echo,
    derender_context,
    parser_variables,
    request_context,
    template_variables,
    tools_for_template,
)
from triton_renderer.render.fetch import AddressPolicy, is_public
from triton_renderer.render.images import MediaPlace, load_images
from triton_renderer.render.item_cache import Modality, RenderedItem
from triton_renderer.render.media_options import media_options
from triton_renderer.render.media_renderer import MediaRenderer
from triton_renderer.render.messages import MediaPart, read_conversation
from triton_renderer.render.prompt import Prompt, truncated, with_media, with_written_pictures
from triton_renderer.render.qwen_videos import load_videos
from triton_renderer.render.request_template import RequestTemplates
from triton_renderer.render.sampling import load_sampling_defaults, resolve_sampling
from triton_renderer.render.structured import structured_outputs
from triton_renderer.render.template import ChatTemplate
from triton_renderer.render.tokenizer import PromptTokenizer, TokenIds, media_token_ids
from triton_renderer.render.tool_grammar import keeps_special_tokens
from triton_renderer.settings import Settings
from triton_renderer.text.reasoning import ReasoningMarks
from triton_renderer.text.tokenizer import load_tokenizer

SLACK = 4
"""Characters that normalising may make one of, generously: for refusing absurdly long texts before tokenizing them."""


@dataclass(frozen=True)
class Rendered:
    """A rendered request.

    token_ids: int64 [tokens], placeholders expanded. items: for each picture or video, in the order of `context.features`, its
    serialized kwargs and its serialized metadata (`wire.py`); both empty where the client does not want them.
    """

    token_ids: TokenIds
    items: list[bytes]
    context: RequestContext


@dataclass(frozen=True)
class Model:
    """What is known of the served model without its weights."""

    tokenizer: PromptTokenizer
    template: ChatTemplate | None
    request_templates: RequestTemplates
    media: MediaRenderer | None
    reasoning: ReasoningMarks | None
    sampling_defaults: dict[str, Any]
    max_model_len: int
    vocab_size: int


class Renderer:
    """Renders requests for one model. Safe to use from several threads."""

    def __init__(self, settings: Settings, model: Model) -> None:
        self._model = model
        self._name = settings.model_name
        self._trusts_mm_kwargs = settings.trust_request_mm_kwargs
        self._tool_parser = settings.tool_parser_name
        self._reasoning_parser = settings.reasoning_parser_name
        self._longest_text = model.max_model_len * model.tokenizer.max_chars_per_token * SLACK

    @classmethod
    def load(cls, settings: Settings, may_dial: AddressPolicy = is_public) -> "Renderer":
        """Loads tokenizer, template, image processor and configuration, but no weights.

        Raises SettingsError or CheckpointError, in one line for the operator, where the model cannot be served.
        """
        config = load_config(settings)
        hf_tokenizer = load_tokenizer(settings.model)
        images = load_images(settings.model, config, hf_tokenizer)
        videos = load_videos(settings.model, config, hf_tokenizer, settings.max_video_frames) if images is not None else None
        takes: dict[Modality, MediaPlace] = {"image": images} if images is not None else {}
        takes |= {"video": videos} if videos is not None else {}
        names = {hf_tokenizer.convert_ids_to_tokens(token) for token in media_token_ids(config) if token < len(hf_tokenizer)}
        tokenizer = PromptTokenizer(hf_tokenizer, names | {place.slot for place in takes.values()})
        identity = f"{settings.model_id}\0{config.to_json_string()}"
        model = Model(
            tokenizer,
            ChatTemplate.load(settings.model, tokenizer, takes),
            RequestTemplates(tokenizer, takes, trusted=settings.trust_request_chat_template),
            MediaRenderer(images, videos, tokenizer, settings, identity=identity, may_dial=may_dial)
            if images is not None
            else None,
            ReasoningMarks.load(settings.reasoning_parser_name, hf_tokenizer),
            load_sampling_defaults(settings.model),
            context_length(config, settings),
            config.get_text_config().vocab_size,
        )
        return cls(settings, model)

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding matrix: a token id is below this."""
        return self._model.vocab_size

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and output may have together."""
        return self._model.max_model_len

    def render(self, job: RenderJob, media: Sequence[memoryview] = ()) -> Rendered:
        """Renders one request. `media` are the bytes that its body calls `attached:0`, `attached:1`, …

        Raises InvalidRequest (NotFound for another model) where the request cannot be served as it is.
        """
        if job.kind == "chat":
            return self._render_chat(job, parse(ChatCompletionRequest, job.body), media)
        if job.kind == "completion":
            return self._render_completion(job, parse(CompletionRequest, job.body))
        return self._render_translated(job, parse(REQUESTS[job.kind], job.body), media)

    def _render_translated(self, job: RenderJob, request: DialectRequest, media: Sequence[memoryview]) -> Rendered:
        """As the chat request that asks for the same; errors are about what the client sent."""
        if isinstance(request, ResponsesRequest) and not job.for_generate:
            check_coupled_response(request)
        template = self._model.template
        same = translated(request, merge_systems=template is not None and not template.takes_late_systems)
        try:
            return self._render_chat(job, same.chat, media, same.form)
        except InvalidRequest as error:
            raise same.places.restored(error) from error

    def _render_chat(
        self, job: RenderJob, request: ChatCompletionRequest, media: Sequence[memoryview], form: FormOf | None = None
    ) -> Rendered:
        check_model_name(request.model, self._name)
        check_request(request, trusts_mm_kwargs=self._trusts_mm_kwargs)
        check_chat(request, self._tool_parser)
        constraint = structured_outputs(request, self._tool_parser)
        if not job.for_generate:
            check_coupled(request, self._tool_parser)
        template = self._template(request)
        if template is None:
            raise InvalidRequest("messages: the model has no chat template; use the completion route", "messages")
        conversation = read_conversation(request.messages, template.content_format)
        text = template.apply(
            conversation.messages,
            tools=tools_for_template(request.tools),
            documents=request.documents,
            variables=template_variables(request),
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
        )
        prompt = self._tokenize(text, request, request.add_special_tokens, "messages")
        prompt, parts, items = self._with_media(prompt, text, request, conversation.media, media)
        prompt = self._fitted(prompt, request, "messages")
        keep = keeps_special_tokens(request, self._tool_parser, self._reasoning_parser)
        sampling = self._sampling(job, request, constraint, prompt, keep_special_tokens=keep)
        reasoning = self._model.reasoning.state(prompt.token_ids) if self._model.reasoning is not None else None
        derender = derender_context(
            job,
            request,
            sampling,
            prompt=prompt,
            model_name=self._name,
            form=form(sampling) if form is not None else None,
            echo=self._model.tokenizer.reveal(chat_echo(request, conversation.messages)),
            reasoning_open=reasoning == "open",
            include_reasoning=request.include_reasoning,
            top_logprobs=request.top_logprobs,
            **request.tool_choice_fields,
        )
        # With options of the request's own, the item is another one than the name stands for elsewhere.
        options = media_options(request)
        features = [
            FeatureItem(
                modality=item.modality,
                mm_hash=item.digest if options.identity(item.modality) else part.uuid or item.digest,
                placeholder=span,
            )
            for part, item, span in zip(parts, items, prompt.placeholders, strict=True)
        ]
        context = request_context(
            job,
            request,
            sampling,
            prompt=prompt,
            features=features,
            derender=derender,
            extra=self._reasoning_fields(job, request, reasoning == "closed"),
        )
        wanted = request.wants_mm_payload or not job.for_generate
        data = [data for item in items for data in ((item.kwargs, item.metadata) if wanted else (b"", b""))]
        return Rendered(prompt.token_ids, data, context)

    def _template(self, request: ChatCompletionRequest) -> ChatTemplate | None:
        """The request's own template, where it has one and is trusted with it; else the model's."""
        among_variables = (request.chat_template_kwargs or {}).get("chat_template")
        if request.chat_template is not None:
            return self._model.request_templates.get(request.chat_template)
        if among_variables is None:
            return self._model.template
        where = "chat_template_kwargs.chat_template"
        if not isinstance(among_variables, str):
            raise InvalidRequest(f"{where}: a text is expected", where)
        return self._model.request_templates.get(among_variables, where)

    def _render_completion(self, job: RenderJob, request: CompletionRequest) -> Rendered:
        check_model_name(request.model, self._name)
        check_request(request, trusts_mm_kwargs=self._trusts_mm_kwargs)
        constraint = structured_outputs(request)
        if not job.for_generate:
            check_coupled(request, None)
        if request.suffix is not None:
            raise InvalidRequest("suffix: the model is not made for filling in", "suffix")
        if len(request.prompts) != 1:
            raise InvalidRequest(f"prompt: a job renders one prompt, not {len(request.prompts)}", "prompt")
        given = request.prompts[0]
        if isinstance(given, str):
            whole = self._tokenize(given, request, request.add_special_tokens, "prompt")
        else:
            whole = Prompt(self._checked_ids(given), [])
        prompt = self._fitted(whole, request, "prompt")
        if not prompt.token_ids.size:
            raise InvalidRequest("prompt: must not be empty", "prompt")
        echo = ""
        if request.echo and not request.return_token_ids:
            echo = given if isinstance(given, str) and prompt is whole else self._model.tokenizer.decode(prompt.token_ids)
        if request.echo and request.max_tokens == 0 and job.for_generate:
            # Somebody wants a prompt's logprobs: one token has to be made, and is the caller's to drop.
            request = request.model_copy(update={"max_tokens": 1})
        sampling = self._sampling(job, request, constraint, prompt, keep_special_tokens=False)
        derender = derender_context(job, request, sampling, prompt=prompt, model_name=self._name, echo=echo)
        context = request_context(job, request, sampling, prompt=prompt, features=[], derender=derender, extra={})
        return Rendered(prompt.token_ids, [], context)

    def _tokenize(self, text: str, request: Request, add_special_tokens: bool, param: str) -> Prompt:
        if len(text) > self._longest_text:  # to be cut down or not: the time goes by before there is anything to cut
            raise self._too_long(f"{len(text)} characters", param)
        encoded = self._model.tokenizer.encode(text, add_special_tokens, with_offsets=bool(request.return_token_offsets))
        frame = self._model.tokenizer.frame if add_special_tokens else (0, 0)
        return Prompt(encoded.token_ids, [], encoded.offsets, frame)

    def _with_media(
        self, prompt: Prompt, text: str, request: ChatCompletionRequest, parts: Sequence[MediaPart], media: Sequence[memoryview]
    ) -> tuple[Prompt, list[MediaPart], list[RenderedItem]]:
        """The prompt with placeholders in the places that the template gave in its text, and what stands there, in order."""
        renderer = self._model.media
        if renderer is None:
            return prompt, [], []
        # Nothing that a client writes becomes such a token: each one is the template's.
        slots = {modality: np.flatnonzero(prompt.token_ids == token_id) for modality, token_id in renderer.slot_ids.items()}
        placed: list[tuple[int, MediaPart]] = []
        for modality, positions in slots.items():
            of_this = [part for part in parts if part.modality == modality]
            if len(positions) != len(of_this):
                raise InvalidRequest(
                    f"messages: the chat template has {len(positions)} places for {len(of_this)} "
                    f"{'pictures' if modality == 'image' else 'videos'}",
                    "messages",
                )
            placed += zip(positions.tolist(), of_this, strict=True)
        placed.sort(key=lambda pair: pair[0])
        ordered = [part for _, part in placed]
        items = renderer.render(ordered, media, media_options(request))
        written_out = renderer.written_out(text, items)
        if written_out is not None:
            whole = self._tokenize(written_out, request, request.add_special_tokens, "messages")
            return with_written_pictures(whole, renderer.embed_token_ids["image"], items), ordered, items
        places = np.array([position for position, _ in placed], np.int64)
        return (with_media(prompt, places, items) if items else prompt), ordered, items

    def _checked_ids(self, token_ids: list[int]) -> TokenIds:
        for index, token_id in enumerate(token_ids):
            where = f"prompt.{index}"
            if token_id >= self.vocab_size:
                raise InvalidRequest(f"{where}: the model has no token {token_id}, only 0 to {self.vocab_size - 1}", where)
            if self._model.media is not None and token_id in self._model.media.embed_token_ids.values():
                raise InvalidRequest(f"{where}: token {token_id} stands for a picture or video, and there is none", where)
        return np.array(token_ids, np.int64)

    def _fitted(self, prompt: Prompt, request: Request, param: str) -> Prompt:
        """The prompt, cut down where the client wants that, with room for at least one token behind it."""
        prompt = truncated(prompt, request.truncate_prompt_tokens, request.truncation_side, self.max_model_len)
        if len(prompt.token_ids) >= self.max_model_len:
            raise self._too_long(f"{len(prompt.token_ids)} tokens", param)
        return prompt

    def _too_long(self, length: str, param: str) -> InvalidRequest:
        return InvalidRequest(
            f"{param}: the prompt has {length}, the model's context length is {self.max_model_len} tokens, output included",
            "input_tokens",
        )

    def _sampling(
        self,
        job: RenderJob,
        request: Request,
        constraint: dict[str, Any] | None,
        prompt: Prompt,
        *,
        keep_special_tokens: bool,
    ) -> SamplingParams:
        return resolve_sampling(
            request,
            self._model.sampling_defaults,
            constraint,
            num_prompt_tokens=len(prompt.token_ids),
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            keep_special_tokens=keep_special_tokens,
            for_generate=job.for_generate,
        )

    def _reasoning_fields(self, job: RenderJob, request: ChatCompletionRequest, closed: bool) -> dict[str, Any]:
        """What a GenerateRequest says of reasoning."""
        fields: dict[str, Any] = {}
        if self._model.reasoning is not None:
            fields["reasoning_ended"] = closed
            fields["reasoning_parser_kwargs"] = {"chat_template_kwargs": parser_variables(request)}
        if not request.include_reasoning:
            fields["reasoning_ended"] = True
        if job.kind == "responses":  # here the reference leaves it to whoever generates
            fields.pop("reasoning_ended", None)
        return fields
