"""A score's distance from the blind line, as a share of what was left to learn."""

from __future__ import annotations


def advantage(
    score: float | None, blind: float | None, *, best: float = 1.0, tolerance: float = 1e-12
) -> float | None:
    """Return ``(score - blind) / (best - blind)``.

    Parameters
    ----------
    score, blind : float or None
        Score of the attack and the best blind score of the same metric.
    best : float
        Score of a perfect guess (`fedtrees.metrics.metric.Score`). With best = 0 (an error) the
        formula is the same: it becomes the share of the blind error that is gone.

    Returns
    -------
    float or None
        1 for a perfect guess, 0 for one as good as a blind one, negative for a worse one; never
        clipped. None where a score is missing or the blind adversary is perfect already.
    """
    if score is None or blind is None or abs(best - blind) <= tolerance:
        return None
    return (score - blind) / (best - blind)
