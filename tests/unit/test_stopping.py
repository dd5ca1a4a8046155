"""The statistics of a comparison, against another implementation and against simulated machines of known truth."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from fk_core import stopping
from fk_core.stopping import Estimate, combine, estimate, student_t, trimmed

LAYOUTS = 12
ROUND_NOISE = 0.003


def simulated(rng: random.Random, truth: float, bias_sd: float, *, rounds: int, layouts: int = LAYOUTS) -> Estimate:
    """Rounds over redrawn layouts: each layout has a bias of its own, each round its noise."""
    bias = [rng.gauss(0.0, bias_sd) for _ in range(layouts)]
    return estimate([(n % layouts, truth + bias[n % layouts] + rng.gauss(0.0, ROUND_NOISE)) for n in range(rounds)])


def covered(found: Estimate, truth: float) -> bool:
    assert found.half_width is not None
    return abs(found.log_ratio - truth) <= found.half_width


@pytest.mark.parametrize("n", [5, 8, 12, 13, 40])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.25])
def test_the_trimmed_mean_is_scipys(n: int, share: float) -> None:
    rng = random.Random(n)
    values = [rng.gauss(0.0, 1.0) ** 3 for _ in range(n)]
    mean, error, degrees = trimmed(values, share)
    assert mean == pytest.approx(stats.trim_mean(values, share), rel=1e-12)
    cut = int(share * n)
    winsorised = stats.mstats.winsorize(np.array(values), limits=(cut / n, cut / n))
    wanted = float(np.std(np.asarray(winsorised), ddof=1)) / ((1 - 2 * cut / n) * math.sqrt(n))
    assert error == pytest.approx(wanted, rel=1e-9)
    assert degrees == n - 2 * cut - 1


def test_without_trimming_it_is_the_plain_standard_error() -> None:
    values = [0.1, 0.4, -0.2, 0.9, 0.3, 0.35]
    mean, error, degrees = trimmed(values, 0.0)
    assert mean == pytest.approx(np.mean(values))
    assert error == pytest.approx(stats.sem(values))
    assert degrees == 5


def test_wild_rounds_do_not_move_the_centre() -> None:
    rng = random.Random(1)
    calm = [(n % LAYOUTS, rng.gauss(0.01, 0.001)) for n in range(24)]
    wild = [*calm[:22], (10, 3.0), (11, 2.0)]
    assert estimate(calm).log_ratio == pytest.approx(0.01, abs=0.001)
    assert estimate(wild).log_ratio == pytest.approx(0.01, abs=0.001)


@pytest.mark.parametrize("degrees", [1, 2, 5, 7, 11, 100])
def test_students_quantile(degrees: int) -> None:
    assert student_t(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-9)


@pytest.mark.parametrize("bias_sd", [0.0, 0.003, 0.005])
@pytest.mark.parametrize("rounds", [12, 16, 24, 48])
def test_the_interval_covers_the_truth(bias_sd: float, rounds: int) -> None:
    rng = random.Random(f"{bias_sd}/{rounds}")
    hits = sum(covered(simulated(rng, 0.01, bias_sd, rounds=rounds), 0.01) for _ in range(500))
    assert hits >= 450, f"{hits} of 500"


def test_an_interval_that_ignores_layouts_would_not_cover() -> None:
    """The fault that the clustering is there for: many rounds on few layouts look surer than they are."""
    rng = random.Random(7)
    hits = 0
    for _ in range(500):
        bias = [rng.gauss(0.0, 0.005) for _ in range(LAYOUTS)]
        values = [bias[n % LAYOUTS] + rng.gauss(0.0, ROUND_NOISE) for n in range(96)]
        mean, error, degrees = trimmed(values, 0.2)
        hits += abs(mean) <= student_t(degrees) * error
    assert hits < 400, f"{hits} of 500: the simulation has no layout bias to speak of"


@pytest.mark.parametrize("truth", [-0.03, 0.03])
@pytest.mark.parametrize("bias_sd", [0.003, 0.005])
def test_three_percent_has_its_sign(truth: float, bias_sd: float) -> None:
    rng = random.Random(f"{truth}/{bias_sd}")
    found = [simulated(rng, truth, bias_sd, rounds=16) for _ in range(200)]
    clear = [f for f in found if f.half_width is not None and abs(f.log_ratio) > f.half_width]
    assert len(clear) >= 198
    assert all(f.log_ratio * truth > 0 for f in clear)


@pytest.mark.parametrize("bias_sd", [0.003, 0.005])
def test_nothing_is_rarely_called_something(bias_sd: float) -> None:
    rng = random.Random(int(bias_sd * 1e4))
    found = [simulated(rng, 0.0, bias_sd, rounds=12) for _ in range(500)]
    wrong = sum(f.half_width is not None and abs(f.log_ratio) > max(0.01, f.half_width) for f in found)
    assert wrong <= 5, f"{wrong} of 500 differ from 1 by more than a percent"


def test_the_interval_agrees_with_a_bootstrap_over_layouts() -> None:
    rng = random.Random(3)
    bias = [rng.gauss(0.0, 0.004) for _ in range(LAYOUTS)]
    rounds = [(n % LAYOUTS, 0.02 + bias[n % LAYOUTS] + rng.gauss(0.0, 0.001)) for n in range(96)]
    found = estimate(rounds)
    groups = [[x for layout, x in rounds if layout == k] for k in range(LAYOUTS)]
    draws = []
    for _ in range(800):
        picked = [x for _ in range(LAYOUTS) for x in rng.choice(groups)]
        draws.append(stats.trim_mean(picked, 0.2))
    low, high = np.quantile(draws, [0.025, 0.975])
    assert found.half_width is not None
    # Student over twelve layouts is wider than a percentile bootstrap, which is known to be a little narrow.
    assert 0.8 < 2 * found.half_width / (high - low) < 1.8
    assert low - found.half_width / 2 < found.log_ratio < high + found.half_width / 2


def test_too_few_layouts_give_no_interval() -> None:
    assert estimate([]) == Estimate(0.0, None, 0, 0)
    two = estimate([(n % 2, 0.001 * n) for n in range(20)])
    assert (two.half_width, two.layouts, two.rounds) == (None, 2, 20)
    assert two.interval() is None
    assert estimate([(0, 0.1), (1, 0.1)]).half_width is None
    assert estimate([(n, 0.01 * n) for n in range(3)]).half_width is not None


def test_combining_is_the_geometric_mean() -> None:
    parts = [Estimate(math.log(2.0), 0.03, 12, 12), Estimate(math.log(0.5), 0.04, 16, 6), Estimate(0.0, 0.0, 8, 8)]
    total = combine(parts)
    assert total.ratio == pytest.approx(1.0)
    assert total.half_width == pytest.approx(0.05 / 3)
    assert (total.rounds, total.layouts) == (36, 6)
    assert combine([parts[0]]).half_width == pytest.approx(0.03)
    assert combine([parts[0], Estimate(0.0, None, 2, 2)]).half_width is None
    assert combine([]) == Estimate(0.0, None, 0, 0)


def test_combined_intervals_cover_the_truth() -> None:
    rng = random.Random(11)
    truths = [0.05, -0.01, 0.0, 0.02]
    mean, hits = sum(truths) / 4, 0
    for _ in range(300):
        hits += covered(combine([simulated(rng, t, 0.004, rounds=12) for t in truths]), mean)
    assert hits >= 270, f"{hits} of 300"


def test_the_floor_widens_in_quadrature() -> None:
    found = Estimate(math.log(1.1), 0.003, 12, 12)
    low, high = found.interval(0.004) or (0.0, 0.0)
    assert math.log(high / 1.1) == pytest.approx(0.005)
    assert math.log(1.1 / low) == pytest.approx(0.005)
    plain = found.interval()
    assert plain == pytest.approx((1.1 * math.exp(-0.003), 1.1 * math.exp(0.003)))
    assert stopping.estimate([(n, 0.0) for n in range(12)]).interval(0.01) == pytest.approx(
        (math.exp(-0.01), math.exp(0.01))
    )


# -- wall times on a shared machine ------------------------------------------------------------------------------------


def disturbed(rng: random.Random, truth: float, *, rounds: int = 13, noise: float = 0.02) -> list[stopping.Round]:
    """Two turns a side and round; half of all turns are up to twice as long as they should be."""

    def turn(us: float) -> float:
        return us * math.exp(abs(rng.gauss(0.0, noise))) * (1 + rng.random() * (rng.random() < 0.5))

    return [([turn(10.0) for _ in "ab"], [turn(10.0 * math.exp(-truth)) for _ in "ab"]) for _ in range(rounds)]


@pytest.mark.parametrize("truth", [0.0, -0.3, 0.5])
def test_disturbed_turns_do_not_move_it(truth: float) -> None:
    rng = random.Random(3)
    found = [stopping.undisturbed(disturbed(rng, truth)) for _ in range(100)]
    errors = sorted(abs(one.log_ratio - truth) for one in found)
    assert errors[50] < 0.03
    assert errors[95] < 0.15
    by_mean = sorted(
        abs(
            estimate([(n, math.log(sum(b) / sum(c))) for n, (b, c) in enumerate(disturbed(rng, truth))]).log_ratio
            - truth
        )
        for _ in range(100)
    )
    assert errors[50] < by_mean[50], "better than the mean ratio of rounds"
    assert sum(covered(one, truth) for one in found) >= 80


def test_one_side_disturbed_in_every_turn_shows() -> None:
    rng = random.Random(4)
    slow = [(b, [value * 1.5 for value in c]) for b, c in disturbed(rng, 0.0)]
    assert stopping.undisturbed(slow).log_ratio == pytest.approx(-math.log(1.5), abs=0.1)


@pytest.mark.parametrize(("rounds", "half"), [(0, None), (1, None), (2, None)])
def test_too_few_rounds_have_no_interval(rounds: int, half: float | None) -> None:
    assert stopping.undisturbed([([1.0, 1.1], [2.0, 2.1])] * rounds).half_width is half


def test_the_same_rounds_give_the_same_interval() -> None:
    rounds = disturbed(random.Random(5), 0.1)
    assert stopping.undisturbed(rounds) == stopping.undisturbed(rounds)
