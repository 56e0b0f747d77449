"""Protocol `flower-cyclic`: clients take turns to grow trees on the model and pass it on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedtrees.core.deployment import XGBOOST, Deployed
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.messages.shared_trees import ClientTrees, GrowRequest
from fedtrees.protocols.horizontal.tree_sharing import FlowerProtocol, TreeSharingServer
from fedtrees.trees.boosted.forest import Forest


class CyclicServer(TreeSharingServer):
    """The server. It sends the model to the next client in turn, and receives its trees."""

    def train(self, net: Network) -> Forest:
        """Ask one client per round, in client order. At the end send the model to all clients."""
        clients = net.members("client")
        for round in range(self.params.trees):
            name = clients[round % len(clients)]
            # In the first round there is no model to send.
            if self.parts:
                self.tell(net, name, round, "the model so far, for the client whose turn it is")
            why = "trees the client grew on its own rows, on top of the model"
            (part,) = net.ask(name, GrowRequest(round), why=why)
            assert isinstance(part, ClientTrees)
            self.keep(part)
        for name in clients:
            self.tell(net, name, self.params.trees, "the finished model, as far as it is new")
        return self.released()


@register.protocol("flower-cyclic")
@dataclass(frozen=True, kw_only=True)
class FlowerCyclic(FlowerProtocol):
    """Cyclic boosting as in Flower's `FedXgbCyclic` strategy and its XGBoost example.

    In each of `trees` rounds, the next client in turn receives the model and boosts `local_trees`
    rounds on top of it. The model has the base score of the first client. A receiver of the model
    knows from its position in the cycle which client grew which tree.

    Flower sends the complete model in both directions. Here only trees that the receiver does not
    have are sent, which reveals the same. All clients receive the final model.
    """

    server: ClassVar[type[CyclicServer]] = CyclicServer
    deployed: ClassVar[Mapping[str, Deployed]] = {
        "flower": Deployed(
            "FedXgbCyclic() in the ServerApp", {**XGBOOST, "trees": "num_rounds={}"}
        ),
        "nvflare": Deployed(
            "FedXGBTreeExecutor(training_mode='cyclic', ...)",
            {"trees": "num_rounds={}", "max_depth": "max_depth={}",
             "learning_rate": "learning_rate={}"},
            {"local_trees": 1},
        ),
    }  # fmt: skip
