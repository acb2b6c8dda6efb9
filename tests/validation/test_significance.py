"""The bounds on binomial tails are bounds, and close enough to decide with."""

from __future__ import annotations

import math

import pytest

from eagle3data.validation.significance import caught_share, is_above, is_below, log_tail


def exact_tail(successes: int, trials: int, rate: float) -> float:
    """P(X >= successes)."""
    return sum(
        math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k)
        for k in range(successes, trials + 1)
    )


@pytest.mark.parametrize(
    ("successes", "trials", "rate"), [(9, 10, 0.3), (60, 80, 0.5), (3, 5, 0.1)]
)
def test_the_bound_is_above_the_exact_tail(successes: int, trials: int, rate: float) -> None:
    exact = math.log(exact_tail(successes, trials, rate))
    bound = log_tail(successes, trials, rate)
    assert exact <= bound <= 0.5 * exact


def test_the_side_matters() -> None:
    assert is_above(60, 80, 0.5, -5)
    assert not is_below(60, 80, 0.5, -5)
    assert is_below(10, 80, 0.5, -5)
    assert not is_above(0, 0, 0.5, -5)


def test_share_of_bad_samples_that_would_have_been_met() -> None:
    assert caught_share(300, 300) == pytest.approx(1 / 300)
    assert caught_share(39, 40) == pytest.approx(1 / 40)
    assert caught_share(0, 40) == 1
    share = caught_share(300, 100_000)
    assert 1 - (1 - share) ** 300 == pytest.approx(0.95, abs=2e-3)


@pytest.mark.parametrize(("looked_at", "total"), [(3, 20), (10, 20), (17, 20)])
def test_that_share_is_the_smallest(looked_at: int, total: int) -> None:
    bad = round(caught_share(looked_at, total) * total)

    def missed(count: int) -> float:
        return math.comb(total - count, looked_at) / math.comb(total, looked_at)

    assert missed(bad) <= 0.05 < missed(bad - 1)
