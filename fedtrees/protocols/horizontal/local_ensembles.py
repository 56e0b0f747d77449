"""Protocol `local-ensembles`: each client boosts a local model, all receive all models."""

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
    """The server. It requests the clients' models once and broadcasts them."""

    def train(self, net: Network) -> Model:
        """Request the models, broadcast them, and return their average."""
        return self.averaged(self.shared(net))

    def shared(self, net: Network) -> ClientModels:
        """Request the models, and return them as they were sent to all clients."""
        why = "the model each client boosted on its own rows"
        replies = net.ask("client", GrowRequest(0), why=why)
        # Clients without rows send no trees.
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
        """Return one forest whose margin is the mean of the models' margins."""
        # The mean of margins is the sum of all trees, scaled by the number of models.
        share = np.float32(1 / len(models.owner))
        p = self.params
        trees = unpack(models, p.learning_rate, p.reg_lambda, p.reg_alpha)
        starts = [start_margin(self.objective, score) for score in models.base_score]
        scaled = tuple(replace(t, value=t.value * share) for t in trees)
        return Forest(scaled, np.mean(starts, axis=0, dtype=np.float64), self.objective)


@register.protocol("local-ensembles")
@dataclass(frozen=True, kw_only=True)
class LocalEnsembles(TreeSharingProtocol):
    """The first phase of FedXGBllr (Ma et al. 2023): local models, sent once to all clients.

    Each client boosts `trees` rounds on its local rows, from its local base score. As in Flower's
    baseline, the broadcast models are labelled with the number of the client. The second phase is
    the protocol `fedxgbllr`: a convolutional network over the trees' outputs that learns a learning
    rate for each tree. Here all trees have the same weight: the margin of the released model is the
    mean of the clients' margins. This average uses no rows, so that only the trees reveal data.
    """

    says: ClassVar[tuple[type[Message], ...]] = (GrowRequest, ClientTrees, ClientModels)
    server: ClassVar[type[EnsembleServer]] = EnsembleServer

    @property
    def rounds_at_once(self) -> int:
        """Number of boosting rounds of a client before it sends its trees."""
        return self.trees
