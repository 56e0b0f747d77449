"""`flower-bagging`: each round every client grows a tree on the global model, all are kept."""

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
    """The server: asks all clients at once and concatenates the trees as they arrive."""

    params: FlowerBagging

    def train(self, net: Network) -> Forest:
        """Collect, concatenate, broadcast, round after round."""
        for round in range(self.params.trees):
            why = "trees each client grew on its own rows, on top of the global model"
            replies = net.ask("client", GrowRequest(round), why=why)
            for part in self.arrived(replies, round):
                self.keep(part)
            self.tell(net, "client", round, "the global model's new trees, in order of arrival")
        return self.released()

    def arrived(self, replies: list, round: int) -> list[ClientTrees]:  # type: ignore[type-arg]
        """Return the replies in the order of their arrival."""
        if self.params.arrival == "client":
            return replies
        order = self.streams.rng("arrival", round).permutation(len(replies))
        return [replies[i] for i in order]


@register.protocol("flower-bagging")
@dataclass(frozen=True, kw_only=True)
class FlowerBagging(FlowerProtocol):
    """Bagging as Flower's `FedXgbBagging` strategy and its XGBoost example do it.

    Each round (`trees` of them) every client boosts `local_trees` rounds on top of the global model
    and sends the new trees; the server appends them in the order of their arrival and tells
    everybody. The model's base score is that of the first client to arrive; every client's own
    first trees start from its own. Clients see an ordered list of trees without names, the server
    sees who sent which.

    Flower sends the whole model again every round; here only what is new crosses, which tells the
    same. Flower's server keeps only the first tree of each reply (but all of the very first): with
    more than one local tree, or one per class, it drops the others; here all are kept.

    `arrival`: Trees arrive in the order of the clients, or in an order the server draws every
    round.
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
