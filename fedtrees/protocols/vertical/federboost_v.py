"""`federboost-v`: passive parties send the order of their rows once, the active party boosts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Memory
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Place
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Guarantee, NoGuarantee, PureDP
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.party import handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Turns, refuse
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.shared_trees import GrowRequest
from fedtrees.messages.vertical import ChosenSplits, RowBuckets
from fedtrees.messages.vertical_model import HeldModel
from fedtrees.privacy.accounting import composed
from fedtrees.privacy.noise import Response
from fedtrees.privacy.randomised_response import odds_within
from fedtrees.protocols.boosting_protocol import BoostingProtocol
from fedtrees.protocols.vertical.active import Active
from fedtrees.protocols.vertical.columns import GlobalBins
from fedtrees.protocols.vertical.model import VerticalModel
from fedtrees.protocols.vertical.passive import SplitHolder
from fedtrees.protocols.vertically_held import ACTIVE, PASSIVE, VerticallyHeld
from fedtrees.trees.binning import Bins, Cuts
from fedtrees.trees.boosted.boosting import grow_forest


class BucketHolder(SplitHolder):
    """A passive party: tells bins once, and learns of the splits by its columns at the end."""

    def __init__(
        self, name: str, held: LocalData, bins: GlobalBins, protocol: FederBoostV, schema: Schema
    ) -> None:
        super().__init__(name, held, bins)
        self.params, self.schema, self.asked = protocol, schema, Turns(1)

    @handles(GrowRequest, round="0, and answered once")
    def tell(self, message: GrowRequest) -> RowBuckets:
        """Answer with the bins of all rows, randomised where epsilon is finite.

        Raises `BeyondParametersError` when asked twice: answers to both would tell more.
        """
        self.asked.take(message, "round")
        p = self.params
        bins = [*self.own_bins().values()]
        if p.noisy:
            odds = float(odds_within(p.epsilon))
            self.net.spend("randomised-response", l1=math.log(odds), scale=1, what="RowBuckets")
            rng = self.streams.noise.rng("buckets")
            ends = zip(self.bins.columns.tolist(), self.bins.n_bins.tolist(), strict=True)
            bins = [
                p.answered(b, int(n), bool(self.schema.complete[c]), rng)
                for b, (c, n) in zip(bins, ends, strict=True)
            ]
        return RowBuckets(self.name, self.bins.columns, self.bins.n_bins, np.stack(bins))

    @handles(
        ChosenSplits,
        tree="any: splits are stored, and nothing is answered",
        nodes="as `tree`",
        left="not read",
        columns="columns of this party",
        bins="bins of these columns",
        default_left="as `tree`",
    )
    def note(self, message: ChosenSplits) -> None:
        """Note the splits by its columns, for rows to predict."""
        parts = (message.columns, message.bins, message.default_left)
        if any(len(part) != len(message.nodes) for part in parts):
            refuse(message, "nodes", "each node has one split")
        bins = dict(zip(self.bins.columns.tolist(), self.bins.n_bins.tolist(), strict=True))
        for column, bin in zip(message.columns.tolist(), message.bins.tolist(), strict=True):
            if not -1 <= bin <= bins.get(column, -2):
                refuse(message, "columns", f"bin {bin} of column {column} is no bin of this party")
        self.note_splits(message)


class BoostingAlone(Active):
    """The active party: boosts on the bins of all columns as if they were its own."""

    params: Any  # a `FederBoostV`: nothing is sealed

    def train(self, net: Network) -> VerticalModel:
        """Ask for bins, boost, and tell owners of their splits."""
        y = self.held.y
        assert y is not None
        objective = self.params.objective_for(self.schema)
        self.owner = [self.name] * len(self.schema.features)
        self.passive = bool(net.members(PASSIVE))
        bins = self.gathered(net)
        forest = grow_forest(
            bins, y, self.cuts, self.params, objective,
            weight=self.held.weight, streams=self.streams,
        )  # fmt: skip
        for number, tree in enumerate(forest.trees):
            for party in net.members(PASSIVE):
                mine = [c for c, owner in enumerate(self.owner) if owner == party]
                nodes = np.flatnonzero(np.isin(tree.feature, mine)).astype(np.int32)
                if len(nodes):
                    message = ChosenSplits(
                        number, nodes, tree.left[nodes], tree.feature[nodes],
                        (tree.threshold[nodes] - 1).astype(np.int32), tree.default_left[nodes],
                    )  # fmt: skip
                    net.tell(party, message, why="its splits, for rows to predict")
        return VerticalModel(forest, tuple(self.owner), (), y)

    def gathered(self, net: Network) -> Bins:
        """Return the bins of all columns; thresholds of others' are their numbers."""
        d, n = len(self.schema.features), len(self.held)
        codes, sizes = np.full((n, d), -1), np.zeros(d, dtype=np.int32)
        own = self.bins.of_rows()
        sizes[self.bins.columns] = self.bins.n_bins
        for column, found in own.items():
            codes[:, column] = found
        why = "the order of rows in every column, by bins"
        for reply in net.ask(PASSIVE, GrowRequest(0), why=why) if self.passive else []:
            assert isinstance(reply, RowBuckets)
            codes[:, reply.columns], sizes[reply.columns] = reply.bins.T, reply.n_bins
            for column in reply.columns.tolist():
                self.owner[column] = reply.party
        cuts, minimum = [np.arange(1, k + 1, dtype=np.float32) for k in sizes], np.zeros(d)
        if self.bins.cuts is not None:
            for place, column in enumerate(self.bins.columns.tolist()):
                cuts[column] = self.bins.cuts.of(place)
                minimum[column] = self.bins.cuts.minimum[place]
        self.cuts = Cuts.join(cuts, minimum)
        missing = int(sizes.max())
        kind = np.uint8 if missing < 256 else np.uint16
        return Bins(np.where(codes < 0, missing, codes).astype(kind), missing, self.cuts.offsets)


@register.protocol("federboost-v")
@dataclass(frozen=True, kw_only=True)
class FederBoostV(VerticallyHeld, BoostingProtocol):
    """FederBoost (Tian et al. 2020), vertically: bins cross once, in clear or randomised.

    Passive parties tell the bin of every row in each of their columns; the active party boosts
    alone on these, so gradients never leave it. With `epsilon` each value keeps its bin with
    probability ``e^epsilon / (e^epsilon + q - 1)`` of q bins (a missing value counts as one where
    there may be some), else any other. Ends of bins are quantiles of all values: one value moves
    others' bins, and how many bins there are crosses as it is. So nothing is bounded but the answer
    about one bin, given the ends; of c columns a row has c.
    Owners are told their splits at the end, and route rows to predict by their values as in
    `secureboost`.

    `epsilon`: In nats, of one bin at its holder, given the ends of all; inf: bins in clear.
    """

    trees: int = 5
    max_bin: int = 32
    epsilon: float = math.inf

    released: ClassVar[bool] = False
    adversaries: ClassVar[tuple[str, ...]] = (ACTIVE, PASSIVE)
    says: ClassVar[tuple[type[Message], ...]] = (GrowRequest, RowBuckets, ChosenSplits, HeldModel)
    noised: ClassVar[tuple[type[Message], ...]] = (RowBuckets,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (type(self.epsilon) in (int, float) and self.epsilon > 0):
            raise UsageError(f"epsilon={self.epsilon!r}: give a number > 0, or inf for no noise")

    @property
    def noisy(self) -> bool:
        """Whether bins are randomised."""
        return math.isfinite(self.epsilon)

    def response(self, bins: int, complete: bool) -> Response:
        """Return the law of the bins that are told of a column."""
        return Response(float(self.epsilon), bins + (not complete))

    def answered(
        self, bin: NDArray[np.int64], bins: int, complete: bool, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return what is told of a column; -1, no value, is one answer more."""
        said = self.response(bins, complete).send(np.where(bin < 0, bins, bin), rng)
        return np.where(said == bins, -1, said)

    def laws(self, schema: Schema) -> Mapping[Place, Change]:
        """State that bins are answers, of each column among its own number of bins."""
        if not self.noisy:
            return {}
        why = "randomised response among the bins of each column"
        return {(RowBuckets, "bins"): Memory(why, self.response(self.max_bin, True))}

    def exact(self) -> FederBoostV:
        """Return the same with bins in clear."""
        return replace(self, epsilon=math.inf)

    def claim(self) -> Guarantee:
        """Return what answers bound where bins are randomised; their ends nobody bounds."""
        return _given_ends(float(self.epsilon)) if self.noisy else NoGuarantee()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return what the ledger says of one answer."""
        return _given_ends(composed(transcript.events)) if self.noisy else NoGuarantee()

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> BoostingAlone | BucketHolder:
        """Make the active party or a passive one."""
        assert held is not None
        bins, params = GlobalBins(held, self.max_bin), cast(Any, self)
        if role == ACTIVE:
            return BoostingAlone(name, held, bins, None, params, schema)
        return BucketHolder(name, held, bins, self, schema)


def _given_ends(epsilon: float) -> PureDP:
    return PureDP(math.inf, unit="value", histograms=epsilon, unprotected="ends-of-bins")
