"""Advantage of an attack over the blind baseline, relative to a perfect guess."""

from math import inf


def advantage(
    score: float | None, blind: float | None, *, best: float | None = 1.0, tolerance: float = 1e-12
) -> float | None:
    """Return ``(score - blind) / (best - blind)``.

    Parameters
    ----------
    score : float or None
        Score of the attack.
    blind : float or None
        Blind baseline of the same score.
    best : float or None
        Score of a perfect guess (`fedtrees.core.results.Measure`). It is 0 for an error, so that
        the advantage is the share of the blind error that the attack removes.
    tolerance : float
        If the blind baseline is at most this far from `best`, the advantage is undefined.

    Returns
    -------
    advantage : float or None
        1 for a perfect guess, 0 for a guess as good as the baseline, negative for a worse one. None
        if a score is missing, `best` is None or infinite, or the baseline is perfect.

    Examples
    --------
    >>> advantage(0.75, 0.5)
    0.5
    >>> advantage(0.125, 0.5, best=0.0)
    0.75
    """
    if score is None or blind is None or best is None or not tolerance < abs(best - blind) < inf:
        return None
    return (score - blind) / (best - blind) or 0.0  # never -0
