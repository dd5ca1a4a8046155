"""Statistics of a comparison: paired log ratios of ABBA rounds, clustered by layout, with a fixed-width stopping rule.

A round gives x = ln(baseline time) - ln(candidate time), so x > 0 means that the candidate is faster. Rounds that share
a layout share its bias, so the interval is taken over layouts. The rule stops on the width of the interval, never on
significance, so looking often does not bias the estimate. Yuen's trimmed mean: Yuen 1974, Biometrika 61(1).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Estimate:
    """A log ratio with the half-width of its 95% interval; None where there are too few layouts for one."""

    log_ratio: float
    half_width: float | None
    rounds: int
    layouts: int

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    def interval(self, floor: float = 0.0) -> tuple[float, float] | None:
        """The interval as ratios, widened in quadrature by the machine's own floor (a fraction)."""
        if self.half_width is None:
            return None
        h = math.hypot(self.half_width, floor)
        return math.exp(self.log_ratio - h), math.exp(self.log_ratio + h)


@cache
def student_t(degrees: float) -> float:
    """The 97.5% quantile of Student's t."""
    # Imported here: it takes half as long as all else that a server imports before it can answer.
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def trimmed(values: list[float], share: float) -> tuple[float, float, int]:
    """Trimmed mean, its standard error from the winsorised variance, and degrees of freedom."""
    ordered = sorted(values)
    n, g = len(ordered), int(share * len(ordered))
    kept = ordered[g : n - g]
    mean = sum(kept) / len(kept)
    if n - 2 * g < 2:
        return mean, math.inf, 0
    winsorised = [min(max(v, ordered[g]), ordered[n - g - 1]) for v in ordered]
    centre = sum(winsorised) / n
    variance = sum((v - centre) ** 2 for v in winsorised) / (n - 1)
    return mean, math.sqrt(variance) / ((1 - 2 * g / n) * math.sqrt(n)), n - 2 * g - 1


def estimate(rounds: list[tuple[int, float]], *, trim: float = 0.2) -> Estimate:
    """Combine (layout, log ratio) rounds. The centre is the trimmed mean of all rounds.

    The interval is the wider of two: Student over the layout means, which sees the layout bias, and the trimmed mean's
    own over the rounds, which sees what is left when there is no such bias.
    """
    values = [x for _, x in rounds]
    if not values:
        return Estimate(0.0, None, 0, 0)
    centre, error, degrees = trimmed(values, trim)
    groups: dict[int, list[float]] = {}
    for layout, x in rounds:
        groups.setdefault(layout, []).append(x)
    if len(groups) < 3 or degrees < 2:
        return Estimate(centre, None, len(values), len(groups))
    means = [sum(v) / len(v) for v in groups.values()]
    middle = sum(means) / len(means)
    spread = math.sqrt(sum((m - middle) ** 2 for m in means) / (len(means) - 1))
    by_layout = student_t(len(means) - 1) * spread / math.sqrt(len(means))
    return Estimate(centre, max(by_layout, student_t(degrees) * error), len(values), len(groups))


Round = tuple[list[float], list[float]]
"""Seconds of a call on the baseline's side and on the candidate's, turn by turn."""


def undisturbed(rounds: list[Round]) -> Estimate:
    """Compare the turns that were disturbed least: for wall times on a machine that others use, too.

    What disturbs a turn only ever makes it longer, and in a shared machine by more than most changes that are looked
    for. So the centre is the log ratio of the lowest tenths of all turns of either side; the interval is a bootstrap's
    over rounds.
    """
    if len(rounds) < 3:
        return Estimate(0.0 if not rounds else _lowest_ratio(rounds), None, len(rounds), len(rounds))
    centre, rng = _lowest_ratio(rounds), random.Random(len(rounds))
    again = sorted(_lowest_ratio(rng.choices(rounds, k=len(rounds))) for _ in range(_RESAMPLES))
    tail = int(0.025 * _RESAMPLES)
    half = max(centre - again[tail], again[-1 - tail] - centre)
    return Estimate(centre, half, len(rounds), len(rounds))


_RESAMPLES = 400
_LOWEST = 0.1


def lowest(rounds: list[Round], side: int) -> float:
    """The lowest tenth of the turns of one side, 0 the baseline's, 1 the candidate's."""
    values = sorted(value for turns in rounds for value in turns[side])
    return values[int(_LOWEST * len(values))]


def _lowest_ratio(rounds: list[Round]) -> float:
    return math.log(lowest(rounds, 0) / lowest(rounds, 1))


def combine(parts: list[Estimate]) -> Estimate:
    """Geometric mean over cases: the mean of the log ratios, variances added."""
    if not parts:
        return Estimate(0.0, None, 0, 0)
    n = len(parts)
    half = [p.half_width for p in parts]
    width = None if any(h is None for h in half) else math.sqrt(sum(h * h for h in half if h is not None)) / n
    return Estimate(
        sum(p.log_ratio for p in parts) / n, width, sum(p.rounds for p in parts), min(p.layouts for p in parts)
    )
