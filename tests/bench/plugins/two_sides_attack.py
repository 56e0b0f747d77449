"""An attack on the protocol of `two_sides`."""

from dataclasses import dataclass

import numpy as np

from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Labels
from fedtrees.core.messages import message_type
from fedtrees.core.registry import register

PluginResiduals = message_type("PluginResiduals")


@register.attack("plugin-read-residuals")
@dataclass(frozen=True)
class ReadResiduals(Attack):
    """Rows of equal residuals have equal labels."""

    def inapplicable(self, view):
        seen = any(s.sender not in view.principals for s, _ in view.messages(PluginResiduals))
        return None if seen else "the principals are told no residuals"

    def run(self, view, rng):
        for _, told in view.messages(PluginResiduals):
            _, cluster = np.unique(told.values, return_inverse=True)
            sure = np.stack([told.values < 0, told.values > 0], axis=1).astype(float)
            return Guess((Labels(told.ids, cluster.astype(np.int64), sure),))
        return Guess.none("the principals are told no residuals")
