"""Protocols in which clients boost trees on their local rows and share the trees.

In `flower-bagging`, every client grows trees on the global model in each round. In `flower-cyclic`,
clients take turns to grow trees on the model and pass it on. In `local-ensembles`, each client
boosts a local model, and all clients receive all models.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import XGBOOST, Deployed
from fedtrees.core.endpoint import Model
from fedtrees.core.errors import DataError
from fedtrees.core.messages import names_of_type
from fedtrees.core.network import Network
from fedtrees.core.parameters import one_of, whole
from fedtrees.core.party import Party, handles, ignores
from fedtrees.core.registry import register
from fedtrees.core.requests import Turns
from fedtrees.messages.horizontal import ClientModels, ClientTrees, GlobalTrees, GrowRequest
from fedtrees.messages.models import join, pack, unpack
from fedtrees.protocols.base import Coordinator, ProtocolInfo, Seat
from fedtrees.protocols.settings import SubsampledBoosting
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import BoostingState, OwnerRows, add_trees
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import INTERCEPTS, estimated_score, start_margin
from fedtrees.trees.cut_points import xgboost_cuts


@dataclass(frozen=True, kw_only=True)
class TreeSharingProtocol(SubsampledBoosting):
    """Boosted trees that clients grow locally: parameters of the engine, and the following.

    Each client computes cut points from all its rows. Codes of categories are split as numbers. If
    `base_score` is None, each client estimates one from its local labels, for the trees that it
    grows before it receives a model.

    Parameters
    ----------
    intercept : {"mean", "newton"}
        Estimate of the base score: the mean label as in XGBoost 3.2, or one Newton step as in 2.1
        (`fedtrees.trees.boosted.losses.estimated_score`).
    """

    intercept: str = one_of(INTERCEPTS, default="mean")

    info = ProtocolInfo(
        message_types=(GrowRequest, ClientTrees, GlobalTrees),
        capabilities=frozenset({"min_leaf_rows"}),
    )

    @property
    @abstractmethod
    def rounds_at_once(self) -> int:
        """Number of boosting rounds of a client before it sends its trees."""

    @property
    def rounds_of_run(self) -> int:
        """Number of federated rounds in which clients may be asked for trees."""
        return 1


def _deployments(aggregation: str, arguments: str) -> dict[str, Deployed]:
    """Return the settings of Flower and NVFlare for a protocol.

    Parameters
    ----------
    aggregation : str
        Flower's strategy.
    arguments : str
        Arguments of NVFlare's executor.
    """
    trees = {"trees": "num_rounds={}"}
    depth_and_rate = {"max_depth": "max_depth={}", "learning_rate": "learning_rate={}"}
    executor, only = f"FedXGBTreeExecutor({arguments}, ...)", {"local_trees": 1}
    return {
        "flower": Deployed(f"{aggregation}() in the ServerApp", {**XGBOOST, **trees}),
        "nvflare": Deployed(executor, {**trees, **depth_and_rate}, only),
    }


@dataclass(frozen=True, kw_only=True)
class FlowerProtocol(TreeSharingProtocol):
    """Trees grown on top of a global model, in `trees` federated rounds.

    Parameters
    ----------
    local_trees : int
        Number of boosting rounds of a client in a federated round.
    """

    local_trees: int = whole(1, default=1)

    @property
    def rounds_at_once(self) -> int:
        """Number of boosting rounds of a client before it sends its trees."""
        return self.local_trees

    @property
    def rounds_of_run(self) -> int:
        """Number of federated rounds."""
        return self.trees


class BoostingClient(Party):
    """A client that boosts on its local rows, on top of the last model that it received.

    Parameters
    ----------
    seat : Seat
        Name, local rows and defenses of the client.
    protocol : TreeSharingProtocol
        Public parameters.
    """

    role = "client"

    def __init__(self, seat: Seat, protocol: TreeSharingProtocol) -> None:
        super().__init__(seat.name)
        self.data, self.params = seat.table, protocol
        self.least_rows = seat.defense.requirements.min_leaf_rows
        # Round numbers may be missing, because only one client takes part in a cyclic round.
        self.asked = Turns(protocol.rounds_of_run, gaps=True)
        self.objective = protocol.objective_for(seat.schema)
        self.objective.check(self.data.y)
        self.sums = self.objective.target_sums(self.data.y, self.data.weight)
        if len(self.data):
            self.start(self.own_score())

    def own_score(self) -> NDArray[np.float32]:
        """Return the base score of the client's local model, float32, shape (K,)."""
        if self.params.base_score is None:
            return estimated_score(self.objective, self.sums, self.params.intercept)
        scores = np.full(self.objective.n_outputs, self.params.base_score, dtype=np.float32)
        self.objective.base_margin(scores)  # raises an error for an invalid base score
        return scores

    def start(self, score: NDArray[np.float32]) -> None:
        """Set the predictions of all rows to the base score."""
        self.score = score
        margin = start_margin(self.objective, score)
        self.margin = np.repeat(margin[:, None], len(self.data), axis=1)

    @cached_property
    def growth(self) -> BoostingState:
        """Binned rows and parameters of local boosting."""
        # Cut points and bins are computed once, from all local rows, and never shared.
        cuts = xgboost_cuts(self.data.X, self.params.max_bin)
        rows = OwnerRows(bin_rows(self.data.X, cuts), self.data.y, self.data.weight)
        return BoostingState(rows, cuts, self.params, self.objective, self.streams, self.least_rows)

    @handles(GrowRequest, round="ascending, each once, at most the agreed rounds")
    def grow(self, message: GrowRequest) -> ClientTrees:
        """Answer with the next trees. Empty if the client has too few rows for one leaf."""
        self.asked.take(message, "round")
        if len(self.data) < max(self.least_rows, 1):
            no_score = np.zeros(0, dtype=np.float32)
            return ClientTrees(message.round, **pack([], self.params), base_score=no_score)
        # The copy keeps the predictions of the received model, until the server sends the new one.
        margin, rounds = self.margin.copy(), self.params.rounds_at_once
        trees = [
            t for i in range(rounds) for t in self.growth.round(message.round * rounds + i, margin)
        ]
        return ClientTrees(message.round, **pack(trees, self.params), base_score=self.score)

    end = ignores(ClientModels)

    @handles(
        GlobalTrees,
        **dict.fromkeys(
            names_of_type(GlobalTrees),
            "any: a client grows its agreed number of trees on any model",
        ),
    )
    def follow(self, message: GlobalTrees) -> None:
        """Add the outputs of the model's new trees to the predictions."""
        # The first trees replace the local start, because the model has its own base score.
        if message.first == 0:
            self.start(message.base_score)
        add_trees(unpack(message), self.data.X, self.margin, message.first)


def no_tree(protocol: str) -> str:
    """Return the error message for a run in which all replies were empty."""
    return (
        f"no client sent a tree; {protocol!r} needs a client with rows, "
        "under 'min-leaf' with k or more: spread the rows over fewer clients or lower k"
    )


class TreeSharingServer(Coordinator):
    """A server that collects the clients' trees and distributes them, in order of arrival."""

    def __init__(self, seat: Seat, protocol: TreeSharingProtocol) -> None:
        super().__init__(seat.name)
        self.params, self.objective = protocol, protocol.objective_for(seat.schema)
        self.parts: list[ClientTrees] = []
        self.sent_parts: dict[str, int] = {}  # number of parts that each receiver has
        self.trees: list[Tree] = []  # as sent, after the defenses

    def keep(self, part: ClientTrees) -> None:
        """Append a client's trees to the model."""
        if len(part.sizes):
            self.parts.append(part)

    def tell(self, net: Network, to: str, round: int, reason: str) -> None:
        """Send the new part of the model to a role or a party.

        Parameters
        ----------
        net : Network
            Network of the run.
        to : str
            Role or party.
        round : int
            Federated round.
        reason : str
            Reason for the transcript.
        """
        # Only parts that the receiver does not have are sent. Together they form the complete
        # model.
        new = self.parts[self.sent_parts.get(to, 0) :]
        if not self.parts:
            raise DataError(no_tree(self.params.name))
        if not new:
            return
        first = sum(len(p.sizes) for p in self.parts[: self.sent_parts.get(to, 0)])
        # The model has the base score of its first part.
        message = GlobalTrees(round, **join(new), base_score=self.parts[0].base_score, first=first)
        sent = net.send(to, message, reason=reason)
        self.sent_parts[to] = len(self.parts)
        p = self.params
        # A defense may have changed the trees. The model has the trees that were sent.
        self.trees[first:] = unpack(sent, p.learning_rate, p.reg_lambda, p.reg_alpha)

    def released(self) -> Forest:
        """Return the model as it was sent."""
        start = start_margin(self.objective, self.parts[0].base_score)
        return Forest(tuple(self.trees), start, self.objective)


ARRIVALS = ("client", "shuffled")


class BaggingServer(TreeSharingServer):
    """The server. It asks all clients at once and appends their trees in order of arrival."""

    params: FlowerBagging

    def train(self, net: Network) -> Forest:
        """Request, append and broadcast trees, round after round."""
        for round in range(self.params.trees):
            reason = "trees that each client grew on its local rows, starting from the global model"
            replies = net.request("client", GrowRequest(round), reason=reason)
            for part in self.order_replies(replies, round):
                self.keep(part)
            self.tell(net, "client", round, "the global model's new trees, in order of arrival")
        return self.released()

    def order_replies(self, replies: list, round: int) -> list[ClientTrees]:  # type: ignore[type-arg]
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

    arrival: str = one_of(ARRIVALS, default="client")
    party_types = {"server": BaggingServer, "client": BoostingClient}
    info = replace(
        TreeSharingProtocol.info,
        deployments=_deployments("FedXgbBagging", "training_mode='bagging', num_client_bagging=1"),
    )


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
            reason = "trees that the client grew on its local rows, starting from the model"
            (part,) = net.request(name, GrowRequest(round), reason=reason)
            assert isinstance(part, ClientTrees)
            self.keep(part)
        for name in clients:
            self.tell(net, name, self.params.trees, "the new part of the finished model")
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

    party_types = {"server": CyclicServer, "client": BoostingClient}
    info = replace(
        TreeSharingProtocol.info,
        deployments=_deployments("FedXgbCyclic", "training_mode='cyclic'"),
    )


class EnsembleServer(TreeSharingServer):
    """The server. It requests the clients' models once and broadcasts them."""

    def train(self, net: Network) -> Model:
        """Request the models, broadcast them, and return their average."""
        return self.average_models(self.shared(net))

    def shared(self, net: Network) -> ClientModels:
        """Request the models, and return them as they were sent to all clients."""
        reason = "the model that each client boosted on its local rows"
        replies = net.request("client", GrowRequest(0), reason=reason)
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
        sent = net.send(
            "client", message, reason="the models of all clients: the aggregated ensemble"
        )
        return sent

    def average_models(self, models: ClientModels) -> Forest:
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

    info = replace(
        TreeSharingProtocol.info,
        message_types=(GrowRequest, ClientTrees, ClientModels),
    )
    party_types = {"server": EnsembleServer, "client": BoostingClient}

    @property
    def rounds_at_once(self) -> int:
        """Number of boosting rounds of a client before it sends its trees."""
        return self.trees
