"""The corpus of candidates with the verdict that each must get, from its two index files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
TASK_OF = {"RMSNorm": "rms_norm", "SiluAndMul": "silu_and_mul", "Softmax": "softmax"}
_COMPILERS = ("load_inline(", "torch.compile(")
_SLOW = ("while True:", "time.sleep(100000)", "time.sleep(120)", "range(8192)")


@dataclass(frozen=True)
class Entry:
    """One candidate file; ``expect`` is ``reject``, ``reject_or_no_gain`` or ``accept``."""

    path: Path
    operator: str
    expect: str
    kind: str
    needs_gpu: bool

    @property
    def task(self) -> str:
        return TASK_OF[self.operator]

    @property
    def slow(self) -> bool:
        return self.compiles or any(word in self.text for word in _SLOW)

    @property
    def compiles(self) -> bool:
        return any(word in self.text for word in _COMPILERS)

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def header(self) -> dict[str, str]:
        """The leading comment, field by field."""
        found: dict[str, str] = {}
        for line in self.text.splitlines():
            if not line.startswith("#"):
                break
            name, colon, value = line.lstrip("# ").partition(": ")
            if colon and name in ("operator", "kind", "expect", "needs_gpu", "danger", "notes"):
                found[name] = value
        return found

    @property
    def neutral_source(self) -> str:
        """The file without its leading comment, which gives the verdict away."""
        lines = self.text.splitlines(keepends=True)
        first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        return "".join(lines[first:])


def entries() -> list[Entry]:
    found = []
    for folder in ("hacks", "honest"):
        rows = (CORPUS / folder / "INDEX.tsv").read_text(encoding="utf-8").splitlines()[1:]
        for row in rows:
            file, operator, expect, kind, needs_gpu = row.split("\t")
            found.append(Entry(CORPUS / folder / file, operator, expect, kind, needs_gpu == "1"))
    return found
