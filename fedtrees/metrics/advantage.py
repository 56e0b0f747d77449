"""A score's distance from the blind baseline, as a share of what was left to learn."""

from math import inf


def advantage(
    score: float | None, blind: float | None, *, best: float | None = 1.0, tolerance: float = 1e-12
) -> float | None:
    """Return ``(score - blind) / (best - blind)``.

    `score, blind`: Score of the attack and the best blind score of the same metric.
    `best`: Score of a perfect guess (`fedtrees.core.columns.Measure`). With best = 0 (an error) the
    formula is the same: it becomes the share of the blind error that is gone.

    Returns: 1 for a perfect guess, 0 for one as good as a blind one, negative for a worse one;
    never clipped. None where a score is missing, nothing is perfect, or the blind adversary is.
    """
    if score is None or blind is None or best is None or not tolerance < abs(best - blind) < inf:
        return None
    return (score - blind) / (best - blind) or 0.0  # never -0
