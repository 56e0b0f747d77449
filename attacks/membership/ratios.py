"""Likelihood ratios between models that were trained with a row and models that were not.

`lira` implements the online attack of Carlini et al. (2022), `rmia` the score of Zarifzadeh et al.
(2024). `ratio_weights` calibrates both to log-odds of membership, so that the attack can add them
to the posteriors of other tests.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedtrees.attacks.membership.references import References

Floats = NDArray[np.float64]

#: Weight of the mean variance over all rows, in reference models, when it is pooled with the
#: variance of a single row. A variance that is estimated from eight models has a relative error of
#: about one half.
SHRINK = 8.0
#: Reference models below which weights are not fitted.
_FEWEST = 4


def lira(logit: Floats, refs: References) -> Floats:
    """Return log-likelihood ratios of membership (Carlini et al. 2022, Algorithm 1, online).

    The logits of models with the row, and of models without it, are modelled as normal. Means are
    estimated per row. Variances are shrunk towards their mean over all rows.

    Parameters
    ----------
    logit : float64 array, shape (n,)
        Logits that the model under attack gives the true classes of the candidates.
    refs : References
        Logits of the reference models.

    Returns
    -------
    float64 array, shape (n,)
        In nats; greater means more likely a member.
    """
    # one normal distribution per row for models with it, another for models without it
    with_row, without = (_log_normal(logit, refs.logit, of) for of in (refs.member, ~refs.member))
    return with_row - without


def _log_normal(x: Floats, logit: Floats, models: NDArray[np.bool_]) -> Floats:
    n = models.sum(axis=0)
    mean = np.where(models, logit, 0).sum(axis=0) / n
    squares = np.where(models, (logit - mean) ** 2, 0).sum(axis=0)
    pooled = float(squares.sum() / max(n.sum() - len(x), 1)) + 1e-12
    variance = (squares + SHRINK * pooled) / (n - 1 + SHRINK)
    return np.asarray(-0.5 * (np.log(variance) + (x - mean) ** 2 / variance), dtype=np.float64)


def rmia(logit: Floats, refs: References) -> Floats:
    """Return the log of p(x | model) over its mean (Zarifzadeh et al. 2024, Eq. 4).

    The comparison with the ratios of other rows is omitted, because it does not change the order of
    the candidates. Errors of numeric targets are assumed to be normal.

    Parameters
    ----------
    logit : float64 array, shape (n,)
        Logits that the model under attack gives the true classes of the candidates.
    refs : References
        Logits of the reference models. The mean is over all of them.

    Returns
    -------
    float64 array, shape (n,)
        In nats; greater means more likely a member.
    """
    if refs.numbers:
        squared, squared_refs = (np.exp(-2 * z) for z in (logit, refs.logit))
        log_p, log_refs = (-s / (2 * squared_refs.mean()) for s in (squared, squared_refs))
    else:
        log_p, log_refs = (-np.logaddexp(0, -z) for z in (logit, refs.logit))
    mean = np.logaddexp.reduce(log_refs, axis=0) - np.log(len(log_refs))
    return np.asarray(log_p - mean, dtype=np.float64)


def ratio_weights(refs: References) -> dict[str, float]:
    """Return the log-odds of membership that a nat of `lira` and of `rmia` is worth.

    Reference models take the place of the model under attack in turn, because their members are
    known. A logistic regression on both ratios is fitted to them (Platt 1999).

    Returns
    -------
    dict of str to float
        By name of the test. RMIA has weight 1 and LiRA 0 if there are too few reference models.
    """
    models = len(refs.member)
    if models < _FEWEST:
        return {"lira": 0.0, "rmia": 1.0}
    scores, members = list[Floats](), list[NDArray[np.bool_]]()
    for k in range(0, models, max(2, models // 8 * 2)):
        # The complement of a reference model was trained on exactly the rows that it lacks.
        other_models = ~np.isin(np.arange(models), (k, k ^ 1))
        rest = replace(refs, member=refs.member[other_models], logit=refs.logit[other_models])
        logit = refs.logit[k]
        scores.append(np.stack([lira(logit, rest), rmia(logit, rest)], axis=1))
        members.append(refs.member[k])
    x, sign = np.concatenate(scores), np.where(np.concatenate(members), 1.0, -1.0)
    spread = np.maximum(x.std(axis=0), 1e-12)
    x = x / spread

    def loss(line: Floats) -> float:
        odds = sign * (line[0] + x @ line[1:])
        return float(np.logaddexp(0, -odds).sum() + (line[1:] ** 2).sum() / 2)

    slopes = minimize(loss, np.zeros(3)).x[1:] / spread
    return {"lira": float(slopes[0]), "rmia": float(slopes[1])}
