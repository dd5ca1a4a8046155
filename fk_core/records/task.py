"""What a task file says, as values: read by ``catalog`` from the literal ``TASK``, never by importing the file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fk_core.records.base import Record

Dtype = Literal["float32", "bfloat16", "float16"]
SHORT_DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class Parameter(Record):
    """One argument of ``__init__`` or ``forward``, in order."""

    name: str
    annotation: str
    has_default: bool = False
    default: Any = None


class StateTensor(Record):
    """A parameter or buffer of the module, drawn by the judge and loaded with ``load_state_dict(strict=True)``."""

    shape: list[str]
    draw: str = "normal"
    """How values are drawn: ``normal``, ``norm_weight`` (0.5 to 1.5, a fifth negative) or ``linear_weight``."""
    residency: Literal["hot", "cold"] = "cold"


class TensorArgument(Record):
    shape: list[str]
    """Dimension names or arithmetic over them, outermost first."""
    residency: Literal["hot", "cold"] = "hot"
    """Hot: the previous kernel has just written it. Cold: it comes from device memory."""


class Output(Record):
    shape: list[str]
    dtype: str = "same"
    """``same`` as the case, or a torch dtype name."""
    kind: Literal["float", "integer"] = "float"
    aliases: list[str] = Field(default_factory=list)
    """Arguments whose memory this output may share; empty means new memory."""


class Form(Record):
    """One way in which models call ``forward``."""

    arguments: list[str]
    """Tensor arguments that are passed, in order."""
    outputs: dict[str, Output]
    leading: str = ""
    """The first dimension of arguments and outputs that stands for one to three leading ones; empty if it is one."""
    leading_init: dict[str, Any] = Field(default_factory=dict)
    """Arguments of ``__init__`` with which that holds: with others, more dimensions would mean something else."""
    rows: str = ""
    """The first dimension of arguments and outputs, where each row of the outputs follows from the same row of the
    arguments alone, also for a form that has no ``leading``: the judge then looks at many calls as one."""
    mutates: dict[str, Literal["may", "must"]] = Field(default_factory=dict)
    bytes: str
    """Bytes that must move, as arithmetic over dimensions and ``itemsize``."""
    flops: str
    suffix: str = ""
    """Appended to case ids, for example ``+res``."""


class Entry(Record):
    """One class of the candidate file."""

    init: list[Parameter]
    forward: list[Parameter]
    state: dict[str, StateTensor] = Field(default_factory=dict)
    forms: dict[str, Form]
    contract: list[str] = Field(default_factory=list)
    """Sentences for the author of a candidate."""


class Tolerance(Record):
    limit: float = 5.0
    """Largest accepted abs(c - ref) / (half an ulp + u * mag)."""
    u: float = 2.0**-24
    """Unit roundoff of the internals: 2^-24, or 2^-9 where production kernels use 16-bit internals."""


class CaseSpec(Record):
    id: str
    entry: str
    form: str
    model: str
    tp: int = 1
    workload: str
    dtype: Dtype
    dims: dict[str, int]
    init: dict[str, Any]
    """Arguments of ``__init__`` by name, numbers only."""
    calls: int | None = None


class TaskSpec(Record):
    name: str
    level: int
    summary: str
    entries: dict[str, Entry]
    tensors: dict[str, TensorArgument]
    dtypes: list[Dtype]
    cases: list[CaseSpec]
    cpu_cases: list[CaseSpec]
    hidden: dict[str, tuple[int, int, int]]
    """Secret shapes are drawn from here: dimension -> (lowest, highest, step)."""
    init_of: dict[str, dict[str, Any]]
    """Entry -> init argument -> dimension name or literal; how hidden shapes become init arguments."""
    init_ranges: dict[str, dict[str, tuple[float, float]]] = Field(default_factory=dict)
    """Entry -> init argument -> lowest and highest value, above 0, that are tried beside those of the cases."""
    tolerance: Tolerance = Field(default_factory=Tolerance)
    distributions: list[str]
    baselines: list[str]
    source: str
    """Where the operator and its shapes come from."""
    gate_repeatable: bool = False
    path: str = ""
    """The task file."""
    sha256: str = ""

    def case_set(self, device: str) -> list[CaseSpec]:
        return self.cpu_cases if device == "cpu" else self.cases
