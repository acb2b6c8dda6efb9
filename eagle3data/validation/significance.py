"""How surprising a count is: bounds on binomial tails, and paired comparisons made of them."""

from __future__ import annotations

import math

FALSE_ALARM = 1e-4
"""Chance that a clean data set is accused by any of the tests run on it, at most."""


def log_threshold(tests: int) -> float:
    """Log of the tail probability below which one of `tests` tests counts (Bonferroni)."""
    return math.log(FALSE_ALARM / max(tests, 1))


def log_tail(successes: int, trials: int, rate: float) -> float:
    """Chernoff's bound on the log of a binomial tail, on the side where `successes` lies.

    `log P(X >= k)` for k above the expected count, `log P(X <= k)` below it, at most
    `-n KL(k/n || rate)`; 0 for no trials.
    """
    if trials == 0:
        return 0.0
    rate = min(max(rate, 1e-9), 1 - 1e-9)
    share = successes / trials
    divergence = 0.0
    if share > 0:
        divergence += share * math.log(share / rate)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - rate))
    return -trials * divergence


def is_above(successes: int, trials: int, rate: float, threshold: float) -> bool:
    """Whether a count is above what `rate` explains, at a log threshold."""
    return successes > rate * trials and log_tail(successes, trials, rate) < threshold


def is_below(successes: int, trials: int, rate: float, threshold: float) -> bool:
    """Whether a count is below what `rate` explains, at a log threshold."""
    return successes < rate * trials and log_tail(successes, trials, rate) < threshold


def caught_share(looked_at: int, total: int, sure: float = 0.95) -> float:
    """Smallest share of bad samples of which at least one would have been looked at.

    Of a set with that share of bad samples, `looked_at` samples picked without regard to
    them hold a bad one with probability `sure`: the hypergeometric chance of none is below
    the rest.
    """
    if looked_at >= total:
        return 1 / max(total, 1)
    if looked_at <= 0:
        return 1.0
    few, many = 1, total - looked_at + 1  # so many bad samples can't all be missed
    while few < many:
        bad = (few + many) // 2
        if _log_chance_of_none(bad, looked_at, total) <= math.log(1 - sure):
            many = bad
        else:
            few = bad + 1
    return few / total


def _log_chance_of_none(bad: int, looked_at: int, total: int) -> float:
    """Log probability that `looked_at` of `total` samples hold none of `bad` ones."""
    if bad > total - looked_at:
        return -math.inf
    return (
        math.lgamma(total - bad + 1)
        - math.lgamma(total - bad - looked_at + 1)
        - math.lgamma(total + 1)
        + math.lgamma(total - looked_at + 1)
    )
