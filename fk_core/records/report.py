"""The validate report: what ``fk validate --json`` prints and ``validate_kernel`` returns as ``result``."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, field_validator

from fk_core.records.base import Number, Record


class Outcome(StrEnum):
    """What became of a candidate, a case or a job; :func:`blame_of` says whose doing it is."""

    PASSED = "PASSED"
    # the candidate's
    BUILD_FAILED = "BUILD_FAILED"
    CONTRACT_BROKEN = "CONTRACT_BROKEN"
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED_OUT"
    OVER_LIMIT = "OVER_LIMIT"
    WRONG_SHAPE = "WRONG_SHAPE"
    WRONG_DTYPE = "WRONG_DTYPE"
    WRONG_VALUES = "WRONG_VALUES"
    NON_FINITE = "NON_FINITE"
    MUTATED = "MUTATED"
    TAMPERED = "TAMPERED"
    POLICY = "POLICY"
    # the harness's
    UNTESTABLE = "UNTESTABLE"
    HARNESS_FAULT = "HARNESS_FAULT"
    # the machine's
    GPU_FAULT = "GPU_FAULT"
    CONTENDED = "CONTENDED"
    NO_GPU_IN_TIME = "NO_GPU_IN_TIME"
    # of a case or a job
    NOT_RUN = "NOT_RUN"
    CANCELLED = "CANCELLED"


Blame = Literal["candidate", "harness", "machine", "caller"]
_HARNESS = {Outcome.UNTESTABLE, Outcome.HARNESS_FAULT}
_MACHINE = {Outcome.GPU_FAULT, Outcome.CONTENDED, Outcome.NO_GPU_IN_TIME}


def blame_of(outcome: Outcome) -> Blame | None:
    """Who is to blame for an outcome; None for PASSED and NOT_RUN."""
    if outcome in (Outcome.PASSED, Outcome.NOT_RUN):
        return None
    if outcome is Outcome.CANCELLED:
        return "caller"
    return "harness" if outcome in _HARNESS else "machine" if outcome in _MACHINE else "candidate"


SpeedWord = Literal["faster", "slower", "same", "inconclusive", "not_timed"]


class Mismatch(Record):
    """The first wrong element of a wrong output."""

    output: str
    """Which output or argument: a name from the contract."""
    index: list[int]
    """Index of the first wrong element in row-major order."""
    expected: Number = None
    got: Number = None
    """None where the value is not finite: ``note`` says which."""
    share_wrong: Number = None
    """Share of the elements that are wrong, 0 to 1."""
    pattern: str = ""
    """What the wrong elements have in common, for example ``last rows`` or ``every 128th column``."""
    note: str = ""


NOT_REACHED = "not reached"
BEGUN = "begun, and not judged to the end"
"""How the reason of a case begins that says NOT_RUN: none of its calls was made, or some were."""


class CaseReport(Record):
    """One case: one class, init arguments, shapes and dtype from one model and workload."""

    id: str
    outcome: Outcome
    reason: str = ""
    """Why the outcome is not PASSED, why there are no times, or why its word is ``inconclusive``."""
    routed_to_baseline: bool = False
    """Whether it lies outside the domain that the candidate declares: the candidate was not run here. It says PASSED
    because an engine would run the baseline."""
    max_abs_error: Number = None
    max_error_ratio: Number = None
    """Largest abs(c - ref) / (half an ulp + u * mag), of which the task's tolerance says how much passes."""
    baseline_error_ratio: Number = None
    """The same for the production baseline."""
    first_mismatch: Mismatch | None = None
    candidate_us: Number = None
    baseline_us: Number = None
    floor_us: Number = None
    """No kernel can be faster: bytes at the measured bandwidth, FLOPs at the measured rate, or an empty node."""
    verdict: SpeedWord = "not_timed"
    speedup: Number = None
    """Baseline time over candidate time; above 1 the candidate is faster."""
    ci95: tuple[float, float] | None = None
    all_cold_speedup: Number = None
    """The same ratio from plain replay with every argument cold."""
    eager_speedup: Number = None
    stopped_because: str = ""
    rounds: int = 0
    calls: int | None = None
    """How often the model makes this call in one step of its workload; None where it is not known."""


class Evidence(Record):
    """One finding against the candidate."""

    kind: str
    """A reason code such as ``timer``, ``thread``, ``process``, ``global_state`` or ``input_mutation``."""
    what: str
    """What was seen, with the value before and after where there is one."""
    where: str = ""
    """File and line in the candidate, where known."""
    instead: str = ""
    """What an honest author would change."""


class Speed(Record):
    verdict: SpeedWord = "not_timed"
    reason: str = ""
    """Why there is no word, or why it is ``inconclusive``."""
    speedup: Number = None
    """Geometric mean over the timed cases."""
    ci95: tuple[float, float] | None = None
    weighted_speedup: Number = None
    """Total baseline time over total candidate time, weighted by the calls that the models make."""
    worst_case: str = ""
    worst_speedup: Number = None
    predicted_model_gain: Number = None
    """Microseconds saved in one step of the models: sum of calls times time saved."""
    baseline: str = ""
    """Provider, and what it runs."""
    others_timed: dict[str, float] = Field(default_factory=dict)
    """Geometric-mean speedup of the candidate over each other provider."""
    mode: str = ""
    """How time was taken: ``gate nodes``, ``eager`` or ``cpu wall``."""
    trust: Literal["full", "indicative", "none"] = "none"


class Deploy(Record):
    """Whether the kernel would work inside an engine."""

    graph_capturable: bool | None = None
    compile_safe: bool | None = None
    allocates: bool | None = None
    syncs: bool | None = None
    pdl: bool | None = None
    mutates_as_declared: bool | None = None
    repeatable: bool | None = None
    batch_invariant: bool | None = None
    domain_share: Number = None
    reasons: list[str] = Field(default_factory=list)


class Seconds(Record):
    """Where the wall time went."""

    queue: float = 0.0
    build: float = 0.0
    correctness: float = 0.0
    timing: float = 0.0
    total: float = 0.0
    gpu_exclusive: float = 0.0
    detail: dict[str, float] = Field(default_factory=dict)
    """Seconds that the harness waited for candidate and judge, by what they did."""


class Machine(Record):
    device: str
    """GPU UUID, or ``cpu``."""
    gpu: str = ""
    driver: str = ""
    cpu: str = ""
    python: str = ""
    torch: str = ""
    triton: str = ""
    fk: str = ""
    sandbox: str = ""
    """Level that confined the candidate: ``namespaces``, ``landlock+seccomp`` or ``process``."""
    clocks: str = ""
    floor: Number = None
    """The machine's own A/A error as a fraction, more where others used its CPUs; None where it was not measured."""
    crowd: str = ""
    """How much other work there was on the CPUs while cases were timed, where it was too much for their times."""


class ValidateReport(Record):
    op: str
    level: int
    outcome: Outcome
    blame: Blame | None = None
    correct: bool = False
    winner: bool = False
    winner_reason: str = ""
    """Why it is not a winner."""
    seed_gate: bool | None = None
    """The older rule: correct and geometric mean at least 1.00."""
    summary: str = ""
    speed: Speed = Field(default_factory=Speed)
    cases: list[CaseReport] = Field(default_factory=list)
    deploy: Deploy = Field(default_factory=Deploy)
    evidence: list[Evidence] = Field(default_factory=list)
    """Findings against the candidate; empty for an honest PASSED."""
    warnings: list[str] = Field(default_factory=list)
    next_steps: list[str] = Field(default_factory=list)
    seconds: Seconds = Field(default_factory=Seconds)
    machine: Machine | None = None
    case_set: str = ""
    source_sha256: str = ""
    attempt_id: str = ""
    identical_to: str = ""
    """Attempt whose recorded answer this is, where nothing was run anew."""
    log_tail: str = ""
    """The last output of the candidate's process, quoted, never an instruction."""


_MARK = "\ufeff"


class ValidateRequest(Record):
    op: str
    source: str
    """Text of the candidate file, without the byte order mark that it may begin with, as Python reads a file."""
    path: str = ""
    """Where the text came from, for messages only."""
    cases: str = "default"
    """``default``, ``quick``, or comma-separated glob patterns over case ids."""
    mode: Literal["independent"] = "independent"
    fresh: bool = False
    allow: list[str] = Field(default_factory=list)
    """Production kernel libraries that the candidate may import, for example ``vllm``."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda``, or a GPU index or UUID."""
    client: str = ""

    @field_validator("source")
    @classmethod
    def _without_mark(cls, text: str) -> str:
        # Of two marks none is taken off: Python refuses such a file, and taking one off each time would hide that.
        return text if text.startswith(2 * _MARK) else text.removeprefix(_MARK)

    def options(self) -> dict[str, Any]:
        """What besides source and machine decides the answer: part of the identity of a submission."""
        return {
            "op": self.op,
            "cases": self.cases,
            "mode": self.mode,
            "allow": sorted(self.allow),
            "device": self.device,
        }
