"""The prefill_decode stage: scheduler, KV cache, sampler, and the engine that drives them."""

from triton_renderer.prefill_decode.stage import PrefillDecode

__all__ = ["PrefillDecode"]
