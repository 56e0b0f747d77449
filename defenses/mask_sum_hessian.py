"""Defense `mask-sum-hessian`: clients overwrite the hessian sums in their trees with 1."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedtrees.core.channel import Change, Removal
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.deployment import Deployed
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message, Reveal, Trait, exempting
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.shared_trees import ClientTrees


@register.defense("mask-sum-hessian")
@dataclass(frozen=True)
class MaskSumHessian(Defense):
    """Overwrite ``sum_hessian`` with 1 in every tree a client sends, as NVFlare does.

    This is ``mask_sum_hessian`` of NVFlare's tree-based XGBoost executor, which was added as a
    defense against Di Gennaro et al. (2025). Like NVFlare, it does not change leaf values,
    ``base_weights`` and ``loss_changes``. Predictions do not change.

    The claim is structural and weak. The weights and the gain of a split give two linear equations
    for the hessian sums of its two children. An adversary that knows lambda and the learning rate
    can solve them, unless two leaves have equal weights (see `docs/`).
    """

    acts_through = frozenset({"outgoing"})
    guarantee = Structural()
    deployed: ClassVar[Mapping[str, Deployed]] = {
        "nvflare": Deployed("nothing: FedXGBTreeExecutor always does it")
    }
    at = frozenset({"client"})
    protects = frozenset({Reveal.COUNTS})
    guards = (ClientTrees,)
    exempts = exempting({Trait.NETWORK: "a network over the trees has no sums of hessians"})

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that the hessian sums are replaced by the constant 1."""
        return {(ClientTrees, "sum_hessian"): Removal(1.0)}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Replace the hessian sums, if the message contains any."""
        assert isinstance(message, ClientTrees)
        # Another defense, for example `split-only`, has removed the sums already.
        if message.sum_hessian is None:
            return message
        return replace(message, sum_hessian=np.ones_like(message.sum_hessian))
