"""Recover another client's rows up to a rotation from averaged weights."""

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
    """Return the announced standardisation of the columns, None if there is none."""
    return next((m for _, m in view.messages(CommonScales)), None)


def averages(view: View) -> list[AverageWeights]:
    """Return the broadcast averages, one per round."""
    return [m for _, m in view.messages(AverageWeights)]


def rotated_rows(view: View, rows: int, precise: bool) -> Reals:
    """Return L, shape (c, r), with ``X' = L Q`` for the other client's standardised rows X.

    ``g_{k+1} - g_k = X' X (W_{k+1} - W_k)`` (Li et al. 2022, Eq. 7). The gradient of the other
    client is the remaining part of the average. The intercept is the last column.

    Parameters
    ----------
    view : View
        View of all clients except one.
    rows : int
        Number of rows of the other client.
    precise : bool
        Whether to use multiple-precision numbers.
    """
    p, scales, sent_averages = view.parameters, common_scales(view), averages(view)
    assert scales is not None
    b, logistic = int(p["bits"]), (p["kind"] or "logistic") == "logistic"
    logistic = logistic and bool(view.schema.classes)
    local_designs = []
    for local_data in view.own:
        values = np.column_stack(
            [local_data.X.astype(np.float64), np.asarray(local_data.y, dtype=np.float64)]
        )
        local_designs.append(design_of(values, scales, b, p["intercept"]))
    current: Integers = integers(np.zeros(local_designs[0][0].shape[1], dtype=np.int64))
    starts, gradients = [], []
    lr, alpha = (number(str(p[name]), precise) for name in ("lr", "alpha"))
    for message in sent_averages:
        local_steps = []
        for X, y in local_designs:
            g = gradient_of(X, y, current, b, logistic)
            local_steps.append(
                stepped(current, g, 2 * b + SIGMOID_BITS, len(X), p["lr"], p["alpha"])
            )
        # weights after the other client's step, in units of the average's last place
        # the adversary controls all clients except one
        total = integers(message.weights) * (len(local_designs) + 1)
        other_step = total - (
            sum(local_steps[1:], local_steps[0]) << (message.bits - b) if message.bits >= b else 0
        )
        if message.bits < b:
            other_step = (total << (b - message.bits)) - sum(local_steps[1:], local_steps[0])
        places = max(b, message.bits)
        start, end = reals(current, b, precise), reals(other_step, places, precise)
        starts.append(start)
        gradients.append(((1 - lr * alpha) * start - end) * rows / lr)
        current = rounded(integers(message.weights), message.bits - b)
    # a logistic regression has the factor of the linear Taylor term
    slope = number(SIGMOIDS[1][1], precise) if logistic else 1
    W, G = np.stack(starts, axis=1), np.stack(gradients, axis=1)
    # differences of rounds remove the constant term of the gradients
    D, E = W[:, 1:] - W[:, :-1], (G[:, 1:] - G[:, :-1]) / slope
    return factor(D, E, E, min(rows, len(W)))
