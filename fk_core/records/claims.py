"""What a candidate's process may answer. Everything in here is a claim: checked for form, and never believed alone."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fk_core.child.bounds import MOST_ALIASES, MOST_DIMENSIONS, MOST_FINDINGS, MOST_OUTPUTS

Text = Annotated[str, Field(max_length=4000)]
Index = Annotated[int, Field(ge=0, le=MOST_OUTPUTS)]
Size = Annotated[int, Field(ge=0, lt=1 << 63)]
CallNumber = Annotated[int, Field(ge=0, le=4096)]
Micros = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]


class Claim(BaseModel):
    """Strict: no coercion, no unknown fields, bounded sizes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Nothing(Claim):
    """It was done, and there is no more to say."""


class FindingClaim(Claim):
    kind: Text
    what: Text
    where: Text = ""
    instead: Text = ""
    severity: Literal["reject", "policy", "warn"]


class Findings(Claim):
    findings: list[FindingClaim] = Field(default_factory=list, max_length=MOST_FINDINGS)


class OutputClaim(Claim):
    problem: Text | None = None
    foreign: bool = False
    """It is no tensor at all."""
    shape: list[Size] = Field(default_factory=list, max_length=MOST_DIMENSIONS)
    dtype: Text = ""
    device: Text = ""
    last_stride: Size = 1
    copied: bool = False


class CallClaim(Claim):
    returned: int = Field(ge=0)
    """How many values ``forward`` returned; ``outputs`` tells of the first."""
    outputs: list[OutputClaim] = Field(max_length=MOST_OUTPUTS)
    aliases: list[Annotated[list[Index], Field(min_length=2, max_length=2)]] = Field(max_length=MOST_ALIASES)
    earlier: list[Index] = Field(default_factory=list, max_length=MOST_OUTPUTS)
    """Outputs that share memory with outputs of the calls before."""


class HeldClaim(Claim):
    """What of the last timed calls shares memory; as in ``CallClaim``."""

    aliases: list[Annotated[list[Index], Field(min_length=2, max_length=2)]] = Field(max_length=MOST_ALIASES)
    earlier: list[Index] = Field(max_length=MOST_OUTPUTS)


class LoopClaim(Claim):
    """How many calls of a turn were made."""

    made: int


class HoldClaim(Claim):
    shared: list[Annotated[list[CallNumber], Field(min_length=2, max_length=2)]] = Field(max_length=64)
    """Pairs of calls of which an output shares memory with an output or input of the other."""


class StateClaim(Claim):
    copied: list[Text] = Field(max_length=4096)


class LayoutClaim(Claim):
    """One capture, by either side."""

    calls: int = Field(ge=1, le=4096)
    order: list[int] = Field(max_length=4096)


class InspectedLayout(LayoutClaim):
    """With what the graph of a candidate holds."""

    nodes: dict[Text, int] = Field(max_length=32)
    programmatic: int


class CaptureClaim(Claim):
    capturable: bool
    reason: Text = ""
    unjoined: bool = False
    layouts: list[InspectedLayout] = Field(default_factory=list, max_length=64)


class TryClaim(Claim):
    capturable: bool
    reason: Text = ""
    unjoined: bool = False
    nodes: dict[Text, int] = Field(default_factory=dict, max_length=32)


class FullTurn(Claim):
    full_us: list[Micros] = Field(max_length=64)
    calls: int = Field(ge=1, le=4096)


class GateTurn(Claim):
    """Of the judge only."""

    gate_us: list[Micros] = Field(max_length=64)
    calls: int = Field(ge=1, le=4096)


class PlainTurn(Claim):
    plain_us: list[Micros] = Field(max_length=64)
    calls: int = Field(ge=1, le=4096)


class ContractClaim(Claim):
    contract: Annotated[str, Field(max_length=200_000)]


class ExceptionClaim(Claim):
    type: Text
    message: Text
    where: Text = ""
    trace: Text = ""
    findings: list[FindingClaim] = Field(default_factory=list, max_length=MOST_FINDINGS)
