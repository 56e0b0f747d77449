"""A score's distance from the blind line, as a share of what was left to learn."""

from __future__ import annotations

#: Metrics where less is better for the adversary; their best value is 0, of all others 1.
LOWER_IS_BETTER = frozenset(
    {"gower", "hamming", "count_error", "count1_error", "returned_wrong", "rmse", "log_loss"}
)


def best_value(metric: str) -> float:
    """Return the score of a perfect guess: 0 for errors and distances, 1 for shares."""
    return 0.0 if metric in LOWER_IS_BETTER else 1.0


def advantage(
    score: float | None, blind: float | None, *, best: float = 1.0, tolerance: float = 1e-12
) -> float | None:
    """Return ``(score - blind) / (best - blind)``.

    Parameters
    ----------
    score, blind : float or None
        Score of the attack and the best blind score of the same metric.
    best : float
        Score of a perfect guess, see `best_value`. With best = 0 (an error) the formula is the
        same: it becomes the share of the blind error that is gone.

    Returns
    -------
    float or None
        1 for a perfect guess, 0 for one as good as a blind one, negative for a worse one; never
        clipped. None where a score is missing or the blind adversary is perfect already.
    """
    if score is None or blind is None or abs(best - blind) <= tolerance:
        return None
    return (score - blind) / (best - blind)
