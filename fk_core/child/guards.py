"""The second line of defence inside the candidate's process: it names what was done, by whom, and what to do instead.

    stand_guard(candidate_file, scratch, forbidden=[...], policy=[...], allow=[...])   # before the file is imported
    ...                               # import, construct
    checkpoint("import")              # then calls
    checkpoint("calls")

A finding is a dict of ``kind``, ``what``, ``where``, ``instead`` and ``severity``: ``reject`` (tampering), ``policy``
(a production library that the caller did not allow) or ``warn`` (odd, and no reason to reject). Nobody
holds the guards but the audit hook, which can't be taken off: no frame leads to them. Code that owns its process can
still lie about all of this; what it cannot touch are the other processes, which decide.
"""

from __future__ import annotations

import json  # noqa: F401 - loaded so that the identity table covers it, like the ones below
import os
import statistics  # noqa: F401
import sys
from typing import Any

import torch
import torch.utils.benchmark  # noqa: F401  it must be there to be watched
import triton.testing  # noqa: F401

from fk_core.child import production
from fk_core.child.audit import Audit
from fk_core.child.bounds import MOST_FINDINGS
from fk_core.child.finding import POLICY, WARN, Finding, finding
from fk_core.child.identity import Table
from fk_core.child.origins import Origins
from fk_core.child.residue import Standing

_LEAVE = "leave the harness's own objects in the process alone; only define the class"
_MARKS = (bool, int, str, set, frozenset, tuple, dict, type(None))
_type, _getattribute, _audit, _append = type, object.__getattribute__, sys.audit, list.append
_Tensor, _strided = torch.Tensor, torch.strided
_base = torch._C.TensorBase
_storage, _numel, _offset, _element = _base.untyped_storage, _base.numel, _base.storage_offset, _base.element_size
_size, _stride, _is_conj, _is_neg = _base.size, _base.stride, _base.is_conj, _base.is_neg
_device, _layout = _base.device.__get__, _base.layout.__get__
_nbytes, _address = torch.UntypedStorage.nbytes, torch.UntypedStorage.data_ptr
_is_functional = torch._is_functional_tensor


CHECKPOINT = "fk_core.checkpoint"
"""The audit event that asks the guards; its argument is the list that their findings go to."""


_prepared: list[Table] = []


def prepare() -> None:
    """Take the table of functions before anybody waits for it: a forked process takes 30 to 70 ms to go through ten
    thousand functions.
    """
    _prepared[:] = [Table()]


def stand_guard(candidate_file: str, scratch: str, **more: Any) -> None:
    """Make :class:`Guards`, arm them, and keep no reference to them."""
    Guards(candidate_file, scratch, **more).arm()


def checkpoint(where: str) -> list[Finding]:
    """What the guards of this process have seen, all of it at each checkpoint; ``where`` names the moment.

    Call it only while no call of the candidate runs. After the first one, starting a thread or a program counts as done
    in ``forward``.
    """
    answer: list[Any] = []
    _audit(CHECKPOINT, where, answer)
    if len(answer) == 1 and isinstance(answer[0], Exception):
        raise answer[0]
    if len(answer) != 1 or _type(answer[0]) is not list:
        return [finding("harness_tamper", "the guards of this process do not answer any more", instead=_LEAVE)]
    found: list[Finding] = answer[0]
    return found


class Guards:
    """Watches one candidate file. Make and arm it before the file is imported; it cannot be taken off again."""

    __slots__ = ("_allowed", "_audit", "_loaded", "_origins", "_standing", "_table")

    def __init__(
        self,
        candidate_file: str,
        scratch: str,
        *,
        forbidden: list[str] | tuple[str, ...] = (),
        policy: list[str] | tuple[str, ...] = production.LIBRARIES,
        allow: list[str] | tuple[str, ...] = (),
    ) -> None:
        self._origins = Origins(os.path.abspath(candidate_file))
        self._audit = Audit(
            self._origins, scratch=scratch, forbidden=list(forbidden), policy=list(policy), allow=list(allow)
        )
        self._allowed = frozenset(allow)
        self._table: Table | None = None
        self._standing: Standing | None = None
        self._loaded: frozenset[str] = frozenset()

    def arm(self) -> None:
        """Remember what everything is like, then start to listen."""
        self._audit.listen(CHECKPOINT, self._answer)
        self._audit.arm()
        # Nobody finds it there who looks for what he has to change beside a function.
        self._table = Table(self._allowed, _prepared.pop() if _prepared else None)
        self._standing = Standing()
        self._loaded = frozenset(sys.modules)

    def _answer(self, event: str, args: tuple[Any, ...], frame: Any) -> None:
        where, answer = args
        # Anybody can raise the event: nothing of the asker's own is called in here.
        if frame.f_code is not checkpoint.__code__ or _type(where) is not str or _type(answer) is not list:
            return
        try:
            _append(answer, self.checkpoint(where))
        except Exception as fault:  # noqa: BLE001 - raised again by whoever asked
            _append(answer, fault)

    def checkpoint(self, where: str) -> list[Finding]:
        """What was seen until now, and what is otherwise than it was when the guards were armed."""
        if self._table is None or self._standing is None:
            raise RuntimeError("arm() must come before checkpoint()")
        seen = list(self._audit.findings)
        seen += self._table.compare(self._origins)
        seen += self._standing.compare(self._origins, self._audit.threads, at_rest=True)
        seen += self._libraries()
        self._audit.phase = "calls"
        return [{**entry, "where": entry["where"] or f"seen after {where}"} for entry in _cut(seen)]

    def _libraries(self) -> list[Finding]:
        """Production libraries that are loaded now and were not before, whoever asked for them."""
        new = {name.partition(".")[0] for name in set(sys.modules) - self._loaded}
        return [
            finding(
                "baseline_call",
                f"{name} was loaded",
                instead=f"write the kernel itself, or ask the caller to allow {name}",
                severity=POLICY,
            )
            for name in sorted(new & self._audit.policy)
        ]


def _cut(seen: list[Finding]) -> list[Finding]:
    """No more findings than an answer holds: those that reject first, then how many are left out, then warnings."""
    if len(seen) <= MOST_FINDINGS:
        return seen
    told = [entry for entry in seen if entry["severity"] != WARN][: MOST_FINDINGS - 1]
    left_out = f"{len(seen)} things were seen; {len(seen) - MOST_FINDINGS + 1} of them are left out"
    told.append(finding("findings", left_out, severity=WARN))
    return (told + [entry for entry in seen if entry["severity"] == WARN])[:MOST_FINDINGS]


def plain_tensor(obj: Any) -> str | None:
    """Why an output is no plain tensor with memory behind every element, or None if it is one.

    Looks through functions bound before the candidate was loaded and runs none of the object's own code.
    """
    if _type(obj) is not _Tensor:
        return f"it is a {_type(obj).__module__}.{_type(obj).__qualname__}, not a torch.Tensor"
    # torch.compile marks its outputs; anything that could be called is no such mark.
    attributes = [
        name
        for name, value in _getattribute(obj, "__dict__").items()
        if not (_type(name) is str and name.startswith("_dynamo_") and _type(value) in _MARKS)
    ]
    if attributes:
        return f"it carries attributes of its own: {', '.join(sorted(map(str, attributes)))[:120]}"
    if _layout(obj) is not _strided:
        return f"its layout is {_layout(obj)}, not strided"
    if _device(obj).type == "meta" or _is_functional(obj):
        return "it has no memory"
    if _is_conj(obj) or _is_neg(obj):
        return "it is a lazy conjugate or negative view"
    if not _numel(obj):
        return None
    sizes, strides = _size(obj), _stride(obj)
    last = _offset(obj) + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    needed = (last + 1) * _element(obj)
    storage = _storage(obj)
    if _nbytes(storage) < needed or _address(storage) == 0:
        return f"its storage has {_nbytes(storage)} bytes where {needed} are needed"
    return None
