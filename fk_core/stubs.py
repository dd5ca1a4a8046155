"""The candidate skeleton of a task: what exactly must be written, against which cases, tolerance and kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fk_core import formulas
from fk_core.catalog import passed_init, spread
from fk_core.child.baselines import base as baselines
from fk_core.domain import Domain, asked_for
from fk_core.errors import RequestError
from fk_core.records.listing import Stub, StubCase
from fk_core.records.task import SHORT_DTYPE, CaseSpec, Entry, TaskSpec
from fk_core.source_check import construction

MAX_CHARS = 7800
"""Of the stub as JSON: a client cuts longer answers, and an envelope comes around it."""

Measured = Mapping[str, tuple[float | None, float | None]]
"""Case id -> (floor, baseline) in microseconds, where this machine has measured them."""

GENERAL = [
    "Keep the class names, parameter names and parameter shapes: load_state_dict(strict=True) fills them.",
    "Launch on the current stream; no host synchronisation in forward. Importing the file only defines and compiles.",
    "Inputs not named as overwritable, parameters and buffers stay bit-identical.",
    "Arguments begin at multiples of 16 bytes; their last stride is 1. They may be parts of longer tensors: rows lie "
    "apart by any distance that keeps them as aligned as those of a contiguous tensor, up to 16 bytes, and [a, b, n] "
    "may be the slice [:, :b] of [a, c, n].",
]


def sizes(spec: TaskSpec) -> str:
    """Which sizes must be right."""
    said = []
    for name, (low, high, step) in spec.hidden.items():
        shown = [case.dims[name] for case in (*spec.cases, *spec.cpu_cases) if name in case.dims]
        said.append(
            f"{name} {min([low, *shown])} to {max([high, *shown])}" + (f" in steps of {step}" if step > 1 else "")
        )
    ranges = [
        f"{argument} {low:g} to {high:g}"
        for arguments in spec.init_ranges.values()
        for argument, (low, high) in arguments.items()
    ]
    return (
        f"All these must be right, not only those of the cases: {', '.join(said + ranges)}; unless a literal SUPPORTS "
        f"at the top level says otherwise.{_rows(spec)}"
    )


def _rows(spec: TaskSpec) -> str:
    """What a declared range of rows has to cover, of all widths and, as an example, of the first one."""
    varying = asked_for(spec)
    if not varying:
        return ""
    first = {name: size for name, size in spec.cases[0].dims.items() if name not in varying}
    one = Domain({name: frozenset({size}) for name, size in first.items()}, {}, None)
    named = " and ".join(f"{name}=[{size}]" for name, size in first.items())
    said = [f"{_span(varying)} for all widths"] + ([f"{_span(asked_for(spec, one))} for {named}"] if named else [])
    return f" Its range of {' and '.join(varying)} has to cover what models ask for: {', '.join(said)}."


def _span(ranges: Mapping[str, tuple[int, int]]) -> str:
    return " and ".join(f"{least} to {most}" for least, most in ranges.values())


CASE = (
    "A case is one call as a model makes it: operator/model/tpN/workload/dtype/shape, tpN if split over N GPUs; a "
    "suffix such as +res names the form of the call where there are several."
)


def words(device: str) -> list[str]:
    """What the words of a listing mean, for a device as in :func:`render`."""
    return [
        f"{CASE} The number of cases is for {_named(device)}, which is what is here; CPUs and GPUs have sets of their "
        "own. `fk stub OP` shows them.",
        "An entry is a class that a candidate defines, under this very name. The first baseline that is installed is "
        "the kernel to beat; on a CPU that is torch_eager. Level 1 are single operators.",
    ]


def render(spec: TaskSpec, device: str, *, dtype: str = "", measured: Measured | None = None) -> Stub:
    """The stub of a task for a device (``cpu``, or anything else for a GPU), within what one answer may hold.

    ``dtype`` (a torch name or fp32, bf16, fp16) keeps the cases of that dtype only. Raises ``RequestError`` for one
    that the task does not have.
    """
    cases = _of_dtype(spec, spec.case_set(device), dtype)
    measured = measured or {}
    shown = list(cases)
    while True:
        stub = Stub(
            op=spec.name,
            source=render_source(spec),
            contract=[line for entry in spec.entries.values() for line in entry.contract] + [*GENERAL, sizes(spec)],
            cases=[_stub_case(spec, case, measured) for case in shown],
            cases_total=len(cases),
            tolerance=_tolerance(spec),
            baselines=_baselines(spec, device),
            notes=[_count(spec, device, dtype, len(cases)), *_notes(spec, cases, shown, measured)],
            next_steps=[f"Fill in the stub, then have it judged: `fk validate {spec.name} FILE`"],
        )
        size = len(stub.model_dump_json())
        if size <= MAX_CHARS or len(shown) <= 1:
            return stub
        shown = spread(spec, cases, max(1, min(len(shown) - 1, len(shown) * MAX_CHARS // size)))


def render_source(spec: TaskSpec) -> str:
    """A candidate file that compiles, and binds every construction and call of the cases; ``forward`` raises."""
    blocks = [
        f'"""{spec.name}: {spec.summary}"""',
        "import torch\nimport torch.nn as nn\nfrom torch import Tensor",
        *(_class(spec, name, entry) for name, entry in spec.entries.items()),
    ]
    head, imports, *classes = blocks
    return f"{head}\n\n{imports}\n\n\n" + "\n\n\n".join(classes) + "\n"


def _class(spec: TaskSpec, name: str, entry: Entry) -> str:
    size_of = {str(dimension): argument for argument, dimension in spec.init_of[name].items()}
    lines = [f"class {name}(nn.Module):"]
    lines.append(f"    def __init__(self{_parameters(entry, 'init')}) -> None:")
    lines.append("        super().__init__()")
    lines += [f"        self.{parameter.name} = {parameter.name}" for parameter in entry.init]
    for state_name, tensor in entry.state.items():
        sides = ", ".join(re.sub(r"[A-Za-z_]\w*", lambda m: size_of.get(m[0], m[0]), side) for side in tensor.shape)
        lines.append(f"        self.{state_name} = nn.Parameter(torch.empty({sides}), requires_grad=False)")
    returns = (
        "Tensor" if all(len(form.outputs) == 1 for form in entry.forms.values()) else "Tensor | tuple[Tensor, ...]"
    )
    lines += ["", f"    def forward(self{_parameters(entry, 'forward')}) -> {returns}:"]
    doc = []
    for form in entry.forms.values():
        answer = ", ".join(f"{output}[{', '.join(value.shape)}]" for output, value in form.outputs.items())
        given = ", ".join(f"{argument}[{', '.join(spec.tensors[argument].shape)}]" for argument in form.arguments)
        doc.append(f"forward({given}) -> {answer or 'None'}")
        if form.leading:
            only = ", ".join(f"{name}={value!r}" for name, value in form.leading_init.items())
            doc.append(f"    {form.leading} may be one to three dimensions" + (f" where {only}" if only else ""))
        doc += [
            f"    {name} {'is updated in place' if word == 'must' else 'may be overwritten'}"
            for name, word in form.mutates.items()
        ]
    if len(doc) == 1:
        lines.append(f'        """{doc[0]}"""')
    else:
        lines += [f'        """{doc[0]}', *(f"        {line}" for line in doc[1:]), '        """']
    lines.append(f'        raise NotImplementedError("write {spec.name} here")')
    return "\n".join(lines)


def _parameters(entry: Entry, which: str) -> str:
    parts = []
    for parameter in entry.init if which == "init" else entry.forward:
        default = f" = {parameter.default!r}" if parameter.has_default else ""
        parts.append(f", {parameter.name}: {parameter.annotation}{default}")
    return "".join(parts)


def _stub_case(spec: TaskSpec, case: CaseSpec, measured: Measured) -> StubCase:
    floor_us, baseline_us = measured.get(case.id, (None, None))
    return StubCase(
        id=case.id, call=render_call(spec, case), calls=case.calls, floor_us=floor_us, baseline_us=baseline_us
    )


def render_call(spec: TaskSpec, case: CaseSpec) -> str:
    """``RMSNorm(hidden_size=4096, eps=1e-05)(x, residual)  # x, residual: bf16[512, 4096]``."""
    arguments = spec.entries[case.entry].forms[case.form].arguments
    shapes: dict[str, list[str]] = {}
    for argument in arguments:
        sides = ", ".join(str(formulas.evaluate(side, case.dims)) for side in spec.tensors[argument].shape)
        shapes.setdefault(f"{SHORT_DTYPE[case.dtype]}[{sides}]", []).append(argument)
    told = "; ".join(f"{', '.join(names)}: {shape}" for shape, names in shapes.items())
    return f"{construction(spec, case)}({', '.join(arguments)})  # {told}"


def _tolerance(spec: TaskSpec) -> str:
    limit, u = spec.tolerance.limit, spec.tolerance.u
    power = f"2^{u.hex().split('p')[1]}" if u.hex().startswith("0x1.0000000000000p") else repr(u)
    return (
        f"every element: abs(c - ref) <= {limit:g} * (half an ulp of the output + {power} * mag), ref in fp64, mag the "
        "size that rounding errors scale with; also the rms error and the scale of each row; secret seeds and sizes, "
        f"values drawn {', '.join(spec.distributions)}"
    )


def _baselines(spec: TaskSpec, device: str) -> list[str]:
    lines = []
    names = ["torch_eager"] if device == "cpu" else spec.baselines
    for name in names:
        provider = baselines.provider(name)
        version = provider.installed()
        state = f"{version}, " if version else "not installed here, "
        lines.append(f"{name} ({state}{provider.what(spec.name)})")
    return lines


def _count(spec: TaskSpec, device: str, dtype: str, here: int) -> str:
    other = "cuda" if device == "cpu" else "cpu"
    all_here, all_there = spec.case_set(device), spec.case_set(other)
    if dtype:
        told = (
            f"These {here} are those of {dtype} among the {len(all_here)} that are judged on {_named(device)}; on "
            f"{_named(other)} {len(_of(all_there, dtype))} of {len(all_there)} are."
        )
    else:
        told = f"These {here} are judged on {_named(device)}; on {_named(other)} {len(all_there)} others are."
    return f"{CASE} {told} calls: how often one step of the workload makes it."


def _named(device: str) -> str:
    return "a CPU" if device == "cpu" else "a GPU"


def _notes(spec: TaskSpec, cases: Sequence[CaseSpec], shown: Sequence[CaseSpec], measured: Measured) -> list[str]:
    notes = []
    if len(shown) < len(cases):
        notes.append(f"{len(cases) - len(shown)} further cases are judged too; a report names them.")
    defaults = sorted(
        {
            parameter.name
            for case in cases
            for parameter in spec.entries[case.entry].init
            if parameter.name not in passed_init(spec, case)
        }
    )
    if defaults:
        notes.append(
            f"Where a case wants the default of {', '.join(defaults)}, it does not pass it: keep the defaults."
        )
    if not any(case.id in measured for case in shown):
        notes.append("No times yet: this machine has measured neither floor nor baseline of these cases.")
    return notes


def _of(cases: Sequence[CaseSpec], dtype: str) -> list[CaseSpec]:
    """Those of a dtype, by either of its names; all where none is given."""
    long_name = {short: name for name, short in SHORT_DTYPE.items()}.get(dtype, dtype)
    return [case for case in cases if not dtype or case.dtype == long_name]


def _of_dtype(spec: TaskSpec, cases: Sequence[CaseSpec], dtype: str) -> list[CaseSpec]:
    found = _of(cases, dtype)
    if dtype and not found:
        there = sorted({case.dtype for case in cases})
        raise RequestError(
            f"{spec.name} has no cases of dtype {dtype[:40]!r}",
            hint=f"Use {', '.join(there)}, or leave out `--dtype` of `fk stub`",
        )
    return found
