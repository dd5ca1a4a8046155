"""What the parent waited for, in order, in one warm validation: `python -m benchmarks.timeline [--repeats 5]`.

Validates sources that were never seen, in this process, and shows the run of median length: one line for each row of
equal questions to one process, with when the first was asked, how long until the last was answered, and how much of
that the parent did nothing but wait. What both processes do at once stands in lines that overlap.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.roundtrip import source
from fk_core.child import wire
from fk_core.harness import Harness
from fk_core.hearing import Hearing
from fk_core.records.report import ValidateRequest


@dataclass
class Row:
    """Equal questions, one after the other."""

    who: int
    do: str
    asked: float
    answered: float = 0.0
    waited: float = 0.0
    count: int = 1


class Watch:
    """Notes every question that this process asks of any other, and every phase that a validation enters."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._open: dict[tuple[int, int], Row] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        post, answer, clock = wire.Channel.post, wire.Channel.answer, Hearing.clock
        watch = self

        def posted(channel: wire.Channel, body: dict[str, Any], **more: Any) -> tuple[int, int]:
            began = time.perf_counter()
            ticket = post(channel, body, **more)
            last = next((row for row in reversed(watch.rows) if row.who == id(channel)), None)
            if last is not None and last.do == body.get("do") and watch.rows[-1] is last:
                last.count += 1
                row = last
            else:
                row = Row(id(channel), str(body.get("do")), began)
                watch.rows.append(row)
            watch._open[ticket] = row
            return ticket

        def answered(channel: wire.Channel, nonce: int, seq: int, **more: Any) -> wire.Frame:
            began = time.perf_counter()
            frame = answer(channel, nonce, seq, **more)
            row = watch._open.pop((nonce, seq), None)
            if row is not None:
                row.answered = time.perf_counter()
                row.waited += row.answered - began
            return frame

        def phase(hearing: Hearing, name: str, *args: Any) -> Any:
            watch.rows.append(Row(0, name, time.perf_counter()))
            return clock(hearing, name, *args)

        wire.Channel.post, wire.Channel.answer, Hearing.clock = posted, answered, phase  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            wire.Channel.post, wire.Channel.answer, Hearing.clock = post, answer, clock  # type: ignore[method-assign]


def show(rows: list[Row], began: float, took: float) -> None:
    """The lines, in milliseconds since the validation began."""
    names: dict[int, str] = {0: ""}
    for row in rows:
        # The first process that is asked to open a job is the judge; of the others one is asked to load the candidate.
        if row.do in ("open", "load"):
            names.setdefault(row.who, "judge" if row.do == "open" else "candidate")
    print("   from  until waited")
    for row in rows:
        at = (row.asked - began) * 1e3
        if not row.who:
            print(f"{at:7.1f}               == {row.do}")
            continue
        end = (row.answered - began) * 1e3 if row.answered else float("nan")
        many = f" x {row.count}" if row.count > 1 else ""
        print(f"{at:7.1f} {end:6.1f} {row.waited * 1e3:6.1f}  {names.get(row.who, 'other')} {row.do}{many}")
    print(f"{took * 1e3:7.1f} in all")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", default="rms_norm/Llama-3.1-8B/*")
    options = parser.parse_args(argv)
    runs = []
    salt = int(time.time() * 1000) % 1_000_000_000
    with Harness() as harness:
        for number in range(max(1, options.repeats) + 1):
            watch = Watch()
            began = time.perf_counter()
            request = ValidateRequest(op="rms_norm", source=source(salt + number), cases=options.cases)
            with watch.on():
                report = harness.validate(request)
            took = time.perf_counter() - began
            print(f"{took:.3f} s  {report.outcome.value}", flush=True)
            if number:
                runs.append((took, began, watch.rows))
            time.sleep(0.5)
    middle = statistics.median_low(took for took, _, _ in runs)
    took, began, rows = next(run for run in runs if run[0] == middle)
    show(rows, began, took)


if __name__ == "__main__":
    main()
