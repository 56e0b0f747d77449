"""Parties of protocols in which clients boost on their local rows and share the trees."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, check_known, check_whole
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, names_of_type
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.core.requests import Turns
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.messages.packing import join, pack, unpack
from fedtrees.messages.shared_trees import ClientModels, ClientTrees, GlobalTrees, GrowRequest
from fedtrees.protocols.base import Coordinator
from fedtrees.protocols.boosting_protocol import BoostingProtocol
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import Continuation, Owned, add_trees
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.intercept import INTERCEPTS, estimated_score, start_margin
from fedtrees.trees.boosted.sampling import dropped_rows
from fedtrees.trees.boosted.xgboost_cuts import xgboost_cuts


@dataclass(frozen=True, kw_only=True)
class TreeSharingProtocol(BoostingProtocol):
    """Boosted trees that clients grow locally: parameters of the engine, and the following.

    Each client computes cut points from all its rows. Codes of categories are split as numbers. If
    `base_score` is None, each client estimates one from its local labels, for the trees that it
    grows before it receives a model.

    Parameters
    ----------
    intercept : {"mean", "newton"}
        Estimate of the base score: the mean label as in XGBoost 3.2, or one Newton step as in 2.1
        (`fedtrees.trees.boosted.intercept.estimated_score`).
    """

    intercept: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("intercept", self.intercept, INTERCEPTS)

    says: ClassVar[tuple[type[Message], ...]] = (GrowRequest, ClientTrees, GlobalTrees)
    serves: ClassVar[frozenset[str]] = frozenset({"least_leaf_rows"})
    server: ClassVar[type[TreeSharingServer]]

    @property
    @abstractmethod
    def rounds_at_once(self) -> int:
        """Number of boosting rounds of a client before it sends its trees."""

    @property
    def rounds_of_run(self) -> int:
        """Number of federated rounds in which clients may be asked for trees."""
        return 1

    def grown_on(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_] | None:
        """Return the rows that a client's boosting round draws. None for all rows.

        Parameters
        ----------
        n : int
            Number of rows of the client.
        streams : Streams
            Randomness of the client.
        round : int
            Boosting round of the client.
        defense : Composition or None
            Not used.
        """
        dropped = dropped_rows(n, self.subsample, streams, round)
        return None if dropped is None else ~dropped

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> TreeSharingServer | BoostingClient:
        """Create the server or a client."""
        if held is None:
            return self.server(self, schema)
        return BoostingClient(name, held.table, schema, self, defense.least_leaf_rows)


@dataclass(frozen=True, kw_only=True)
class FlowerProtocol(TreeSharingProtocol):
    """Trees grown on top of a global model, in `trees` federated rounds.

    Parameters
    ----------
    local_trees : int
        Number of boosting rounds of a client in a federated round.
    """

    local_trees: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("local_trees", self.local_trees, 1)

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
    name : str
        Name of the client.
    data : Table
        Local rows.
    schema : Schema
        Columns and target.
    params : TreeSharingProtocol
        Public parameters.
    least_rows : int
        Smallest number of rows on each side of a split, as a defense requires.
    """

    role = "client"

    def __init__(
        self,
        name: str,
        data: Table,
        schema: Schema,
        params: TreeSharingProtocol,
        least_rows: int = 0,
    ) -> None:
        super().__init__(name)
        self.data, self.params, self.least_rows = data, params, least_rows
        # Round numbers may be missing, because only one client takes part in a cyclic round.
        self.asked = Turns(params.rounds_of_run, gaps=True)
        self.objective = params.objective_for(schema)
        self.objective.check(data.y)
        self.sums = self.objective.target_sums(data.y, data.weight)
        if len(data):
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
    def growth(self) -> Continuation:
        """Binned rows and parameters of local boosting."""
        # Cut points and bins are computed once, from all local rows, and never shared.
        cuts = xgboost_cuts(self.data.X, self.params.max_bin)
        rows = Owned(bin_rows(self.data.X, cuts), self.data.y, self.data.weight)
        return Continuation(rows, cuts, self.params, self.objective, self.streams, self.least_rows)

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

    @handles(ClientModels, **dict.fromkeys(names_of_type(ClientModels), "not read"))
    def end(self, message: ClientModels) -> None:
        """Receive the models of all clients. They do not change the client's state."""

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

    def __init__(self, protocol: TreeSharingProtocol, schema: Schema) -> None:
        super().__init__("server")
        self.params, self.objective = protocol, protocol.objective_for(schema)
        self.parts: list[ClientTrees] = []
        self.told: dict[str, int] = {}  # number of parts that each receiver has
        self.trees: list[Tree] = []  # as sent, after the defenses

    def keep(self, part: ClientTrees) -> None:
        """Append a client's trees to the model."""
        if len(part.sizes):
            self.parts.append(part)

    def tell(self, net: Network, to: str, round: int, why: str) -> None:
        """Send the new part of the model to a role or a party.

        Parameters
        ----------
        net : Network
            Network of the run.
        to : str
            Role or party.
        round : int
            Federated round.
        why : str
            Reason for the transcript.
        """
        # Only parts that the receiver does not have are sent. Together they form the complete
        # model.
        new = self.parts[self.told.get(to, 0) :]
        if not self.parts:
            raise DataError(no_tree(self.params.name))
        if not new:
            return
        first = sum(len(p.sizes) for p in self.parts[: self.told.get(to, 0)])
        # The model has the base score of its first part.
        message = GlobalTrees(round, **join(new), base_score=self.parts[0].base_score, first=first)
        sent = net.tell(to, message, why=why)
        assert isinstance(sent, GlobalTrees)
        self.told[to] = len(self.parts)
        p = self.params
        # A defense may have changed the trees. The model has the trees that were sent.
        self.trees[first:] = unpack(sent, p.learning_rate, p.reg_lambda, p.reg_alpha)

    def released(self) -> Forest:
        """Return the model as it was sent."""
        start = start_margin(self.objective, self.parts[0].base_score)
        return Forest(tuple(self.trees), start, self.objective)
