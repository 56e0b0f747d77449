"""Likelihood ratios: how a model differs on a row from models with and without it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedtrees.attacks.membership.references import References

#: Reference models that the mean variance over all rows counts for, beside a row's own: of eight
#: models a variance is known to half of itself.
SHRINK = 8.0


def lira(logit: NDArray[np.float64], refs: References) -> NDArray[np.float64]:
    """Return log-likelihood ratios, nats, shape (n,) (Carlini et al. 2022, Algorithm 1, online).

    Means are each row's own; variances are shrunk towards their mean over all rows.

    `logit`: float64 array, shape (n,). Of the model in question.
    """
    with_row, without = (_log_normal(logit, refs.logit, held) for held in (refs.held, ~refs.held))
    return with_row - without


def _log_normal(
    x: NDArray[np.float64], logit: NDArray[np.float64], of: NDArray[np.bool_]
) -> NDArray[np.float64]:
    n = of.sum(axis=0)
    mean = np.where(of, logit, 0).sum(axis=0) / n
    spread = np.where(of, (logit - mean) ** 2, 0).sum(axis=0)
    whole = float(spread.sum() / max(n.sum() - len(x), 1)) + 1e-12
    variance = (spread + SHRINK * whole) / (n - 1 + SHRINK)
    return np.asarray(-0.5 * (np.log(variance) + (x - mean) ** 2 / variance), dtype=np.float64)


def rmia(logit: NDArray[np.float64], refs: References) -> NDArray[np.float64]:
    """Return log of p(x | model) over its mean, shape (n,) (Zarifzadeh et al. 2024, Eq. 4).

    The ratio to other rows' ratios only calibrates it: the order is the same. Errors of numeric
    targets are taken as normal.
    """
    if refs.numbers:
        off = [np.exp(-2 * z) for z in (logit, refs.logit)]
        log_p, log_refs = (-squared / (2 * off[1].mean()) for squared in off)
    else:
        log_p, log_refs = (-np.logaddexp(0, -z) for z in (logit, refs.logit))
    mean = np.logaddexp.reduce(log_refs, axis=0) - np.log(len(log_refs))
    return np.asarray(log_p - mean, dtype=np.float64)


def weight_of(refs: References) -> float:
    """Return the log-odds of membership that a nat of `rmia` is worth (Platt 1999).

    Some references are taken for the model in question, one after another: whether a row is a
    member is known of these.
    """
    models = len(refs.held)
    if models < 4:  # without its complement none is left
        return 1.0
    score, member = list[NDArray[np.float64]](), list[NDArray[np.bool_]]()
    for k in range(0, models, max(2, models // 8 * 2)):
        others = ~np.isin(np.arange(models), (k, k ^ 1))  # its complement holds what it lacks
        rest = replace(refs, held=refs.held[others], logit=refs.logit[others])
        score.append(rmia(refs.logit[k], rest))
        member.append(refs.held[k])
    x, sign = np.concatenate(score), np.where(np.concatenate(member), 1.0, -1.0)
    spread = max(float(x.std()), 1e-12)
    x = x / spread

    def loss(line: NDArray[np.float64]) -> float:
        odds = sign * (line[0] + line[1] * x)
        return float(np.logaddexp(0, -odds).sum() + line[1] ** 2 / 2)

    return float(minimize(loss, np.zeros(2)).x[1]) / spread
