"""A blind attack that gives the claim of `class_share`, and one that reads it off a message."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.core.attack import Attack
from fedtrees.core.guess import Claim, Guess
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import BaseScore

ClassShare = register.get("metric", "plugin-class-share").of


def own_share(view):
    """Return the share among the principals' own labels, a half without any."""
    labels = [held.y for held in view.own if held.y is not None]
    return float(np.concatenate(labels).mean()) if labels else 0.5


@register.attack("plugin-own-share")
@dataclass(frozen=True)
class OwnShare(Attack):
    """Guess that others are as we are."""

    blind: ClassVar[bool] = True
    gives: ClassVar[type[Claim] | None] = ClassShare

    def run(self, view, rng):
        return Guess((ClassShare(own_share(view)),))


@register.attack("plugin-read-share")
@dataclass(frozen=True)
class ReadShare(Attack):
    """Read the share off the start of every prediction, which is the label mean of all."""

    def inapplicable(self, view):
        return None if list(view.messages(BaseScore)) else "the principals see no base score"

    def run(self, view, rng):
        for _, start in view.messages(BaseScore):
            every = view.n_rows / (1 + np.exp(-float(start.margin[0])))
            labels = [held.y for held in view.own if held.y is not None]
            own, n = sum(y.sum() for y in labels), sum(map(len, labels))
            return Guess((ClassShare(float((every - own) / (view.n_rows - n))),))
        return Guess.none("the principals see no base score")
