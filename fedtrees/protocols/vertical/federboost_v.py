"""Protocol `federboost-v`: passive parties send the bins of their rows once, before training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import VaryingChannel
from fedtrees.core.defense import Channels
from fedtrees.core.guarantee import Guarantee, NoGuarantee, PureDP
from fedtrees.core.local_data import LocalData
from fedtrees.core.network import Network
from fedtrees.core.party import handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Turns, refuse
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.horizontal import GrowRequest
from fedtrees.messages.vertical import ChosenSplits, HeldModel, RowBuckets
from fedtrees.privacy.accounting import compose_releases
from fedtrees.privacy.mechanisms import odds_within
from fedtrees.privacy.noise import Response
from fedtrees.protocols.base import Seat
from fedtrees.protocols.settings import (
    ACTIVE,
    PASSIVE,
    BoostingProtocol,
    NoisyProtocol,
    VerticallyPartitioned,
    epsilon_or_inf,
)
from fedtrees.protocols.vertical.active import Active
from fedtrees.protocols.vertical.local_bins import LocalBins
from fedtrees.protocols.vertical.passive import SplitHolder
from fedtrees.protocols.vertical.protocol import VerticalModel
from fedtrees.trees.binning import Bins, Cuts
from fedtrees.trees.boosted.boosting import grow_forest


class BucketHolder(SplitHolder):
    """A passive party that sends its bins once, and receives its splits at the end."""

    def __init__(self, seat: Seat, protocol: FederBoostV) -> None:
        super().__init__(seat, protocol)
        self.params, self.schema, self.requests = protocol, seat.schema, Turns(1)

    @handles(GrowRequest, round="0, and answered once")
    def send_bins(self, message: GrowRequest) -> RowBuckets:
        """Answer with the bins of all rows, randomised if epsilon is finite.

        Raises
        ------
        BeyondParametersError
            At the second request, because two responses of a row have twice the privacy loss.
        """
        self.requests.take(message, "round")
        p = self.params
        bins = [*self.own_bins().values()]
        if p.noisy:
            # The true bin is sampled with a rational probability whose odds are at most e^epsilon.
            odds = float(odds_within(p.epsilon))
            self.net.record_release(
                "randomised-response", l1=math.log(odds), scale=1, what="RowBuckets"
            )
            rng = self.streams.noise.rng("buckets")
            ends = zip(self.bins.columns.tolist(), self.bins.n_bins.tolist(), strict=True)
            bins = [
                p.randomise_bins(b, int(n), bool(self.schema.complete[c]), rng)
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
    def store_splits(self, message: ChosenSplits) -> None:
        """Store the splits by its columns for predictions."""
        parts = (message.columns, message.bins, message.default_left)
        if any(len(part) != len(message.nodes) for part in parts):
            refuse(message, "nodes", "each node has one split")
        bins = dict(zip(self.bins.columns.tolist(), self.bins.n_bins.tolist(), strict=True))
        for column, bin in zip(message.columns.tolist(), message.bins.tolist(), strict=True):
            # A split after the last bin, with number n_bins - 1, only separates missing values.
            if not -1 <= bin < bins.get(column, -1):
                refuse(message, "columns", f"bin {bin} of column {column} is no bin of this party")
        self.note_splits(message)


class BoostingAlone(Active):
    """The active party. It boosts locally on the bins of all columns."""

    params: Any  # a `FederBoostV`, which has no parameters of encryption

    def train(self, net: Network) -> VerticalModel:
        """Request the bins, boost, and send each owner its splits."""
        y = self.local_data.y
        assert y is not None
        objective = self.params.objective_for(self.schema)
        self.owner = [self.name] * len(self.schema.features)
        self.passive = bool(net.members(PASSIVE))
        bins = self.request_bins(net)
        forest = grow_forest(
            bins, y, self.cuts, self.params, objective,
            weight=self.local_data.weight, streams=self.streams,
        )  # fmt: skip
        for number, tree in enumerate(forest.trees):
            for party in net.members(PASSIVE):
                party_columns = [c for c, owner in enumerate(self.owner) if owner == party]
                # The threshold of a passive column is its bin number plus 1 (`request_bins`).
                nodes = np.flatnonzero(np.isin(tree.feature, party_columns)).astype(np.int32)
                if len(nodes):
                    message = ChosenSplits(
                        number, nodes, tree.left[nodes], tree.feature[nodes],
                        (tree.threshold[nodes] - 1).astype(np.int32), tree.default_left[nodes],
                    )  # fmt: skip
                    net.send(party, message, reason="its splits, for rows to predict")
        return VerticalModel(forest, tuple(self.owner), (), y)

    def request_bins(self, net: Network) -> Bins:
        """Return the bins of all columns. The cut points of passive columns are bin numbers."""
        d, n = len(self.schema.features), len(self.local_data)
        codes, sizes = np.full((n, d), -1), np.zeros(d, dtype=np.int32)
        local_bins = self.bins.bins_by_column()
        sizes[self.bins.columns] = self.bins.n_bins
        for column, column_bins in local_bins.items():
            codes[:, column] = column_bins
        reason = "the order of rows in every column, by bins"
        for reply in net.request(PASSIVE, GrowRequest(0), reason=reason) if self.passive else []:
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
        # One code beyond the largest bin number of any column represents missing values.
        missing = int(sizes.max())
        kind = np.uint8 if missing < 256 else np.uint16
        return Bins(np.where(codes < 0, missing, codes).astype(kind), missing, self.cuts.offsets)


@register.protocol("federboost-v")
@dataclass(frozen=True, kw_only=True)
class FederBoostV(NoisyProtocol, VerticallyPartitioned, BoostingProtocol):
    """FederBoost (Tian et al. 2020), vertical: bins are sent once, in plain text or randomised.

    Passive parties send the bin of every row in each of their columns. The active party boosts
    locally on these bins, so that it never sends gradients. With a finite `epsilon`, each value
    keeps its bin with probability ``e^epsilon / (e^epsilon + q - 1)`` for q bins, and otherwise
    gets another bin with equal probabilities. A missing value counts as a bin if the column may
    have missing values.

    The borders of the bins are quantiles of all values. One value can therefore move the bins of
    other rows, and the number of bins is sent without noise. Only the reply about one bin, given
    the borders, has a privacy bound. A row with c columns has c such replies. At the end the active
    party sends the owners their splits. Owners route test rows by their values as in `secureboost`.

    Parameters
    ----------
    epsilon : float
        In nats, for one randomised bin given all borders. inf sends bins in plain text.
    """

    trees: int = 5
    max_bin: int = 32
    epsilon: float = epsilon_or_inf(math.inf)

    released: ClassVar[bool] = False
    info = replace(
        VerticallyPartitioned.info,
        adversaries=(ACTIVE, PASSIVE),
        message_types=(GrowRequest, RowBuckets, ChosenSplits, HeldModel),
        noised_types=(RowBuckets,),
    )
    party_types = {ACTIVE: BoostingAlone, PASSIVE: BucketHolder}

    def response(self, bins: int, complete: bool) -> Response:
        """Return the randomised response of a column."""
        return Response(float(self.epsilon), bins + (not complete))

    def randomise_bins(
        self, bin: NDArray[np.int64], bins: int, complete: bool, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return the randomised bins of a column.

        A missing value, -1, is one more possible bin unless the column is complete.

        Parameters
        ----------
        bin : int64 array, shape (n,)
            True bins, -1 for a missing value.
        bins : int
            Number of bins.
        complete : bool
            Whether the column has no missing values.
        rng : numpy.random.Generator
            Randomness of the noise.
        """
        reply = self.response(bins, complete).send(np.where(bin < 0, bins, bin), rng)
        # Missing values have the last number in the randomised response.
        return np.where(reply == bins, -1, reply)

    def noise_channels(self, schema: Schema) -> Channels:
        """Return that bins are randomised responses among the bins of each column.

        The stated distribution is that of a complete column with `max_bin` bins.
        """
        if not self.noisy:
            return {}
        reason = "randomised response among the bins of each column"
        return {(RowBuckets, "bins"): VaryingChannel(reason, self.response(self.max_bin, True))}

    def claim(self) -> Guarantee:
        """Return the bound on randomised bins. The borders of the bins have no bound."""
        return _given_ends(float(self.epsilon)) if self.noisy else NoGuarantee()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the guarantee of one reply according to the ledger."""
        return _given_ends(compose_releases(transcript.events)) if self.noisy else NoGuarantee()

    def local_bins(self, local_data: LocalData) -> LocalBins:
        """Return the buckets of a party's columns."""
        return LocalBins(local_data, self.max_bin)


def _given_ends(epsilon: float) -> PureDP:
    return PureDP(math.inf, unit="value", histograms=epsilon, unprotected=("ends-of-bins",))
