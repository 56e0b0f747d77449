"""`local-ensembles`: every client boosts a model of its own, and all get all of them."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.core.model import Model
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.messages.packing import join, unpack
from fedtrees.messages.shared_trees import ClientModels, ClientTrees, GrowRequest
from fedtrees.protocols.horizontal.tree_sharing import (
    TreeSharingProtocol,
    TreeSharingServer,
    no_tree,
)
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.intercept import start_margin


class EnsembleServer(TreeSharingServer):
    """The server: collects the clients' models once and hands them to all."""

    def train(self, net: Network) -> Model:
        """Collect and broadcast."""
        return self.averaged(self.shared(net))

    def shared(self, net: Network) -> ClientModels:
        """Collect the models, and return them as everybody is told them."""
        why = "the model each client boosted on its own rows"
        replies = net.ask("client", GrowRequest(0), why=why)
        owners = [i for i, part in enumerate(replies) if len(part.sizes)]  # type: ignore[attr-defined]
        for i in owners:
            self.keep(replies[i])  # type: ignore[arg-type]
        if not owners:
            raise DataError(no_tree(self.params.name))
        message = ClientModels(
            0,
            **join(self.parts),
            base_score=np.stack([p.base_score for p in self.parts]),
            owner=np.array(owners, dtype=np.int32),
            trees=np.array([len(p.sizes) for p in self.parts], dtype=np.int64),
        )
        sent = net.tell("client", message, why="everybody's models: the aggregated ensemble")
        assert isinstance(sent, ClientModels)
        return sent

    def averaged(self, models: ClientModels) -> Forest:
        """Return one model whose margin is the mean of the models' margins."""
        share = np.float32(1 / len(models.owner))
        p = self.params
        trees = unpack(models, p.learning_rate, p.reg_lambda, p.reg_alpha)
        starts = [start_margin(self.objective, score) for score in models.base_score]
        scaled = tuple(replace(t, value=t.value * share) for t in trees)
        return Forest(scaled, np.mean(starts, axis=0, dtype=np.float64), self.objective)


@register.protocol("local-ensembles")
@dataclass(frozen=True, kw_only=True)
class LocalEnsembles(TreeSharingProtocol):
    """The first phase of FedXGBllr (Ma et al. 2023): everybody's own model, shared once with all.

    Each client boosts `trees` rounds on its own rows, from its own base score. As in Flower's
    baseline the models come with the number of the client. The second phase, a convolutional
    network over the trees' outputs that learns a learning rate for each, is `fedxgbllr`'s; here the
    released model gives all the same: its margin is the mean of the clients' margins. No rows are
    used for that, so what leaks from the trees is all there is.
    """

    says: ClassVar[tuple[type[Message], ...]] = (GrowRequest, ClientTrees, ClientModels)
    server: ClassVar[type[EnsembleServer]] = EnsembleServer

    @property
    def rounds_at_once(self) -> int:
        """Boosting rounds a client does before it shares."""
        return self.trees
