"""Runs the language model: one forward pass over all tokens of a step.

The forward pass is transformers' own for every model; `mm_encoder_outputs` takes the place of its vision tower.
"""

import inspect
import logging
import math
from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from triton_renderer import checkpoint, threads
from triton_renderer.errors import InvalidRequest
from triton_renderer.packed_linear import pack_linears
from triton_renderer.prefill_decode.attention_kernel import AttentionKernel
from triton_renderer.prefill_decode.decode_graphs import DecodeGraphs, Recorder
from triton_renderer.prefill_decode.fused_layers import FusedModel, Rows, fuse_layers
from triton_renderer.prefill_decode.kv_cache import Chunk, PagedKVCache, StepLayout, TokenShapes, reaches, token_shapes
from triton_renderer.prefill_decode.scheduler import Work
from triton_renderer.prefill_decode.sequence import MultimodalInputs, Prompt
from triton_renderer.protocol.stages import EncodedItem, FeatureForm
from triton_renderer.settings import Settings
from triton_renderer.transfer import to_device

log = logging.getLogger(__name__)

TYPES = {"image": 1, "video": 2}
"""By modality, the type of a token that takes a row, as transformers numbers them; 0 is text."""
_SUPPORTED_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


class ModelRunner:
    """The language model and its KV cache. Used by one thread only, in inference mode."""

    cache: PagedKVCache
    graphs: DecodeGraphs | None = None

    def __init__(self, model: PreTrainedModel, kernel: AttentionKernel | None = None) -> None:
        """The cache is to be allocated before the first step, by `allocate_cache`. kernel: what decoding sequences attend by.

        Raises CheckpointError where the kernel is not right for the model.
        """
        self.model = model
        self.weight_bytes = checkpoint.parameter_bytes(model)
        self._token_shapes = token_shapes(model)
        self._kernel = kernel
        if kernel is not None:
            prove(kernel, model, self._token_shapes)
        fused, packed = fuse_layers(model), pack_linears(model)
        self._fused = FusedModel.of(model)
        log.info("%d decoder layers are fused, %d other linear layers packed for the CPU", fused, packed)
        self.config = model.config
        self.device = model.device
        self.dtype = model.dtype
        self.vocab_size: int = self.config.get_text_config().vocab_size
        self.image_token_id: int | None = getattr(self.config, "image_token_id", None)
        self.video_token_id: int | None = (
            getattr(self.config, "video_token_id", None) if checkpoint.takes_videos(model) else None
        )
        vision_config = getattr(self.config, "vision_config", None)
        self.num_deepstack = len(getattr(vision_config, "deepstack_visual_indexes", None) or [])
        self._merge_size = int(getattr(vision_config, "spatial_merge_size", 1))
        self._accepted = inspect.signature(model.forward).parameters.keys()
        # M-RoPE: the positions of a prompt depend on its pictures, and the model object must not remember the last one's.
        self._get_rope_index = getattr(model.base_model, "get_rope_index", None)

    @classmethod
    def load(cls, settings: Settings) -> "ModelRunner":
        """Loads the language model's weights. Raises CheckpointError."""
        threads.leave_to_another()
        model = checkpoint.load_part(settings, "language")
        layers = set(getattr(model.config.get_text_config(), "layer_types", None) or [])
        if unsupported := layers - _SUPPORTED_LAYERS:
            raise checkpoint.CheckpointError(
                f"MODEL={settings.model}: layers of type {sorted(unsupported)[0]} are not supported"
            )
        return cls(model, AttentionKernel.load(settings.attention_kernel) if settings.attention_kernel else None)

    def take_thread(self) -> None:
        """Called once, by the thread that will run the steps."""
        log.info("computing with %d threads", threads.take(self.weight_bytes, self.device))

    @property
    def pictures_are_whole(self) -> bool:
        """The tokens of a picture see each other both ways, as families want it that take `token_type_ids` (Gemma 3)."""
        return "token_type_ids" in self._accepted

    @property
    def context_cost(self) -> float:
        """What each token before it adds to the computing of a token, as a part of what that takes without any.

        Multiplications: two for each element of each layer's queries (with a key, of a value), against one for each weight.
        An estimate: it takes no account of windows, nor of experts.
        """
        config = self.config.get_text_config()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        weights = self.weight_bytes / self.dtype.itemsize
        return float(2 * config.num_hidden_layers * config.num_attention_heads * size / weights)

    @property
    def bytes_per_block(self) -> int:
        """What a block of the KV cache takes."""
        return PagedKVCache.bytes_per_block(self._token_shapes, self.dtype)

    def allocate_cache(self, num_blocks: int) -> None:
        """Makes the KV cache; `num_blocks` counts the null block as well."""
        self.cache = PagedKVCache(self.model, self._token_shapes, num_blocks, self._kernel)

    def use_graphs(self, recorder: Recorder) -> None:
        """From now on steps that only decode are recorded once, and replayed. The cache has to be there."""
        self.graphs = DecodeGraphs(self.cache, self._logits, recorder)

    def erase(self, blocks: Ordered[int]) -> None:
        """See `PagedKVCache.erase`."""
        self.cache.erase(blocks)

    def checked_grids(self, item: EncodedItem) -> dict[str, torch.Tensor]:
        """The item's metadata that the forward pass takes, as int64 [1, n].

        Raises InvalidRequest where a model with M-RoPE would not get a grid of just as many places as the item has rows.
        """
        if self._get_rope_index is None:
            return {name: torch.tensor([value]) for name, value in item.metadata.items() if name in self._accepted}
        name = f"{item.modality}_grid_thw"
        grid = item.metadata.get(name, [])
        if len(grid) != 3 or min(grid) < 1 or math.prod(grid) != item.rows * self._merge_size**2:
            raise InvalidRequest(f"the grid {grid} of item {item.mm_hash!r} does not have its {item.rows} rows", "encoded")
        return {name: torch.tensor([grid])}

    def make_prompt(
        self,
        token_ids: npt.NDArray[np.int64],
        multimodal: MultimodalInputs | None,
        grids: Ordered[dict[str, torch.Tensor]] = (),
    ) -> Prompt:
        """Positions of a prompt, from its tokens and the grids of its items (`checked_grids`, in the prompt's order).

        Raises InvalidRequest where the pictures do not fit the placeholders.
        """
        if self._get_rope_index is None:
            return Prompt(token_ids, torch.arange(len(token_ids)).unsqueeze(0), len(token_ids), multimodal)
        if multimodal is None:
            # Without pictures the three axes are equal: what get_rope_index would say, without its loop over tokens.
            return Prompt(token_ids, torch.arange(len(token_ids)).expand(3, 1, -1), len(token_ids), None)
        ids = torch.from_numpy(token_ids).unsqueeze(0)
        names = {name for grid in grids for name in grid}
        joined = {name: torch.cat([grid[name] for grid in grids if name in grid]) for name in names}
        types = torch.from_numpy(self.token_types(token_ids)).unsqueeze(0)
        try:
            positions, delta = self._get_rope_index(ids, mm_token_type_ids=types, **joined)
        except (RuntimeError, StopIteration) as error:
            raise InvalidRequest("the pictures' grids do not fit the placeholder ranges", "features.mm_placeholders") from error
        return Prompt(token_ids, positions, len(token_ids) + int(delta), multimodal)

    def token_types(self, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """[tokens], of each whether it takes a row: one of `TYPES`, or 0."""
        types = np.zeros(len(token_ids), np.int32)
        for modality, token_id in (("image", self.image_token_id), ("video", self.video_token_id)):
            if token_id is not None:
                types[token_ids == token_id] = TYPES[modality]
        return types

    def forward(self, works: Ordered[Work], wanted: Ordered[int]) -> torch.Tensor:
        """Computes a step: works of one token first. Returns logits [wanted, vocabulary].

        wanted: which of the step's tokens, counted through all works, need them; at least one.
        """
        spans = [(work.sequence, work.start, work.end) for work in works]
        chunks = [self._chunk(work) for work in works]
        ids = np.concatenate([sequence.token_ids(start, end) for sequence, start, end in spans])
        positions = torch.cat([sequence.positions(start, end) for sequence, start, end in spans], dim=-1)
        rows = self._rows(works)
        if self.graphs and rows is None and len(ids) == len(works) and list(wanted) == list(range(len(ids))):
            logits = self.graphs.run(chunks, ids, positions)
            if logits is not None:
                return logits
        return self._logits(
            to_device(torch.from_numpy(ids).unsqueeze(0), self.device),
            to_device(positions, self.device),
            self.cache.step(chunks),
            to_device(torch.tensor(wanted), self.device),
            rows=rows,
            works=works,
        )

    def _logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layout: StepLayout,
        wanted: torch.Tensor | None = None,
        *,
        rows: Rows | None = None,
        works: Ordered[Work] = (),
    ) -> torch.Tensor:
        """Logits [wanted, vocabulary] of a step, of all tokens where `wanted` is None. All tensors are on the device."""
        if self._fused:
            return self._fused(token_ids, positions, wanted, self.cache, layout, rows=rows)
        output = self.model(
            input_ids=token_ids,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=0 if wanted is None else wanted,
            layout=layout,
            **self._multimodal(works),
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _chunk(self, work: Work) -> Chunk:
        sequence = work.sequence
        pictures = [
            (picture.start, picture.end)
            for picture in sequence.request.prompt.pictures
            if self.pictures_are_whole and work.start <= picture.start and picture.end <= work.end
        ]
        return Chunk(work.length, work.start, sequence.blocks, pictures)

    def _rows(self, works: Ordered[Work]) -> Rows | None:
        """The encoder's rows that the step's tokens take, and which of its tokens those are; None where there are none."""
        places, parts, at = [], [], 0
        for work in works:
            multimodal = work.sequence.request.prompt.multimodal
            if multimodal is not None and work.start < work.sequence.request.prompt.num_tokens:
                within, rows = multimodal.within(work.start, work.end)
                if len(within):
                    places.append(within + at)
                    parts.append(rows)
            at += work.length
        if not parts:
            return None
        return to_device(torch.from_numpy(np.concatenate(places)), self.device), torch.cat(parts, dim=1)

    @staticmethod
    def _multimodal(works: Ordered[Work]) -> dict[str, Any]:
        """What the forward pass takes in place of pixels: the rows of the step's picture and video tokens."""
        parts: dict[str, list[torch.Tensor]] = {}
        form: FeatureForm = "list"
        for work in works:
            multimodal = work.sequence.request.prompt.multimodal
            if multimodal is None:
                continue
            for modality, rows in multimodal.between(work.start, work.end).items():
                parts.setdefault(modality, []).append(rows)
                form = multimodal.form
        outputs = {modality: _encoder_output(torch.cat(rows, dim=1), form) for modality, rows in parts.items()}
        return {"mm_encoder_outputs": outputs} if outputs else {}


def prove(kernel: AttentionKernel, model: PreTrainedModel, shapes: Ordered[TokenShapes]) -> None:
    """Tries the kernel on each kind of layer that it would be used for. Raises CheckpointError where it is not right."""
    config = model.config.get_text_config()
    softcap = getattr(config, "attn_logit_softcapping", None)
    kinds = {(layer, reach.window) for layer, reach in zip(shapes, reaches(config), strict=True) if reach.chunk is None}
    for layer, window in kinds:
        if kernel.can(window, softcap):
            kernel.prove(layer, config.num_attention_heads, window, softcap, dtype=model.dtype, device=model.device)


def _encoder_output(rows: torch.Tensor, form: FeatureForm) -> BaseModelOutputWithPooling:
    """What `get_image_features` would have returned: the rows, and for each DeepStack layer a list of tensors.

    rows: [1 + deepstack, rows, hidden].
    """
    pooled = {"list": (rows[0],), "rows": rows[0], "items": rows[:1]}[form]
    output = BaseModelOutputWithPooling(pooler_output=pooled)
    output["deepstack_features"] = [[layer] for layer in rows[1:]]
    return output
