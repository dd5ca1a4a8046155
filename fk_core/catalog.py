"""``tasks/`` as values: which operators there are, what each says, and which of its cases a pattern selects."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock

import fk_core
from fk_core import formulas, task_rules, task_text
from fk_core.errors import TaskBroken, UnknownCase, UnknownTask
from fk_core.records.task import CaseSpec, TaskSpec

QUICK_CASES = 5
PATTERN_CHARACTERS = 2000
"""Of a choice of cases: matching takes time with the square of its length."""
_Stamp = tuple[int, int]


def default_roots() -> list[Path]:
    """``tasks/`` of the checkout this package stands in, else the tasks that the wheel carries."""
    package = Path(fk_core.__file__).resolve().parent
    checkout = package.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "tasks").is_dir():
        return [checkout / "tasks"]
    return [package / "data" / "tasks"]


class Catalog:
    """The task files under some roots, each ``L<level>/<name>.py``; read when asked for, never imported.

    A file that changed on disk is read again. Safe to use from several threads.
    """

    def __init__(self, roots: Sequence[Path] | None = None) -> None:
        self.roots = list(roots) if roots is not None else default_roots()
        self._lock = Lock()
        self._read: dict[Path, tuple[_Stamp, TaskSpec]] = {}

    def names(self) -> list[str]:
        """Names of all tasks, broken ones too."""
        return sorted(self._files())

    def get(self, name: str) -> TaskSpec:
        """The task of that name. Raises ``UnknownTask`` or ``TaskBroken``."""
        files = self._files()
        if name not in files:
            raise _unknown_task(name, sorted(files))
        path = files[name]
        try:
            status = path.stat()
        except OSError:
            raise _unknown_task(name, sorted(set(files) - {name})) from None
        stamp = (status.st_mtime_ns, status.st_size)
        with self._lock:
            known = self._read.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        spec = task_text.parse(path)
        task_rules.check(spec)
        with self._lock:
            self._read[path] = (stamp, spec)
        return spec

    def select(self, spec: TaskSpec, device: str, pattern: str = "default") -> list[CaseSpec]:
        """Cases of a task: ``default`` (all), ``quick`` (at most 5, spread), or comma-separated globs over their ids.

        ``device`` is ``cpu``, or anything else for a GPU. Order is the task's. Raises ``UnknownCase``, also
        for a pattern of more than ``PATTERN_CHARACTERS``.
        """
        if len(pattern) > PATTERN_CHARACTERS:
            raise UnknownCase(
                f"cases has {len(pattern)} characters; at most {PATTERN_CHARACTERS} are taken",
                hint="Name many ids at once with *, or leave out `--cases` of `fk validate` for all of them",
            )
        cases = spec.case_set(device)
        pattern = pattern.strip() or "default"
        if pattern == "default":
            return list(cases)
        if pattern == "quick":
            return spread(spec, cases, QUICK_CASES)
        globs = [glob.strip() for glob in pattern.split(",") if glob.strip()]
        chosen: set[str] = set()
        for glob in globs:
            # Tables leave the task's name out of the ids; both forms can be copied.
            hits = [c.id for c in cases if fnmatchcase(c.id, glob) or fnmatchcase(c.id, f"{spec.name}/{glob}")]
            if not hits:
                raise _unknown_case(spec, device, glob, [case.id for case in cases])
            chosen.update(hits)
        if not chosen:
            raise _unknown_case(spec, device, pattern, [case.id for case in cases])
        return [case for case in cases if case.id in chosen]

    def _files(self) -> dict[str, Path]:
        files: dict[str, Path] = {}
        for root in self.roots:
            for path in sorted(root.glob("L[1-4]/*.py")):
                if path.stem.startswith("_"):
                    continue
                if path.stem in files:
                    raise TaskBroken(
                        f"two task files are named {path.stem!r}: {files[path.stem]} and {path}",
                        hint="A task's name is its file's name and must be unique; rename one",
                    )
                files[path.stem] = path
        return files


def spread(spec: TaskSpec, cases: Sequence[CaseSpec], count: int) -> list[CaseSpec]:
    """At most ``count`` cases that differ as much as can be: in form, dtype, model, width, then in size."""
    if len(cases) <= count:
        return list(cases)
    by_size = sorted(cases, key=lambda case: elements(spec, case))
    chosen = [by_size[0], by_size[-1]][:count]
    while len(chosen) < count:
        rest = [case for case in by_size if case not in chosen]
        chosen.append(max(rest, key=lambda case: _novelty(spec, case, chosen)))
    return [case for case in cases if case in chosen]


def elements(spec: TaskSpec, case: CaseSpec) -> int:
    """Number of elements of the first tensor argument."""
    count = 1
    for side in spec.tensors[spec.entries[case.entry].forms[case.form].arguments[0]].shape:
        count *= formulas.evaluate(side, case.dims)
    return count


def passed_init(spec: TaskSpec, case: CaseSpec) -> dict[str, object]:
    """Keyword arguments that constructions pass: those that differ from the baseline's default."""
    parameters = {parameter.name: parameter for parameter in spec.entries[case.entry].init}
    return {
        name: value
        for name, value in case.init.items()
        if not (parameters[name].has_default and parameters[name].default == value)
    }


def _traits(case: CaseSpec) -> Mapping[str, object]:
    return {
        "form": (case.entry, case.form),
        "dtype": case.dtype,
        "model": case.model,
        "init": tuple(sorted((name, str(value)) for name, value in case.init.items())),
    }


def _novelty(spec: TaskSpec, case: CaseSpec, chosen: Sequence[CaseSpec]) -> tuple[int, float]:
    traits = _traits(case)
    new = sum(all(_traits(other)[key] != value for other in chosen) for key, value in traits.items())
    size = elements(spec, case)
    distance = min(max(size, elements(spec, other)) / min(size, elements(spec, other)) for other in chosen)
    return new, distance


def _unknown_task(name: str, known: list[str]) -> UnknownTask:
    shown = name if len(name) <= 60 else name[:57] + "..."
    key = name.lower().replace("-", "_")
    plain = {other.replace("_", ""): other for other in known}
    near = [other for other in known if key in other or other in key]
    near += [plain[hit] for hit in difflib.get_close_matches(key.replace("_", ""), plain, n=5, cutoff=0.5)]
    nearest = list(dict.fromkeys(near))[:5]
    if nearest:
        return UnknownTask(f"no operator {shown!r}; nearest: {', '.join(nearest)}", hint="`fk ops` lists all")
    listed = ", ".join(known[:20]) or "none at all"
    return UnknownTask(
        f"no operator {shown!r}, and none with a similar name", hint=f"There are: {listed}; `fk ops` lists all"
    )


def _unknown_case(spec: TaskSpec, device: str, glob: str, ids: list[str]) -> UnknownCase:
    kind = "on a CPU" if device == "cpu" else "on a GPU"
    shown = ids[:4]
    more = f" and {len(ids) - len(shown)} more" if len(ids) > len(shown) else ""
    return UnknownCase(
        f"no case of {spec.name} {kind} matches {glob[:120]!r}",
        hint=f"Use default, quick, or globs over ids such as {', '.join(shown)}{more}",
    )
