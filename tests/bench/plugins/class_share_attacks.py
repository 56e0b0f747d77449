"""A blind attack that returns the claim of `class_share`, and an attack that reads a message."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import BaseScore

ClassShare = register.get("metric", "plugin-class-share").of


def own_share(view):
    """Return the share among the labels of the adversary, and 0.5 if it has no labels."""
    labels = [data.y for data in view.local_data if data.y is not None]
    return float(np.concatenate(labels).mean()) if labels else 0.5


@register.attack("plugin-own-share")
@dataclass(frozen=True)
class OwnShare(Attack):
    """Guess that the victims have the same share as the adversary."""

    blind: ClassVar[bool] = True
    claims = (ClassShare,)

    def run(self, view, rng):
        return Guess((ClassShare(own_share(view)),))


@register.attack("plugin-read-share")
@dataclass(frozen=True)
class ReadShare(Attack):
    """Compute the share from the base score, which is the mean of all labels as log-odds."""

    def inapplicable(self, view):
        return None if list(view.messages(BaseScore)) else "the adversary received no base score"

    def run(self, view, rng):
        for _, start in view.messages(BaseScore):
            sum_of_all_labels = view.n_rows / (1 + np.exp(-float(start.margin[0])))
            labels = [data.y for data in view.local_data if data.y is not None]
            sum_of_own_labels, n_own_labels = sum(y.sum() for y in labels), sum(map(len, labels))
            return Guess(
                (
                    ClassShare(
                        float(
                            (sum_of_all_labels - sum_of_own_labels) / (view.n_rows - n_own_labels)
                        )
                    ),
                )
            )
        return Guess.none("the adversary received no base score")
