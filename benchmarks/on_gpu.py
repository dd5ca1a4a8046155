"""All proof that needs a GPU, in one call that may be cut short and taken up again.

    python -m benchmarks.on_gpu --out FOLDER [--budget-s 550] [--parts e,a,b] [--libraries DIR] [--pack FILE] [--dry]

e  a plain Triton RMSNorm against the strongest installed baseline    d  the round trip of an agent
a  tests/gpu                                                          f  kill -9 at random instants
b  the corpus                                                         g  checks on what the others left
c  baselines against themselves, planted 3%                           h  the bias that is left on the shortest calls
l  honest files at every sandbox level, as root and as another user

Each part runs in a process of its own with a share of the time. Every step is on disk in FOLDER before the next one
begins; a later call with the same FOLDER goes on where this one ended. ``--libraries`` is a directory with production
kernel libraries (vLLM, Liger) that only parts c, d, e and h see. ``--pack`` keeps an archive of FOLDER up to date.
Exits with 1 if anything failed or the run was stopped. docs/gpu-runs.md has the commands.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from benchmarks.gpu_parts import record, summary
from benchmarks.gpu_parts.budget import Part, allowance, chosen

REPOSITORY = Path(__file__).resolve().parents[1]
GRACE_S = 10.0
"""A part is told to end so long before it is made to."""
ENDING_S = 5.0
KEEP_S = 15.0
"""So often the archive is brought up to date while a part runs."""


class Stopped(Exception):
    """This process was asked to end."""


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    out = options.out.absolute()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.budget_s
    stopped = False
    try:
        with _stoppable():
            parts = chosen(options.parts)
            for number, part in enumerate(parts):
                seconds = allowance(part, parts[number + 1 :], until - time.monotonic() - GRACE_S)
                if not seconds:
                    record.add(out, part.letter, "part", None, why="no time was left for it")
                    continue
                _run(part, seconds, out, options)
                _keep(out, options.pack)
    except (Stopped, KeyboardInterrupt):
        stopped = True
        print("stopped; what was found is in", out, flush=True)
    _keep(out, options.pack)
    print(summary.text(out), flush=True)
    return 1 if stopped or summary.failed(out) else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for what is found; the same again goes on there"
    )
    parser.add_argument("--budget-s", type=float, default=86400.0, help="stop in time; default: a day")
    parser.add_argument(
        "--parts", default="e,a,b,h,c,d,f,g", help="letters in order; f:120 gives f at most 120 s; default: %(default)s"
    )
    parser.add_argument("--libraries", default="", help="directory with vLLM, Liger and such, for parts c, d, e and h")
    parser.add_argument("--pack", type=Path, help="archive of --out that is kept up to date")
    parser.add_argument("--home", type=Path, default=Path("/var/tmp/fk-on-gpu"), help="journal and caches, kept")
    parser.add_argument("--dry", action="store_true", help="little of everything, on the CPU: shows that it runs")
    options = parser.parse_args(argv)
    try:
        chosen(options.parts)
    except ValueError as error:
        parser.error(str(error))
    return options


def _run(part: Part, seconds: float, out: Path, options: argparse.Namespace) -> None:
    """One part; its last word is how it ended."""
    print(f"== {part.letter} {part.name}: up to {seconds:.0f} s", flush=True)
    log = out / "logs" / f"{part.letter}-{time.strftime('%H%M%S')}.log"
    command = [sys.executable, "-m", f"benchmarks.gpu_parts.{part.name}", "--out", str(out)]
    command += ["--seconds", f"{seconds:.0f}", *(["--dry"] if options.dry else [])]
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=_environment(part, options), cwd=REPOSITORY,
            start_new_session=True,
        )  # fmt: skip
        code: int | None = None
        try:
            while code is None and time.monotonic() - began < seconds + GRACE_S:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(min(KEEP_S, seconds + GRACE_S))
                _keep(out, options.pack)
        except BaseException:
            record.add(out, part.letter, "part", None, why="stopped")
            raise
        finally:
            _end(process)
    took = round(time.monotonic() - began, 1)
    ok = code == 0 or (code == 1 and part.letter in "al")  # pytest's own word for tests that failed
    why = "" if ok else "ended after its time" if code is None else f"exit code {code}: {_tail(log)}"
    record.add(out, part.letter, "part", ok if code is not None else None, seconds=took, why=why)


def _environment(part: Part, options: argparse.Namespace) -> dict[str, str]:
    env = dict(os.environ)
    path = [str(REPOSITORY), *([options.libraries] if part.libraries and options.libraries else [])]
    path += [entry for entry in env.get("PYTHONPATH", "").split(":") if entry and entry not in path]
    home = options.home / "dry" if options.dry else options.home
    env |= {"PYTHONPATH": ":".join(path), "PYTHONUNBUFFERED": "1"}
    env |= {"FK_HOME": str(home / "home"), "FK_LOCK_DIR": str(home / "locks")}
    return env | ({"FK_DEVICE": "cpu"} if options.dry else {})


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and what it started; candidates end by themselves when their harness does."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-1500:]


def _keep(out: Path, archive: Path | None) -> None:
    (out / "summary.txt").write_text(summary.text(out) + "\n", encoding="utf-8")
    if archive is not None:
        record.pack(out, archive.absolute())


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
