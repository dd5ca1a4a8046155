"""Softmax over rows: sampling over a vocabulary, routing over experts, attention over keys."""

import torch

# fmt: off
TASK = {
    "name": "softmax",
    "level": 1,
    "summary": "y = exp(x - max(x)) / sum(exp(x - max(x))) over the last dimension, which dim names.",
    "source": (
        "Softmax where models and engines call it on its own; leading dimensions (batch, heads) are rows here. "
        "Sampling takes one softmax a step over fp32 logits: vocabularies of Llama-3.1-8B (128256), Qwen3-Next-80B-A3B "
        "(151936) and gpt-oss-120b (201088). Routing without a fused top-k: Qwen3-Next-80B-A3B takes it over the fp32 "
        "logits of 512 experts in 48 layers; gpt-oss-120b, with dim=1, over the bf16 logits of the 4 experts chosen in "
        "36 layers. Attention without a fused kernel: bge-m3 (24 layers, 16 heads, run in fp16) over 512 keys, and the "
        "T5-XXL text encoder of FLUX.1-dev (24 layers, 64 heads, scores in fp32) over 512 keys; FLUX.1-dev itself only "
        "has fused attention. Batch sizes are chosen, not recorded."
    ),
    "entries": {
        "Softmax": {
            "init": "dim: int = -1",
            "forward": "x: Tensor",
            "forms": {
                "plain": {
                    "arguments": ["x"],
                    "outputs": {"y": {"shape": ["rows", "cols"]}},
                    # Scores of attention are [batch, heads, queries, keys]. With dim=1 that would be over the heads.
                    "leading": "rows",
                    "leading_init": {"dim": -1},
                    # With dim=1, too, x has two dimensions and dim is the last.
                    "rows": "rows",
                    "bytes": "2 * rows * cols * itemsize",
                    "flops": "5 * rows * cols",
                },
            },
            "contract": [
                "forward(x) returns softmax(x) over the last dimension, in the shape and dtype of x and in new memory; "
                "x stays. dim is -1, and x has one to three leading dimensions, or 1, and x has two dimensions; no "
                "other is asked for.",
                "Subtract the maximum: logits may be large. Entries of -inf (masks) give 0; no row is masked entirely. "
                "A NaN makes its whole row NaN and no other.",
                "Compute in fp32 and round to the dtype of x at the end.",
            ],
        },
    },
    "tensors": {"x": {"shape": ["rows", "cols"], "residency": "hot"}},
    "dtypes": ["float32", "bfloat16", "float16"],
    "init_of": {"Softmax": {}},
    "hidden": {"rows": (1, 4099, 1), "cols": (3, 9001, 1)},
    "tolerance": {"limit": 5.0, "u": 2.0**-24},
    "distributions": [
        "normal", "large", "tiny", "heavy", "shifted", "integers", "zeros", "constant", "huge", "negative_zeros",
        "denormals", "negative", "low_rows", "repeated_row", "outliers", "cancellation", "masked", "nan", "faint",
        "uneven", "vast",
    ],
    # Engines and models call torch's own kernel here, so that is the production baseline.
    "baselines": ["torch_eager", "torch_compile", "flashinfer"],
    "cases": [
        {"model": "Llama-3.1-8B", "workload": "decode-1-sampling", "form": "plain", "dtype": "float32",
         "dims": {"rows": 1, "cols": 128256}, "init": {}, "calls": 1},
        {"model": "Llama-3.1-8B", "workload": "decode-64-sampling", "form": "plain", "dtype": "float32",
         "dims": {"rows": 64, "cols": 128256}, "init": {}, "calls": 1},
        {"model": "Qwen3-Next-80B-A3B", "workload": "decode-16-sampling", "form": "plain", "dtype": "float32",
         "dims": {"rows": 16, "cols": 151936}, "init": {}, "calls": 1},
        {"model": "gpt-oss-120b", "workload": "decode-128-sampling", "form": "plain", "dtype": "float32",
         "dims": {"rows": 128, "cols": 201088}, "init": {}, "calls": 1},
        {"model": "Qwen3-Next-80B-A3B", "workload": "decode-64-routing", "form": "plain", "dtype": "float32",
         "dims": {"rows": 64, "cols": 512}, "init": {}, "calls": 48},
        {"model": "Qwen3-Next-80B-A3B", "workload": "prefill-8192-routing", "form": "plain", "dtype": "float32",
         "dims": {"rows": 8192, "cols": 512}, "init": {}, "calls": 48},
        {"model": "gpt-oss-120b", "workload": "decode-64-routing", "form": "plain", "dtype": "bfloat16",
         "dims": {"rows": 64, "cols": 4}, "init": {"dim": 1}, "calls": 36},
        {"model": "gpt-oss-120b", "workload": "prefill-8192-routing", "form": "plain", "dtype": "bfloat16",
         "dims": {"rows": 8192, "cols": 4}, "init": {"dim": 1}, "calls": 36},
        {"model": "bge-m3", "workload": "embed-1x512-attention", "form": "plain", "dtype": "float16",
         "dims": {"rows": 8192, "cols": 512}, "init": {}, "calls": 24},
        {"model": "bge-m3", "workload": "embed-16x512-attention", "form": "plain", "dtype": "float16",
         "dims": {"rows": 131072, "cols": 512}, "init": {}, "calls": 24},
        {"model": "FLUX.1-dev", "workload": "prompt-512-attention", "form": "plain", "dtype": "float32",
         "dims": {"rows": 32768, "cols": 512}, "init": {}, "calls": 24},
    ],
    "cpu_cases": [
        {"model": "Llama-3.1-8B", "workload": "decode-2-sampling-cut", "form": "plain", "dtype": "float32",
         "dims": {"rows": 2, "cols": 8192}, "init": {}},
        {"model": "Qwen3-Next-80B-A3B", "workload": "decode-16-routing", "form": "plain", "dtype": "float32",
         "dims": {"rows": 16, "cols": 512}, "init": {}, "calls": 48},
        {"model": "gpt-oss-120b", "workload": "decode-16-routing", "form": "plain", "dtype": "bfloat16",
         "dims": {"rows": 16, "cols": 4}, "init": {"dim": 1}, "calls": 36},
        {"model": "bge-m3", "workload": "embed-attention-cut", "form": "plain", "dtype": "float16",
         "dims": {"rows": 16, "cols": 512}, "init": {}},
    ],
}
# fmt: on


def oracle(call, state, inputs):
    dim = call.init["dim"]
    y = torch.softmax(inputs["x"], dim=dim)
    # exp turns a rounding of its argument, which is as large as -ln(y) up to the scale of the sum, into a relative
    # error of the result. The sum itself is off by up to about sqrt(N) roundings, depending on its order, and by more
    # where it is made in few long chains of nearly equal terms, which round to the same side: over a vocabulary of
    # 201088, torch's own fp32 kernel for CPUs is off by 2850 with 8 lanes.
    n = y.shape[dim]
    scale = 1 + 2 * y.log().abs() + max(n**0.5, n / 256)
    return {"y": (y, torch.where(y > 0, y * scale, torch.zeros_like(y)))}


def make_inputs(call, draw):
    x = draw("x")
    if call.distribution == "vast":
        # exp2(x * log2(e) - max) is honest, and off by a rounding of x: near ties of values above 100 would show it.
        # Multiples of 128 are equal or so far apart that the smaller gives 0.
        x = (x / 128).round() * 128
    if call.distribution == "masked":
        # A row that is masked entirely has no softmax; real masks leave each query at least one key.
        whole = torch.isneginf(x).all(dim=call.init["dim"], keepdim=True)
        first = torch.zeros(x.shape[call.init["dim"]], dtype=torch.bool, device=x.device)
        first[0] = True
        x = torch.where(whole & first, torch.zeros_like(x), x)
    return {"x": x}
