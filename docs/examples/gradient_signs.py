"""A label-inference attack: the gradient of the log loss, p - y, is negative only if y is 1.

fedtrees plugin check docs/examples/plain_vertical.py docs/examples/gradient_signs.py
"""

from dataclasses import dataclass

import numpy as np

from fedtrees import Attack, Guess, Labels, register
from fedtrees.core.messages import message_type


@register.attack("gradient-signs")
@dataclass(frozen=True, kw_only=True)
class GradientSigns(Attack):
    """Infer the labels from the signs of the first gradients that a passive party receives."""

    def gradients(self, view):
        kind = message_type("Question")
        received = (
            [m for s, m in view.messages(kind) if s.sender not in view.principals] if kind else []
        )
        return next((m.gradients[:, 0] for m in received if m.gradients is not None), None)

    def inapplicable(self, view):
        return "no gradients of rows are seen" if self.gradients(view) is None else None

    def run(self, view, rng):
        gradients = self.gradients(view)
        if gradients is None or not view.local_data:
            return Guess.none("no gradients of rows are seen")
        positive = (gradients < 0).astype(np.int64)
        shares = np.column_stack([1 - positive, positive]).astype(float)
        return Guess((Labels(np.sort(view.local_data[0].ids), positive, shares),))
