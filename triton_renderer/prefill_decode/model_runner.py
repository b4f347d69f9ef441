"""Runs the language model: prefill of one prompt, decode of one token for each row of the batch.

The forward pass is transformers' own for every model; `mm_encoder_outputs` takes the place of its vision tower.
"""

import inspect
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from triton_renderer import checkpoint
from triton_renderer.errors import InvalidRequest
from triton_renderer.prefill_decode.kv_cache import BatchKVCache
from triton_renderer.prefill_decode.sequence import MultimodalInputs, Prompt
from triton_renderer.protocol.stages import EncodedItem
from triton_renderer.settings import Settings

_TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")
"""Names under which a family takes it which tokens stand for a picture, as for attention both ways inside one."""
_SUPPORTED_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


class ModelRunner:
    """The language model and the KV cache of the decode batch. Used by one thread only, in inference mode."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config = model.config
        self.device = model.device
        self.dtype = model.dtype
        text_config = self.config.get_text_config()
        self.vocab_size: int = text_config.vocab_size
        self.image_token_id: int | None = getattr(self.config, "image_token_id", None)
        self.cache = BatchKVCache(text_config.num_hidden_layers)
        vision_config = getattr(self.config, "vision_config", None)
        self.num_deepstack = len(getattr(vision_config, "deepstack_visual_indexes", None) or [])
        self._merge_size = int(getattr(vision_config, "spatial_merge_size", 1))
        self._accepted = inspect.signature(model.forward).parameters.keys()
        # M-RoPE: the positions of a prompt depend on its pictures, and the model object must not remember the last one's.
        self._get_rope_index = getattr(model.base_model, "get_rope_index", None)

    @classmethod
    def load(cls, settings: Settings) -> "ModelRunner":
        """Loads the language model's weights. Raises CheckpointError."""
        model = checkpoint.load_part(settings, "language")
        layers = set(getattr(model.config.get_text_config(), "layer_types", None) or [])
        if unsupported := layers - _SUPPORTED_LAYERS:
            raise checkpoint.CheckpointError(
                f"MODEL={settings.model}: layers of type {sorted(unsupported)[0]} are not supported"
            )
        return cls(model)

    def checked_grids(self, item: EncodedItem) -> dict[str, torch.Tensor]:
        """The item's metadata that the forward pass takes, as int64 [1, n].

        Raises InvalidRequest where a model with M-RoPE would not get a grid of just as many places as the item has rows.
        """
        grids = {name: torch.tensor([value]) for name, value in item.metadata.items() if name in self._accepted}
        if self._get_rope_index is not None:
            grid = item.metadata.get("image_grid_thw", [])
            if len(grid) != 3 or min(grid) < 1 or math.prod(grid) != item.rows * self._merge_size**2:
                raise InvalidRequest(f"the grid {grid} of item {item.mm_hash!r} does not have its {item.rows} rows", "encoded")
        return grids

    def make_prompt(self, token_ids: npt.NDArray[np.int64], multimodal: MultimodalInputs | None) -> Prompt:
        """Positions of a prompt, from its tokens and the grids of its pictures.

        Raises InvalidRequest where the pictures do not fit the placeholders.
        """
        if self._get_rope_index is None:
            return Prompt(token_ids, torch.arange(len(token_ids)).unsqueeze(0), len(token_ids), multimodal)
        if multimodal is None:
            # Without pictures the three axes are equal: what get_rope_index would say, without its loop over tokens.
            return Prompt(token_ids, torch.arange(len(token_ids)).expand(3, 1, -1), len(token_ids), None)
        ids = torch.from_numpy(token_ids).unsqueeze(0)
        try:
            positions, delta = self._get_rope_index(
                ids, mm_token_type_ids=self._token_types(ids), **_on_cpu(self._grids(multimodal))
            )
        except (RuntimeError, StopIteration) as error:
            raise InvalidRequest("the pictures' grids do not fit the placeholder ranges", "features.mm_placeholders") from error
        return Prompt(token_ids, positions, len(token_ids) + int(delta), multimodal)

    def prefill(self, prompt: Prompt) -> tuple[torch.Tensor, DynamicCache]:
        """Logits of the first output token, [1, vocabulary], and the prompt's keys and values.

        The caller lets the cache join the batch, once for each choice that goes on.
        """
        inputs: dict[str, Any] = {"position_ids": prompt.position_ids.to(self.device)}
        ids = torch.from_numpy(prompt.token_ids).unsqueeze(0).to(self.device)
        if prompt.multimodal is not None:
            inputs["mm_encoder_outputs"] = {"image": _encoder_output(prompt.multimodal)}
            inputs |= {name: self._token_types(ids) for name in _TOKEN_TYPES if name in self._accepted}
            inputs |= {name: grid.to(self.device) for name, grid in self._grids(prompt.multimodal).items()}
        # Without the config, every layer keeps all its keys: a sliding window is a matter of the mask, in decode too.
        cache = DynamicCache()
        output = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **inputs)
        return output.logits[:, -1], cache

    def decode(self, token_ids: list[int], positions: list[int]) -> torch.Tensor:
        """One token for each row of the cache, in its order. Returns logits [rows, vocabulary]."""
        mask = self.cache.prepare_step().to(self.device)
        position_ids = torch.tensor(positions, device=self.device).unsqueeze(1)
        if self._get_rope_index is not None:
            position_ids = position_ids.expand(3, -1, -1)
        output = self.model(
            input_ids=torch.tensor(token_ids, device=self.device).unsqueeze(1),
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache.advance()
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _token_types(self, ids: torch.Tensor) -> torch.Tensor:
        """1 where a token takes a row of a picture, else 0: [1, tokens] int32."""
        return ids.eq(-1 if self.image_token_id is None else self.image_token_id).int()

    @staticmethod
    def _grids(multimodal: MultimodalInputs) -> dict[str, torch.Tensor]:
        names = multimodal.grids[0].keys()
        return {name: torch.cat([grid[name] for grid in multimodal.grids]) for name in names}


def _encoder_output(multimodal: MultimodalInputs) -> BaseModelOutputWithPooling:
    """What `get_image_features` would have returned for all items: their rows, and one list of tensors a DeepStack layer."""
    rows = tuple(features[0] for features in multimodal.features)
    joined = torch.cat(rows)
    pooled = {"list": rows, "rows": joined, "items": joined.unsqueeze(0)}[multimodal.form]
    output = BaseModelOutputWithPooling(pooler_output=pooled)
    depth = multimodal.features[0].shape[0]
    output["deepstack_features"] = [[features[layer] for features in multimodal.features] for layer in range(1, depth)]
    return output


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}
