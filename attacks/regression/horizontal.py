"""Another client's rows, up to a rotation, from averaged weights."""

import numpy as np

from fedtrees.attacks.regression.reals import Reals, factor
from fedtrees.attacks.regression.vertical import number, reals
from fedtrees.core.view import View
from fedtrees.messages.fixed_point import Integers, integers, rounded
from fedtrees.messages.regression import (
    SIGMOID_BITS,
    SIGMOIDS,
    AverageWeights,
    CommonScales,
    design_of,
    gradient_of,
    stepped,
)


def common_scales(view: View) -> CommonScales | None:
    """Return how columns are standardised, None if that was not told."""
    return next((m for _, m in view.messages(CommonScales)), None)


def averages(view: View) -> list[AverageWeights]:
    """Return the averages that were told, by round."""
    return [m for _, m in view.messages(AverageWeights)]


def rotated_rows(view: View, rows: int, precise: bool) -> Reals:
    """Return L, shape (c, r), of the other client's standardised rows: ``X' = L Q``.

    ``g_{k+1} - g_k = X' X (W_{k+1} - W_k)`` (Li et al. 2022, Eq. 7), the gradient of the other
    being what is left of the average. The intercept is the last column.

    `view`: Of all clients but one.
    `rows`: Of the other client.
    """
    p, scales, told = view.parameters, common_scales(view), averages(view)
    assert scales is not None
    b, logistic = int(p["bits"]), (p["kind"] or "logistic") == "logistic"
    logistic = logistic and bool(view.schema.classes)
    own = []
    for held in view.own:
        values = np.column_stack([held.X.astype(np.float64), np.asarray(held.y, dtype=np.float64)])
        own.append(design_of(values, scales, b, p["intercept"]))
    current: Integers = integers(np.zeros(own[0][0].shape[1], dtype=np.int64))
    starts, gradients = [], []
    lr, alpha = (number(str(p[name]), precise) for name in ("lr", "alpha"))
    for message in told:
        mine = []
        for X, y in own:
            g = gradient_of(X, y, current, b, logistic)
            mine.append(stepped(current, g, 2 * b + SIGMOID_BITS, len(X), p["lr"], p["alpha"]))
        # what the others' step led to, in units of the average's last place
        total = integers(message.weights) * (len(own) + 1)
        theirs = total - (sum(mine[1:], mine[0]) << (message.bits - b) if message.bits >= b else 0)
        if message.bits < b:
            theirs = (total << (b - message.bits)) - sum(mine[1:], mine[0])
        places = max(b, message.bits)
        start, end = reals(current, b, precise), reals(theirs, places, precise)
        starts.append(start)
        gradients.append(((1 - lr * alpha) * start - end) * rows / lr)
        current = rounded(integers(message.weights), message.bits - b)
    slope = number(SIGMOIDS[1][1], precise) if logistic else 1
    W, G = np.stack(starts, axis=1), np.stack(gradients, axis=1)
    D, E = W[:, 1:] - W[:, :-1], (G[:, 1:] - G[:, :-1]) / slope
    return factor(D, E, E, min(rows, len(W)))
