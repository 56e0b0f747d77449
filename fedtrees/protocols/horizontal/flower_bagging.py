"""Protocol `flower-bagging`: in each round every client grows trees on the global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedtrees.core.deployment import XGBOOST, Deployed
from fedtrees.core.errors import check_known
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.messages.shared_trees import ClientTrees, GrowRequest
from fedtrees.protocols.horizontal.tree_sharing import FlowerProtocol, TreeSharingServer
from fedtrees.trees.boosted.forest import Forest

ARRIVALS = ("client", "shuffled")


class BaggingServer(TreeSharingServer):
    """The server. It asks all clients at once and appends their trees in order of arrival."""

    params: FlowerBagging

    def train(self, net: Network) -> Forest:
        """Request, append and broadcast trees, round after round."""
        for round in range(self.params.trees):
            why = "trees each client grew on its own rows, on top of the global model"
            replies = net.ask("client", GrowRequest(round), why=why)
            for part in self.arrived(replies, round):
                self.keep(part)
            self.tell(net, "client", round, "the global model's new trees, in order of arrival")
        return self.released()

    def arrived(self, replies: list, round: int) -> list[ClientTrees]:  # type: ignore[type-arg]
        """Return the replies in the simulated order of arrival."""
        if self.params.arrival == "client":
            return replies
        # The order is simulated, because all clients run in one process.
        order = self.streams.rng("arrival", round).permutation(len(replies))
        return [replies[i] for i in order]


@register.protocol("flower-bagging")
@dataclass(frozen=True, kw_only=True)
class FlowerBagging(FlowerProtocol):
    """Bagging as in Flower's `FedXgbBagging` strategy and its XGBoost example.

    In each of `trees` rounds, every client boosts `local_trees` rounds on top of the global model
    and sends the new trees. The server appends them in order of arrival and broadcasts them. The
    model has the base score of the first client that arrived. The first trees of every client start
    from the client's base score. Clients receive an ordered list of trees without names. The server
    knows the sender of each tree.

    Flower sends the complete model in every round. Here only the new trees are sent, which reveals
    the same. Flower's server keeps only the first tree of each reply (except in the first round)
    and drops the rest if there are several local trees or one per class. Here all trees are kept.

    Parameters
    ----------
    arrival : {"client", "shuffled"}
        Trees arrive in client order, or in an order that the server draws in every round.
    """

    arrival: str = "client"
    server: ClassVar[type[BaggingServer]] = BaggingServer
    deployed: ClassVar[Mapping[str, Deployed]] = {
        "flower": Deployed(
            "FedXgbBagging() in the ServerApp", {**XGBOOST, "trees": "num_rounds={}"}
        ),
        "nvflare": Deployed(
            "FedXGBTreeExecutor(training_mode='bagging', num_client_bagging=1, ...)",
            {"trees": "num_rounds={}", "max_depth": "max_depth={}",
             "learning_rate": "learning_rate={}"},
            {"local_trees": 1},
        ),
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("arrival", self.arrival, ARRIVALS)
