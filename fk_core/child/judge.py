"""The trusted side of one device: makes inputs, holds oracle and production baseline, compares, times the baseline.

One process a device, warm between jobs. It never loads candidate code; a candidate reaches it only through shared
memory, as bytes, and through descriptions that the parent has checked. Requests are answered one after another.
"""

from __future__ import annotations

import gc
import json
import os
import random
from dataclasses import asdict
from math import prod
from typing import Any

import torch
from torch import Tensor

from fk_core.child import compare, inputs
from fk_core.child.arena import ALIGN, Arena, Cursor, create_arena
from fk_core.child.baselines.base import BaselineUnusable, Provider, provider
from fk_core.child.call_desk import RECHECK_BYTES, SHIFT, CallDesk
from fk_core.child.calls import DTYPES, Call, init_defaults, output_layout, passed_init
from fk_core.child.capturing import Forward
from fk_core.child.ceilings import Ceilings
from fk_core.child.held import HoldDesk
from fk_core.child.judge_timing import TimingDesk
from fk_core.child.loading import describe
from fk_core.child.module import FunctionModule
from fk_core.child.oracle import Oracle
from fk_core.child.planted import PlantedGroup
from fk_core.child.runner import Runner
from fk_core.child.standard import Standard
from fk_core.child.wire import Channel, Closed

_BUILD_ELEMENTS = 4 << 20
_TOLD = frozenset({"case_id", "why", "gating", "may_raise", "hidden", "dims", "leading", "dtype", "init", "unless"})
"""What the parent learns of a call of the plan."""


def main(channel: Channel, config: dict[str, Any]) -> None:
    """``config``: ``device`` (``cpu`` or ``cuda:N``), ``spin_s`` (see ``Channel``)."""
    torch.set_num_threads(1)
    device = torch.device(config["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    judge = Judge(device)
    channel.spin_s = config["spin_s"]
    while True:
        try:
            frame = channel.receive()
        except Closed:
            os._exit(0)
        try:
            answer = judge.handle(frame.body)
            fds = tuple(answer.pop("fds", ()))
        except BaseException as error:  # noqa: BLE001 - told to the parent, which blames the harness
            channel.reply(frame, {"exception": describe(error, "/nonexistent")}, error=True)
            continue
        channel.reply(frame, answer, fds=fds)
        for fd in fds:
            os.close(fd)
        judge.catch_up()


class Judge:
    """State of the job at hand, and what outlives it: ceilings of the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.ceilings = Ceilings(device)
        self.job: Job | None = None
        self._late: Exception | None = None
        """What went wrong behind the last answer."""
        if device.type == "cuda":
            self._warm()

    def _warm(self) -> None:
        """Compile the comparison once per dtype, so that no job waits for it."""
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            got = torch.ones(2, 64, dtype=dtype, device=self.device)
            for generic in (True, False):
                compare.judge("warm", got, got.double(), got.double(), compare.Rule(generic=generic))

    def _end(self) -> None:
        """Give back what the job held: its tensors, its shared memory, and what the allocator kept of it."""
        job, self.job = self.job, None
        if job is None:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        job.close()
        del job
        gc.collect()  # a job and its desk hold each other
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def catch_up(self) -> None:
        """Do what the last answer need not wait for, while the candidate works."""
        try:
            if self.job is not None:
                self.job.calls.file()
        except Exception as error:  # noqa: BLE001 - told with the next answer
            self._late = error

    def handle(self, body: dict[str, Any]) -> dict[str, Any]:
        late, self._late = self._late, None
        do = body["do"]
        if late is not None and do not in ("open", "close"):
            raise late
        if do == "open":
            self._end()
            self.job = Job(self.device, body, self.ceilings)
            return self.job.opened()
        if do == "close":
            self._end()
            return {}
        if do == "machine":
            return self.ceilings.as_dict()
        if do == "memory":
            free, total = torch.cuda.mem_get_info(self.device) if self.device.type == "cuda" else (0, 0)
            return {"free": free, "total": total}
        if self.job is None:
            raise RuntimeError(f"{do!r} outside a job")
        return self.job.handle(body)


class Job:
    """One validation: its plan of calls, modules, references."""

    def __init__(self, device: torch.device, body: dict[str, Any], ceilings: Ceilings) -> None:
        self.device, self.task = device, body["task"]
        self.cases = {case["id"]: case for case in body["cases"]}
        self.seed = int(body["seed"])
        self.oracle = Oracle(self.task["path"], self.task["sha256"])
        self.probes = inputs.plan(self.task, list(self.cases.values()), self.seed, cpu=device.type == "cpu")
        if body.get("brief"):
            # For a trusted twin: the cases themselves, which come first and refer to nothing.
            self.probes = [p for p in self.probes if p.case_id is not None and p.distribution == "normal"]
        self.providers = self._choose(body.get("provider", ""))
        self.planted = PlantedGroup() if body.get("plant") else None
        self.runner = Runner(device, self._build)
        self.modules: dict[str, dict[str, Any]] = {}
        self.states: dict[str, dict[str, Tensor]] = {}
        self.standard = Standard(self.task, self.oracle, self.states, self._baseline, self.baseline["name"])
        self.keys: list[str] = []
        cursor = Cursor()
        for probe in self.probes:
            self.keys.append(self._module(inputs.call_of(self.task, probe), cursor))
        self.probe_start = cursor.offset
        self.held = HoldDesk(self, body.get("brief", False))
        room = -(-max(self._room(i) for i in range(len(self.probes))) // ALIGN) * ALIGN
        self.arena: Arena = create_arena(self.probe_start + max(2 * (SHIFT + room), self.held.room()), device)
        # The baseline takes its weights from memory that the candidate can't reach.
        self.private: Arena = create_arena(max(self.probe_start, 1), device)
        for key, recipe in self.modules.items():
            for name, place in recipe["state"].items():
                for arena in (self.arena, self.private):
                    tensor = arena.tensor(place["at"], tuple(place["shape"]), DTYPES[place["dtype"]])
                    tensor.copy_(self.states[key][name])
        self.runner.arenas["main"] = self.private
        self.rng = random.Random(self.seed ^ 0x5EED)
        self.calls = CallDesk(self, room)
        self.weights: dict[str, Any] = {}
        self.timing = TimingDesk(self, ceilings)

    def close(self) -> None:
        for case_id in list(self.timing.cases):
            self.timing.drop(case_id)
        self.arena.close()
        self.private.close()

    def _choose(self, name: str) -> dict[tuple[str, str], Provider]:
        """The baseline of each class and dtype: the named provider, or the first installed one that has the kernels."""
        forms: dict[tuple[str, str], set[str]] = {}
        for case in self.cases.values():
            forms.setdefault((case["entry"], case["dtype"]), set()).add(case["form"])
        chosen = {}
        order = [name] if name else ["torch_eager"] if self.device.type == "cpu" else self.task["baselines"]
        for (entry, dtype), needed in forms.items():
            able = [
                p
                for p in map(provider, order)
                if p.installed()
                and all(p.supports(self.task["name"], entry, form, dtype, self.device.type) for form in needed)
            ]
            if not able:
                raise BaselineUnusable(
                    f"none of {', '.join(order)} is installed and has {self.task['name']} {entry} in {dtype}"
                )
            chosen[entry, dtype] = able[0]
        return chosen

    @property
    def baseline(self) -> dict[str, str]:
        """Name, what it runs and version of the baselines, joined where cases of other dtypes have another one."""
        used = list(dict.fromkeys(self.providers.values()))
        return {
            "name": " and ".join(p.name for p in used),
            "what": "; ".join(p.what(self.task["name"]) for p in used),
            "version": ", ".join(p.installed() or "" for p in used),
        }

    def _build(
        self, entry: str, init: dict[str, Any], state: dict[str, Tensor], dtype: torch.dtype, device: torch.device
    ) -> Forward:
        full = {**init_defaults(self.task["entries"][entry]["init"]), **init}
        found = self.providers.get((entry, str(dtype).removeprefix("torch.")))
        if found is None:
            raise BaselineUnusable(f"no case has {entry} in {dtype}, so no baseline was chosen for it")
        forward = found.build(self.task["name"], entry, full, state, dtype, device)
        return FunctionModule(forward if self.planted is None else self.planted(forward), state)

    def key_of(self, call: Call) -> str:
        """Names the module that a call needs: class, dtype, init arguments, shapes of the weights."""
        passed = passed_init(self.task["entries"][call.entry]["init"], call.init)
        dtype = str(call.dtype).removeprefix("torch.")
        shapes = {n: list(s) for n, s in inputs.state_shapes(self.task, call).items()}
        return json.dumps([call.entry, dtype, passed, shapes], sort_keys=True)

    def _module(self, call: Call, cursor: Cursor) -> str:
        """Note the module that a call needs, draw its weights once, and give its key."""
        key = self.key_of(call)
        if key not in self.modules:
            passed = passed_init(self.task["entries"][call.entry]["init"], call.init)
            dtype = str(call.dtype).removeprefix("torch.")
            seed = random.Random(f"{self.seed}/{key}").getrandbits(63)
            state = inputs.state_of(self.task, call, seed, self.device)
            places = {
                name: {
                    "at": cursor.take(tensor.numel() * tensor.element_size()),
                    "shape": list(tensor.shape),
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "bytes": tensor.numel() * tensor.element_size(),
                }
                for name, tensor in state.items()
            }
            self.modules[key] = {"key": key, "entry": call.entry, "init": passed, "dtype": dtype, "state": places}
            self.states[key] = state
        return key

    def _room(self, index: int) -> int:
        probe = self.probes[index]
        call = inputs.call_of(self.task, probe)
        size = sum(map(prod, inputs.buffer_shapes(call, probe).values())) * call.dtype.itemsize
        size += sum(prod(s) * d.itemsize for s, d in output_layout(self.task, call).values())
        return size + RECHECK_BYTES * 2 + 4096

    def opened(self) -> dict[str, Any]:
        """What the parent and the candidate need to begin; the arena's descriptor comes along."""
        return {
            "modules": list(self.modules.values()),
            "keys": self.keys,
            "probes": [{k: v for k, v in asdict(p).items() if k in _TOLD} for p in self.probes],
            "arena": {"size": self.arena.size},
            "holds": self.held.told(),
            "builds": self._builds() if self.device.type == "cuda" else [],
            "baseline": self.baseline,
            "fds": [self.arena.export()],
        }

    def _builds(self) -> list[dict[str, Any]]:
        """Shapes of every call, module by module and form by form, so that kernels can be compiled ahead of time.

        ``case``: whether a case is among them; ``calls``: for each of the inputs, the numbers of the calls on them.
        """
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for number, (key, probe) in enumerate(zip(self.keys, self.probes, strict=True)):
            call = inputs.call_of(self.task, probe)
            recipe = self.modules[key]
            row = found.setdefault(
                (key, call.form),
                {
                    "key": key,
                    "form": call.form,
                    "case": False,
                    "entry": recipe["entry"],
                    "init": recipe["init"],
                    "dtype": recipe["dtype"],
                    "state": {name: place["shape"] for name, place in recipe["state"].items()},
                    "inputs": [],
                    "calls": [],
                },
            )
            row["case"] = row["case"] or probe.case_id is not None
            shapes = [_small(call.shapes[name]) for name in call.arguments]
            if shapes not in row["inputs"]:
                row["inputs"].append(shapes)
                row["calls"].append([])
            row["calls"][row["inputs"].index(shapes)].append(number)
        return list(found.values())

    def handle(self, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.file()
        do = body["do"]
        if do == "lay":
            if body["skip"] is not None:
                self.calls.skip(body["skip"])
            return self._settled({"laid": self.calls.lay_free(body["lay"])})
        if do == "take":
            self.calls.take(body["i"], body["returned"], body["outputs"], body["aliases"], body["earlier"])
            return self._settled(self.calls.waiting())
        if do == "judge":
            return {"told": self.calls.judge_some(body["most"])} | self.calls.waiting()
        if do == "ahead":
            ahead, most = self.calls.ahead, body["most"]
            return {"more": ahead.answers(most) if body["answers"] else ahead.inputs(most, frozenset(body["leave"]))}
        if do == "hold":
            return self.held.lay(body["number"], body["calls"])
        if do == "judge_hold":
            return self.held.judge(body["shared"])
        if do == "state":
            return self.state_places(body["key"])
        if do == "judge_state":
            return self.judge_state(body["key"], body["copied"])
        if do == "flags":
            return {"flags": self.calls.flags}
        if do == "prepare":
            return self.prepare_baseline(body["key"])
        return self.timing.handle(body)

    def _settled(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, when all that was written or copied for it is there."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return answer

    def _baseline(self, key: str) -> Forward:
        self.prepare_baseline(key)
        return self.runner.modules[key][1]

    def prepare_baseline(self, key: str) -> dict[str, Any]:
        if key not in self.runner.modules:
            self.runner.do_make(self.modules[key], [])
        return {}

    # -- weights ---------------------------------------------------------------------------------------------------

    def state_places(self, key: str) -> dict[str, Any]:
        cursor = Cursor(self.probe_start)
        places = {n: {**p, "at": cursor.take(p["bytes"])} for n, p in self.modules[key]["state"].items()}
        if cursor.offset > self.arena.size:
            raise RuntimeError("the arena is too small for the weights")
        for place in places.values():
            self.arena.tensor(place["at"], (place["bytes"],), torch.uint8).fill_(0xFF)
        self.weights = places
        return self._settled({"places": places})

    def judge_state(self, key: str, copied: list[str]) -> dict[str, Any]:
        """Whether weights and buffers still have every bit."""
        for name, place in self.weights.items():
            if name not in copied:
                return {"ok": False, "note": f"weight {name} is gone from the module"}
            found = compare.judge_unchanged(
                name,
                self.arena.tensor(place["at"], tuple(place["shape"]), DTYPES[place["dtype"]]),
                self.states[key][name],
            )
            if not found.ok:
                return {"ok": False, "note": found.note, "judgement": found.as_dict()}
        return {"ok": True}


def _small(shape: tuple[int, ...]) -> list[int]:
    """A large shape with fewer rows, as many in terms of 16: Triton compiles the same, and torch ops stay cheap."""
    if prod(shape) <= _BUILD_ELEMENTS or len(shape) < 2:
        return list(shape)
    return [64 if shape[0] % 16 == 0 else 65, *shape[1:]]
