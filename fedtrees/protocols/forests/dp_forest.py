"""Protocol `dp-forest`: random decision trees with differentially private class counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Mechanism, Share, SumOfShares
from fedtrees.core.defense import Channels
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Guarantee, NoGuarantee, PureDP
from fedtrees.core.network import Network
from fedtrees.core.parameters import flag, one_of, whole
from fedtrees.core.party import Party, handles, ignores
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, refuse
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.forests import LeafClassCounts, PrivateForest, RandomTests
from fedtrees.privacy.accounting import compose_releases, with_adversaries
from fedtrees.privacy.mechanisms import discrete_laplace_share, permute_and_flip
from fedtrees.privacy.noise import Laplace, TruncatedLaplace
from fedtrees.protocols.base import Coordinator, ProtocolInfo, Seat
from fedtrees.protocols.settings import (
    FOREST_FILE,
    NOISE,
    NoisySums,
    checked_rows,
    class_count,
    epsilon_or_inf,
)
from fedtrees.protocols.training import Training
from fedtrees.trees.files.forests import save_random_decision_forest
from fedtrees.trees.forest.random_decision import RandomDecisionForest, draw_splits, public_tests

#: Mechanism -> its name in the accountant (`fedtrees.privacy.accounting`).
MECHANISMS = {
    "geometric": "geometric",
    "published": "truncated-laplace",
    "majority": "exponential",
}
_MOST_LEAVES = 1 << 22


class CountingClient(Party):
    """A client that counts its rows in the leaves of trees that the server drew."""

    role = "client"

    def __init__(self, seat: Seat, protocol: DPForest) -> None:
        super().__init__(seat.name)
        self.params, self.n_classes, self.asked = protocol, class_count(seat.schema), Once()
        self.data = checked_rows(seat.table, self.n_classes)

    @handles(
        RandomTests,
        feature="the agreed number of trees of the agreed depth, with columns of the schema; "
        "answered once",
        threshold="one for each test",
    )
    def count(self, message: RandomTests) -> LeafClassCounts:
        """Answer once with the class counts of all leaves, plus a noise share if it is shared."""
        self.check_tests(message)
        self.asked.take(message)
        counts = message.splits().count(self.data.X, self.data.y, self.n_classes)
        if self.params.noise == "distributed" and self.params.noisy:
            rng, scale = self.streams.noise.rng("noise"), self.params.scale
            shares = self.params.shares(len(self.agreement.members("client")))
            counts = counts + discrete_laplace_share(scale, counts.shape, rng, shares)
        # The claim does not cover the number of rows, so that it is optional.
        rows = len(self.data) if self.params.rows == "known" else 0
        return LeafClassCounts(counts, np.array([rows]))

    def check_tests(self, message: RandomTests) -> None:
        """Refuse trees of another number or shape than agreed, because the noise is fixed."""
        p, columns = self.params, self.data.X.shape[1]
        shape, feature = (p.trees, 2**p.depth - 1), message.feature
        rule = f"{p.trees} trees of depth {p.depth} have tests of shape {shape}"
        if feature.shape != shape or feature.dtype.kind != "i":
            refuse(message, "feature", rule)
        if (feature < 0).any() or (feature >= columns).any():
            refuse(message, "feature", f"columns are 0 to {columns - 1}")
        if message.threshold.shape != shape:
            refuse(message, "threshold", rule)

    take = ignores(PrivateForest)


class DrawingServer(Coordinator):
    """The server. It draws the tests, sums the counts, and adds noise if it is trusted to."""

    def __init__(self, seat: Seat, protocol: DPForest) -> None:
        super().__init__(seat.name)
        self.params, self.schema = protocol, seat.schema
        self.n_classes = class_count(seat.schema)

    def train(self, net: Network) -> RandomDecisionForest:
        """Draw all trees, request the counts once, and release them."""
        p = self.params
        # Tests depend only on the schema and on randomness, so that they cost no privacy.
        splits = draw_splits(
            self.schema,
            p.depth,
            lambda tree: self.streams.rng("tests", tree),
            p.trees,
            bins=p.bins,
            repeats=p.repeats,
        )
        tests = RandomTests(splits.feature, splits.threshold)
        # One request for all trees. A second one would spend the budget again.
        total = net.request_sum("client", tests, reason="class counts in the leaves")
        if p.noisy:
            what = LeafClassCounts.__name__  # a row is in one leaf of every tree
            release = {"l1": 1, "scale": p.scale, "count": p.trees, "what": what}
            shares = p.noise_shares(len(net.members("client")))
            net.record_release(MECHANISMS[p.mechanism], **release, **shares)
        counts = self.released(total.counts)
        forest = RandomDecisionForest(splits, counts, int(total.rows[0]))
        net.send("client", PrivateForest.of(forest), reason="the noisy counts: the model")
        return forest

    def released(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the released counts, int64, shape (T, 2^depth, K)."""
        p, rng = self.params, self.streams.noise.rng("noise")
        if p.mechanism == "majority":
            labels = permute_and_flip(counts, 1.0 / p.scale if p.noisy else math.inf, rng)
            # A released label is represented by a count of 1 for its class.
            return np.eye(self.n_classes, dtype=np.int64)[labels]
        if p.noise == "distributed" or not p.noisy:
            return counts
        return p.law.send(counts, rng)


@register.protocol("dp-forest")
@dataclass(frozen=True, kw_only=True)
class DPForest(NoisySums):
    """Random decision trees with noisy class counts (Jagannathan et al. 2012).

    Tests are drawn from the schema without data, all rows are counted in the leaves of every tree,
    and the counts are released with noise. A row is in one leaf of each of T trees, so that every
    tree gets ``epsilon / trees``. Clients answer a single request. Every numeric column needs a
    declared range.

    Parameters
    ----------
    epsilon : float
        In nats, for one row added or removed. inf for exact counts.
    trees, depth : int
        Number of trees T, and number of tests on every path, 1 to 16.
    mechanism : {"geometric", "published", "majority"}
        ``geometric``: two-sided geometric noise on every count. ``published``: Laplace noise
        rounded toward 0, as attacked by Gorgé et al. (2026), which costs ``trees ln 2`` more than
        claimed. ``majority``: only the label of a leaf, by permute-and-flip, as in Holohan et al.
        (2019), who train each tree on separate rows.
    noise : {"central", "distributed"}
        ``central``: the server receives the exact sum (``secure-sum`` and ``masking`` hide the
        contribution of each client) and adds the noise. ``distributed``: each client adds a share
        of the noise, only the sum is decrypted, and no party must be trusted with more than a
        share.
    colluders : int
        Number of colluding clients against whom `epsilon` holds if clients share the noise. A
        client knows its own share, so that the shares of m clients are scaled as if there were ``m
        - colluders`` of them. 0: `epsilon` holds for outsiders only.
    rows : {"known", "noised"}
        Whether the number of rows is published with the model, or only implied by the noisy counts.
        The claim concerns added or removed rows and does not cover a published number.
    bins : int
        Number of bins of a numeric column without declared cut points, 2 to 65534.
    repeats : bool
        Allow tests whose result the path has already determined, as in the study.
    """

    epsilon: float = epsilon_or_inf(1.0)
    trees: int = whole(1, 10_000, default=10)
    depth: int = whole(1, 16, default=5)
    mechanism: str = one_of(MECHANISMS, default="geometric")
    noise: str = one_of(NOISE, default="central")
    rows: str = one_of(("known", "noised"), default="known")
    bins: int = whole(2, 65534, default=32)
    repeats: bool = flag(False)
    colluders: int = whole(0, default=1)

    noisy_sums = LeafClassCounts
    info = ProtocolInfo(
        message_types=(RandomTests, LeafClassCounts, PrivateForest),
        noised_types=(LeafClassCounts,),
        adversaries=("public",),
        example_dataset="digits[rows=300]",  # all columns declare a range
        model_file=FOREST_FILE,
    )
    party_types = {"server": DrawingServer, "client": CountingClient}

    def __post_init__(self) -> None:
        super().__post_init__()
        # The counts of all leaves are one message.
        if self.trees << self.depth > _MOST_LEAVES:
            raise UsageError(
                f"trees={self.trees} of depth={self.depth} have {self.trees << self.depth} leaves; "
                f"at most {_MOST_LEAVES} are counted: take fewer or smaller trees"
            )
        if self.noise == "distributed" and self.mechanism != "geometric":
            raise UsageError(
                f"noise=distributed: {self.mechanism} is no sum of shares; take "
                "mechanism=geometric, or noise=central"
            )

    def save(self, training: Training, path: Path) -> None:
        """Write the forest, and the noise in its counts, to a file."""
        noise = (self.mechanism, self.epsilon, training.noise_from)
        save_random_decision_forest(training.model, path, *noise, features=training.schema.features)

    @property
    def scale(self) -> float:
        """Scale of the noise on one count, ``trees / epsilon``."""
        return self.trees / self.epsilon

    @property
    def law(self) -> Laplace:
        """Distribution of the noise on a count, if counts are released."""
        kind = TruncatedLaplace if self.mechanism == "published" else Laplace
        return kind(self.scale, integers=True)

    def noise_channels(self, schema: Schema) -> Channels:
        """Return the noise on released counts, and on single clients' counts if they share it."""
        released = (PrivateForest, "counts")
        if self.mechanism == "majority":
            return {released: Mechanism("only the label of each leaf, by permute-and-flip")}
        if not self.noisy:
            return {}
        if self.noise == "central":
            return {released: self.law}
        share = Share(self.law, colluders=self.colluders)
        return {released: SumOfShares(share), (LeafClassCounts, "counts"): share}

    def claim(self) -> Guarantee:
        """Return the pure DP guarantee of the released model. None for exact counts."""
        return self._guarantee(float(self.epsilon)) if self.noisy else NoGuarantee()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the recorded privacy losses."""
        events = [e for e in transcript.events if e.what == LeafClassCounts.__name__]
        if not self.noisy:
            return NoGuarantee()
        return with_adversaries(self._guarantee(compose_releases(events)), events)

    def _guarantee(self, epsilon: float) -> PureDP:
        unprotected = ("rows",) if self.rows == "known" else ()
        central = self.noise == "central"
        return PureDP(
            epsilon,
            unprotected=unprotected,
            trusted=("server" if central else "clients",),
            colluders=0 if central else self.colluders,
        )

    def check(self, schema: Schema) -> None:
        """Refuse a target without classes, and columns that cannot be tested without data."""
        class_count(schema)
        public_tests(schema, self.bins)
