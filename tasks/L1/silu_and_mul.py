"""The gated activation of feed-forward layers: silu of the first half times the second half."""

import torch

# fmt: off
TASK = {
    "name": "silu_and_mul",
    "level": 1,
    "summary": "y = silu(x[..., :d]) * x[..., d:], where x has 2 * d columns: gate and up projections side by side.",
    "source": (
        "SiluAndMul between the gate-up and the down projection. Shapes follow from the published model configs. "
        "Llama-3.1-8B: intermediate size 14336, 32 layers, one call a layer; split over 4 GPUs, 14336 / 4 = 3584. "
        "Qwen3-Next-80B-A3B: 48 layers, each with a shared expert of width 512 (one row a token) and routed experts of "
        "width 512, 10 a token, whose rows an unfused expert layer activates together (10 rows a token); 48 calls of "
        "each. gpt-oss-120b clamps and scales its gate, bge-m3 and FLUX.1-dev use GELU: other operators, so no cases "
        "from them. Row counts of decode, mixed and prefill batches are chosen, not recorded."
    ),
    "entries": {
        "SiluAndMul": {
            "init": "",
            "forward": "x: Tensor",
            "forms": {
                "plain": {
                    "arguments": ["x"],
                    "outputs": {"y": {"shape": ["tokens", "inter"]}},
                    "leading": "tokens",
                    "bytes": "3 * tokens * inter * itemsize",
                    "flops": "5 * tokens * inter",
                },
            },
            "contract": [
                "forward(x) with x of shape [..., 2 * d], one to three leading dimensions, returns "
                "silu(x[..., :d]) * x[..., d:] of shape [..., d], in new memory.",
                "silu(a) = a / (1 + exp(-a)). Compute in fp32 and round to the dtype of x at the end. x stays. A NaN "
                "makes the one element NaN that it goes into.",
            ],
        },
    },
    "tensors": {"x": {"shape": ["tokens", "2 * inter"], "residency": "hot"}},
    "dtypes": ["bfloat16", "float32"],
    "init_of": {"SiluAndMul": {}},
    "hidden": {"tokens": (1, 4099, 1), "inter": (96, 14464, 32)},
    "tolerance": {"limit": 5.0, "u": 2.0**-24},
    "distributions": [
        "normal", "large", "tiny", "heavy", "shifted", "integers", "zeros", "constant", "huge", "negative_zeros",
        "denormals", "negative", "repeated_row", "outliers", "cancellation", "nan", "faint", "uneven", "vast",
    ],
    "baselines": ["vllm", "flashinfer", "liger", "torch_compile", "torch_eager"],
    "cases": [
        {"model": "Llama-3.1-8B", "workload": "decode-1", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 1, "inter": 14336}, "init": {}, "calls": 32},
        {"model": "Llama-3.1-8B", "workload": "decode-64", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 64, "inter": 14336}, "init": {}, "calls": 32},
        {"model": "Llama-3.1-8B", "workload": "mixed-512", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 512, "inter": 14336}, "init": {}, "calls": 32},
        {"model": "Llama-3.1-8B", "workload": "prefill-8192", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 8192, "inter": 14336}, "init": {}, "calls": 32},
        {"model": "Llama-3.1-8B", "tp": 4, "workload": "decode-64", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 64, "inter": 3584}, "init": {}, "calls": 32},
        {"model": "Llama-3.1-8B", "tp": 4, "workload": "prefill-4096", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 4096, "inter": 3584}, "init": {}, "calls": 32},
        {"model": "Qwen3-Next-80B-A3B", "workload": "decode-1-shared", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 1, "inter": 512}, "init": {}, "calls": 48},
        {"model": "Qwen3-Next-80B-A3B", "workload": "decode-64-routed", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 640, "inter": 512}, "init": {}, "calls": 48},
        {"model": "Qwen3-Next-80B-A3B", "workload": "prefill-4096-shared", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 4096, "inter": 512}, "init": {}, "calls": 48},
        {"model": "Qwen3-Next-80B-A3B", "workload": "prefill-4096-routed", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 40960, "inter": 512}, "init": {}, "calls": 48},
    ],
    "cpu_cases": [
        {"model": "Llama-3.1-8B", "workload": "decode-1", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 1, "inter": 14336}, "init": {}, "calls": 32},
        {"model": "Llama-3.1-8B", "workload": "decode-4", "form": "plain", "dtype": "float32",
         "dims": {"tokens": 4, "inter": 14336}, "init": {}, "calls": 32},
        {"model": "Llama-3.1-8B", "tp": 4, "workload": "decode-8", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 8, "inter": 3584}, "init": {}, "calls": 32},
        {"model": "Qwen3-Next-80B-A3B", "workload": "decode-4-routed", "form": "plain", "dtype": "bfloat16",
         "dims": {"tokens": 40, "inter": 512}, "init": {}, "calls": 48},
    ],
}
# fmt: on


def oracle(call, state, inputs):
    gate, up = inputs["x"].chunk(2, dim=-1)
    return {"y": (gate * torch.sigmoid(gate) * up, (gate * up).abs())}


def make_inputs(call, draw):
    return {name: draw(name) for name in call.arguments}
