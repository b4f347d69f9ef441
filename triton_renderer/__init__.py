"""Multimodal language models on NVIDIA Triton, served in four stages: render, encode, prefill_decode, derender."""

__version__ = "0.1.0"
