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
    """Infer that rows with equal residuals have equal labels."""

    def inapplicable(self, view):
        is_received = any(
            item.sender not in view.principals for item, _ in view.messages(PluginResiduals)
        )
        return None if is_received else "the adversary received no residuals"

    def run(self, view, rng):
        for _, residuals in view.messages(PluginResiduals):
            _, cluster = np.unique(residuals.values, return_inverse=True)
            is_certain = np.stack([residuals.values < 0, residuals.values > 0], axis=1).astype(
                float
            )
            return Guess((Labels(residuals.ids, cluster.astype(np.int64), is_certain),))
        return Guess.none("the adversary received no residuals")
