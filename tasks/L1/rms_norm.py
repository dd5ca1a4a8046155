"""RMSNorm of decoder layers and of attention heads, alone or fused with the addition of the residual."""

import torch

# fmt: off
TASK = {
    "name": "rms_norm",
    "level": 1,
    "summary": "y = x / sqrt(mean(x^2) + eps) * weight over the last dimension; with a residual, of x + residual.",
    "source": (
        "RMSNorm as decoders use it. Shapes follow from the published model configs. Llama-3.1-8B: hidden 4096, "
        "32 layers, eps 1e-5; an engine with a fused residual calls it once alone (first layer) and 2 * 32 = 64 times "
        "with a residual in one step. gpt-oss-120b: hidden 2880, 36 layers, eps 1e-5; so 1 and 2 * 36 = 72 times. "
        "FLUX.1-dev: query and key heads of width 128 (24 heads), eps 1e-6, at 1024 x 1024 pixels: 4096 image and 512 "
        "text tokens; 19 double blocks norm query and key of both streams apart (2 * 19 = 38 calls each), 38 single "
        "blocks norm those of all 4608 tokens (2 * 38 = 76 calls); heads are rows here. Its T5-XXL text encoder: "
        "hidden 4096, 24 layers, eps 1e-6, 512 tokens, 2 * 24 + 1 = 49 calls for a prompt. Qwen3-Next-80B-A3B scales "
        "by 1 + weight and gates, and bge-m3 has LayerNorm: other operators, so no cases from them. Row counts of "
        "decode, mixed and prefill batches are chosen, not recorded."
    ),
    "entries": {
        "RMSNorm": {
            "init": "hidden_size: int, eps: float = 1e-06",
            "forward": "x: Tensor, residual: Tensor | None = None",
            "state": {"weight": {"shape": ["hidden"], "draw": "norm_weight", "residency": "cold"}},
            "forms": {
                "plain": {
                    "arguments": ["x"],
                    "outputs": {"y": {"shape": ["tokens", "hidden"]}},
                    # Engines norm queries and keys by head: [tokens, heads, head_dim].
                    "leading": "tokens",
                    "bytes": "(2 * tokens * hidden + hidden) * itemsize",
                    "flops": "4 * tokens * hidden",
                },
                "residual": {
                    "arguments": ["x", "residual"],
                    "outputs": {
                        "y": {"shape": ["tokens", "hidden"], "aliases": ["x"]},
                        "residual_out": {"shape": ["tokens", "hidden"], "aliases": ["residual"]},
                    },
                    "mutates": {"x": "may", "residual": "may"},
                    # Engines pass two dimensions here, models written for training [batch, tokens, hidden].
                    "leading": "tokens",
                    "bytes": "(4 * tokens * hidden + hidden) * itemsize",
                    "flops": "5 * tokens * hidden",
                    "suffix": "+res",
                },
            },
            "contract": [
                "forward(x) returns y = x / sqrt(mean(x^2, last dimension) + eps) * weight in new memory; x stays.",
                "forward(x, residual) returns (y, residual_out): residual_out = x + residual, y the norm of that sum.",
                "With a residual, x and residual may be overwritten; y may share x's memory, residual_out residual's.",
                "x, and a residual of the same shape, have one to three leading dimensions, such as [tokens, heads, "
                "hidden] or [batch, tokens, hidden].",
                "Compute in fp32 and round to the dtype of x at the end. A NaN makes its row of y NaN and no other.",
            ],
        },
    },
    "tensors": {
        # The projection before the norm has just written x. The residual was written a block earlier: the weights of
        # that block have passed through the cache since.
        "x": {"shape": ["tokens", "hidden"], "residency": "hot"},
        "residual": {"shape": ["tokens", "hidden"], "residency": "cold"},
    },
    "dtypes": ["bfloat16", "float32"],
    "init_of": {"RMSNorm": {"hidden_size": "hidden"}},
    "init_ranges": {"RMSNorm": {"eps": (1e-12, 1e-3)}},
    "hidden": {"tokens": (1, 4099, 1), "hidden": (96, 5152, 32)},
    "tolerance": {"limit": 5.0, "u": 2.0**-24},
    "distributions": [
        "normal", "large", "tiny", "heavy", "shifted", "integers", "zeros", "constant", "huge", "negative_zeros",
        "denormals", "negative", "repeated_row", "outliers", "cancellation", "nan", "faint", "uneven", "vast",
    ],
    "baselines": ["vllm", "flashinfer", "liger", "torch_compile", "torch_eager"],
    "cases": [
        {"model": "Llama-3.1-8B", "workload": "decode-1", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 1, "hidden": 4096}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 1},
        {"model": "Llama-3.1-8B", "workload": "decode-64", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 64, "hidden": 4096}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 1},
        {"model": "Llama-3.1-8B", "workload": "mixed-512", "form": "residual", "dtype": "bfloat16",
         "dims": {"tokens": 512, "hidden": 4096}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 64},
        {"model": "Llama-3.1-8B", "workload": "prefill-4096", "form": "residual", "dtype": "bfloat16",
         "dims": {"tokens": 4096, "hidden": 4096}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 64},
        {"model": "Llama-3.1-8B", "workload": "prefill-16384", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 16384, "hidden": 4096}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 1},
        {"model": "gpt-oss-120b", "workload": "decode-1", "form": "residual", "dtype": "bfloat16",
         "dims": {"tokens": 1, "hidden": 2880}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 72},
        {"model": "gpt-oss-120b", "workload": "decode-64", "form": "residual", "dtype": "bfloat16",
         "dims": {"tokens": 64, "hidden": 2880}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 72},
        {"model": "gpt-oss-120b", "workload": "prefill-8192", "form": "residual", "dtype": "bfloat16",
         "dims": {"tokens": 8192, "hidden": 2880}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 72},
        {"model": "FLUX.1-dev", "workload": "denoise-text-heads", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 12288, "hidden": 128}, "init": {"hidden_size": "hidden", "eps": 1e-06}, "calls": 38},
        {"model": "FLUX.1-dev", "workload": "denoise-single-heads", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 110592, "hidden": 128}, "init": {"hidden_size": "hidden", "eps": 1e-06}, "calls": 76},
        {"model": "FLUX.1-dev", "workload": "prompt-512", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 512, "hidden": 4096}, "init": {"hidden_size": "hidden", "eps": 1e-06}, "calls": 49},
    ],
    "cpu_cases": [
        {"model": "Llama-3.1-8B", "workload": "decode-1", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 1, "hidden": 4096}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 1},
        {"model": "Llama-3.1-8B", "workload": "decode-16", "form": "residual", "dtype": "bfloat16",
         "dims": {"tokens": 16, "hidden": 4096}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 64},
        {"model": "gpt-oss-120b", "workload": "decode-8", "form": "residual", "dtype": "float32",
         "dims": {"tokens": 8, "hidden": 2880}, "init": {"hidden_size": "hidden", "eps": 1e-05}, "calls": 72},
        {"model": "FLUX.1-dev", "workload": "denoise-heads-cut", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 48, "hidden": 128}, "init": {"hidden_size": "hidden", "eps": 1e-06}},
    ],
}
# fmt: on


def norm(hidden, weight, eps):
    return hidden * torch.rsqrt(hidden.square().mean(dim=-1, keepdim=True) + eps) * weight


def oracle(call, state, inputs):
    weight, eps = state["weight"], call.init["eps"]
    if "residual" not in inputs:
        y = norm(inputs["x"], weight, eps)
        return {"y": (y, magnitude(y))}
    hidden = inputs["x"] + inputs["residual"]
    y = norm(hidden, weight, eps)
    # Production kernels store the sum in the dtype of x and norm what they stored; others norm the exact sum. Both are
    # right, and one outlier that rounds moves the whole row. So the distance between the two is allowed on top.
    stored = norm(hidden.to(call.dtype).to(hidden.dtype), weight, eps)
    between = torch.nan_to_num((y - stored).abs(), nan=0.0, posinf=0.0)
    tolerance = TASK["tolerance"]
    return {
        "y": (y, magnitude(y) + between / (tolerance["limit"] * tolerance["u"])),
        "residual_out": (hidden, hidden.abs()),
    }


def magnitude(y):
    # The sum over a row may be taken in any order, which moves the whole row by up to about sqrt(N) roundings.
    return y.abs() * y.shape[-1] ** 0.5


def make_inputs(call, draw):
    return {name: draw(name) for name in call.arguments}
