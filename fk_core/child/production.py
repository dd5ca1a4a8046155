"""Packages of production kernels that no baseline provider stands behind; candidates may import none without leave."""

from __future__ import annotations

LIBRARIES = (
    *("sgl_kernel", "sglang", "apex", "flash_attn", "flash_attn_interface"),
    *("quack", "tensorrt_llm", "aiter", "transformer_engine", "fla", "xformers", "deep_gemm", "unsloth", "torchao"),
)
