"""Judge and candidate's runner in one process, on the CPU: a whole plan of calls against any function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fk_core.catalog import Catalog
from fk_core.child.calls import init_defaults
from fk_core.child.ceilings import Ceilings
from fk_core.child.eager_ops import EAGER
from fk_core.child.judge import Job
from fk_core.child.runner import Runner
from fk_core.records.claims import CallClaim, HoldClaim
from fk_core.records.task import CaseSpec, TaskSpec

torch.set_num_threads(1)  # as every child does
CPU = torch.device("cpu")
CATALOG = Catalog()
Forward = Callable[..., Any]
Wrap = Callable[[Forward, dict[str, Tensor]], Forward]


def honest(forward: Forward, state: dict[str, Tensor]) -> Forward:
    return forward


class Module:
    """A function with its weights beside it, as far as the runner looks at a module."""

    def __init__(self, forward: Forward, state: dict[str, Tensor]) -> None:
        self.forward, self.state = forward, state

    def __call__(self, *inputs: Tensor) -> Any:
        return self.forward(*inputs)

    def state_dict(self) -> dict[str, Tensor]:
        return self.state


def case_of(spec: TaskSpec, form: str) -> CaseSpec:
    return next(c for c in spec.cpu_cases if c.form == form)


class Court:
    """``wrap`` makes the candidate from the eager function; by default it is that function."""

    def __init__(
        self, op: str, wrap: Wrap = honest, *, cases: list[CaseSpec] | None = None, seed: int = 7, **body: Any
    ) -> None:
        self.spec = CATALOG.get(op)
        self.wrap = wrap
        chosen = self.spec.cpu_cases if cases is None else cases
        plan = {
            "task": self.spec.model_dump(mode="json"),
            "cases": [c.model_dump(mode="json") for c in chosen],
            "seed": seed,
        }
        self.job = Job(CPU, plan | body, Ceilings(CPU))
        self.runner = Runner(CPU, self._build)
        opened = self.job.opened()
        self.modules = {m["key"]: m for m in opened["modules"]}
        self.runner.do_arena({"name": "main", "size": opened["arena"]["size"]}, opened["fds"])
        self.told: list[dict[str, Any]] = []

    def _build(
        self, entry: str, init: Mapping[str, Any], state: dict[str, Tensor], dtype: torch.dtype, device: torch.device
    ) -> Forward:
        full = {**init_defaults(self.job.task["entries"][entry]["init"]), **init}
        return Module(self.wrap(EAGER[self.spec.name, entry](full, state), state), state)

    def call(self, i: int, change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> dict[str, Any]:
        """One call of the plan, judged; ``change`` lies about what the runner described."""
        key = self.job.keys[i]
        if key not in self.runner.modules:
            self.runner.do_make(self.modules[key], [])
        laid = self.job.calls.lay(i)
        answer = change(self.runner.do_call({"do": "call", **laid}, []))
        claim = CallClaim.model_validate(answer)
        described = [o.model_dump(exclude_none=True) for o in claim.outputs]
        self.job.calls.take(i, claim.returned, described, claim.aliases, claim.earlier)
        self.job.calls.file()
        ((_, told),) = self.job.calls.judge_some(1)
        self.told.append(told)
        return told

    def run(self, change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> dict[str, Any] | None:
        """Every call until the first that rejects; what was told of it, or None where nothing was wrong."""
        for i in range(len(self.job.probes)):
            told = self.call(i, change)
            if not told["ok"] and self.job.probes[i].gating:
                return told
        for number in range(len(self.job.held.shapes)):
            told = self.hold(number, 80)
            if not told["ok"]:
                return told
        return self.weights()

    def hold(
        self, number: int, calls: int, change: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> dict[str, Any]:
        """Calls whose outputs are all kept, judged; ``change`` lies about what the runner told."""
        key = self.job.held.told()[number]["key"]
        if key not in self.runner.modules:
            self.runner.do_make(self.modules[key], [])
        laid = self.job.held.lay(number, calls)
        claim = HoldClaim.model_validate(change(self.runner.do_hold({"do": "hold", **laid}, [])))
        return self.job.held.judge(claim.shared)

    def weights(self) -> dict[str, Any] | None:
        for key, recipe in self.modules.items():
            if not recipe["state"] or key not in self.runner.modules:
                continue
            places = self.job.state_places(key)["places"]
            copied = self.runner.do_state({"key": key, "places": places}, [])["copied"]
            told = self.job.judge_state(key, copied)
            if not told["ok"]:
                return told
        return None

    def index(self, relation: str = "", *, hidden: bool = False) -> int:
        """The first call of that relation, or for a shape that is in no case."""
        return next(
            i for i, p in enumerate(self.job.probes) if p.relation == relation and p.hidden is hidden and (
                hidden or relation or p.case_id)
        )  # fmt: skip

    def close(self) -> None:
        self.job.close()
        for arena in self.runner.arenas.values():
            arena.close()
