"""`dp-forest`: random decision trees with differentially private class counts in their leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import add_messages
from fedtrees.core.channel import Change, Mechanism, Share, SumOfShares, honest_shares
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Place
from fedtrees.core.errors import UsageError, check_flag, check_known, check_whole
from fedtrees.core.guarantee import Guarantee, NoGuarantee, PureDP
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, refuse
from fedtrees.core.schema import Schema, Table
from fedtrees.core.transcript import Transcript
from fedtrees.messages.private_forests import LeafClassCounts, PrivateForest, RandomTests
from fedtrees.privacy.accounting import composed, with_adversaries
from fedtrees.privacy.mechanisms import discrete_laplace_share, permute_and_flip
from fedtrees.privacy.noise import Laplace, TruncatedLaplace
from fedtrees.protocols.base import Coordinator, Protocol
from fedtrees.protocols.canaries import ALONE_DEPTH, ForestCanaries
from fedtrees.protocols.forest_settings import FOREST_FILE, checked_rows, class_count
from fedtrees.protocols.training import Training
from fedtrees.trees.files.forests import save_random_decision_forest
from fedtrees.trees.forest.random_decision import RandomDecisionForest, draw_splits, public_tests

#: Mechanism -> what the accountant knows it as (`fedtrees.privacy.accounting`).
MECHANISMS = {
    "geometric": "geometric",
    "published": "truncated-laplace",
    "majority": "exponential",
}
_MOST_LEAVES = 1 << 22


class CountingClient(Party):
    """A client that counts its rows in the leaves of trees that others drew."""

    role = "client"

    def __init__(self, name: str, data: Table, protocol: DPForest, n_classes: int) -> None:
        super().__init__(name)
        self.data, self.params = checked_rows(data, n_classes), protocol
        self.n_classes, self.asked = n_classes, Once()

    @handles(
        RandomTests,
        feature="the agreed number of trees of the agreed depth, with columns of the schema; "
        "answered once",
        threshold="one for each test",
    )
    def count(self, message: RandomTests) -> LeafClassCounts:
        """Answer once with class counts of all leaves, and a share of the noise if it is shared."""
        self.check_tests(message)
        self.asked.take(message)
        counts = message.splits().count(self.data.X, self.data.y, self.n_classes)
        if self.params.noise == "distributed" and self.params.noisy:
            rng, scale = self.streams.noise.rng("noise"), self.params.scale
            shares = self.params.shares(len(self.agreement.members("client")))
            counts = counts + discrete_laplace_share(scale, counts.shape, rng, shares)
        rows = len(self.data) if self.params.rows == "known" else 0
        return LeafClassCounts(counts, np.array([rows]))

    def check_tests(self, message: RandomTests) -> None:
        """Refuse tests of other trees than agreed: the noise is that of a fixed number of trees."""
        p, columns = self.params, self.data.X.shape[1]
        shape, feature = (p.trees, 2**p.depth - 1), message.feature
        rule = f"{p.trees} trees of depth {p.depth} have tests of shape {shape}"
        if feature.shape != shape or feature.dtype.kind != "i":
            refuse(message, "feature", rule)
        if (feature < 0).any() or (feature >= columns).any():
            refuse(message, "feature", f"columns are 0 to {columns - 1}")
        if message.threshold.shape != shape:
            refuse(message, "threshold", rule)

    @handles(
        PrivateForest,
        **dict.fromkeys(("feature", "threshold", "counts", "rows"), "not read"),
    )
    def take(self, message: PrivateForest) -> None:
        """Take note of the model."""


class DrawingServer(Coordinator):
    """The server: draws the tests, opens the sum of counts, adds noise where it is trusted to."""

    def __init__(self, protocol: DPForest, schema: Schema) -> None:
        super().__init__("server")
        self.params, self.schema = protocol, schema
        self.n_classes = class_count(schema)

    def train(self, net: Network) -> RandomDecisionForest:
        """Draw all trees, ask once for counts, release."""
        p = self.params
        splits = draw_splits(
            self.schema,
            p.depth,
            lambda tree: self.streams.rng("tests", tree),
            p.trees,
            bins=p.bins,
            repeats=p.repeats,
        )
        tests = RandomTests(splits.feature, splits.threshold)
        total = add_messages(net.ask("client", tests, why="class counts in the leaves"))
        assert isinstance(total, LeafClassCounts)
        if p.noisy:
            what = LeafClassCounts.__name__  # a row is in one leaf of every tree
            release = {"l1": 1, "scale": p.scale, "count": p.trees, "what": what}
            shares = p.noise_shares(len(net.members("client")))
            net.spend(MECHANISMS[p.mechanism], **release, **shares)
        counts = self.released(total.counts)
        forest = RandomDecisionForest(splits, counts, int(total.rows[0]))
        net.tell("client", PrivateForest.of(forest), why="the noisy counts: the model")
        return forest

    def released(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what is released of summed counts, int64, shape (T, 2^depth, K)."""
        p, rng = self.params, self.streams.noise.rng("noise")
        if p.mechanism == "majority":
            labels = permute_and_flip(counts, 1.0 / p.scale if p.noisy else math.inf, rng)
            return np.eye(self.n_classes, dtype=np.int64)[labels]
        if p.noise == "distributed" or not p.noisy:
            return counts
        return p.law.send(counts, rng)


@register.protocol("dp-forest")
@dataclass(frozen=True, kw_only=True)
class DPForest(Protocol):
    """Random decision trees with noisy class counts (Jagannathan et al. 2012).

    Tests are drawn from the schema alone, all rows are counted in the leaves of every tree, and
    the counts are released with noise. A row is in one leaf of each of T trees, which gives every
    tree ``epsilon / trees``. Clients answer once; every number needs a declared range.

    Parameters
    ----------
    epsilon : float
        In nats, for one row added or removed; inf: exact counts.
    trees, depth : int
        T, and tests on every path, 1 to 16.
    mechanism : {"geometric", "published", "majority"}
        ``geometric``: two-sided geometric noise on every count. ``published``: Laplace noise cut
        off toward 0, as Gorgé et al. (2025) attack it, which costs ``trees ln 2`` more than it
        claims. ``majority``: of a leaf its label alone, by permute-and-flip, as Holohan et al.
        (2019) do, who give every tree rows of its own.
    noise : {"central", "distributed"}
        ``central``: the server sees the exact sum (``secure-sum`` and ``masking`` hide whose rows
        they are) and adds the noise. ``distributed``: each client adds a share, only the sum is
        opened, and nobody is trusted with more than a share.
    colluders : int
        Number of colluding clients against whom `epsilon` holds if clients share the noise. A
        client knows its own share, so that the shares of m clients are scaled as if there were
        ``m - colluders`` of them. 0: `epsilon` holds for outsiders only.
    rows : {"known", "noised"}
        Whether the number of rows is told with the model, or left to what noisy counts say (the
        claim is about added or removed rows and says nothing of a number that is told).
    bins : int
        Of a number without declared cut points, 2 to 65534.
    repeats : bool
        Draw tests that the path has decided already, as the study does.
    """

    epsilon: float = 1.0
    trees: int = 10
    depth: int = 5
    mechanism: str = "geometric"
    noise: str = "central"
    rows: str = "known"
    bins: int = 32
    repeats: bool = False
    colluders: int = 1

    says: ClassVar[tuple[type[Message], ...]] = (RandomTests, LeafClassCounts, PrivateForest)
    noised: ClassVar[tuple[type[Message], ...]] = (LeafClassCounts,)
    adversaries: ClassVar[tuple[str, ...]] = ("public",)
    example: ClassVar[str] = "digits[rows=300]"  # its columns declare their range
    file: ClassVar[tuple[str, str]] = FOREST_FILE

    def __post_init__(self) -> None:
        number = isinstance(self.epsilon, int | float) and not isinstance(self.epsilon, bool)
        if not (number and self.epsilon > 0):
            raise UsageError(
                f"epsilon={self.epsilon!r}: give a number > 0, or inf for exact counts"
            )
        for name, low, high in (("trees", 1, 10_000), ("depth", 1, 16), ("bins", 2, 65534)):
            check_whole(name, getattr(self, name), low, high)
        if self.trees << self.depth > _MOST_LEAVES:
            raise UsageError(
                f"trees={self.trees} of depth={self.depth} have {self.trees << self.depth} leaves; "
                f"at most {_MOST_LEAVES} are counted: take fewer or smaller trees"
            )
        check_known("mechanism", self.mechanism, MECHANISMS)
        check_known("noise", self.noise, ("central", "distributed"))
        check_known("rows", self.rows, ("known", "noised"))
        check_flag("repeats", self.repeats)
        check_whole("colluders", self.colluders, 0)
        if self.noise == "distributed" and self.mechanism != "geometric":
            raise UsageError(
                f"noise=distributed: {self.mechanism} is no sum of shares; take "
                "mechanism=geometric, or noise=central"
            )

    def save(self, training: Training, path: Path) -> None:
        """Write the forest, with the noise that its counts carry."""
        noise = (self.mechanism, self.epsilon, training.noise_from)
        save_random_decision_forest(training.model, path, *noise, features=training.schema.features)

    @property
    def noisy(self) -> bool:
        """Whether there is any noise."""
        return math.isfinite(self.epsilon)

    @property
    def scale(self) -> float:
        """Scale of the noise on one count, ``trees / epsilon``."""
        return self.trees / self.epsilon

    @property
    def summed(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """Counts with shares of noise are summed securely: one share alone protects little."""
        return (LeafClassCounts,) if self.noise == "distributed" else ()

    @property
    def law(self) -> Laplace:
        """The noise on a count, where counts are released."""
        kind = TruncatedLaplace if self.mechanism == "published" else Laplace
        return kind(self.scale, whole=True)

    def laws(self, schema: Schema) -> Mapping[Place, Change]:
        """State the noise on released counts, and how clients share it."""
        released = (PrivateForest, "counts")
        if self.mechanism == "majority":
            return {released: Mechanism("of a leaf its label alone, by permute-and-flip")}
        if not self.noisy:
            return {}
        if self.noise == "central":
            return {released: self.law}
        share = Share(self.law, colluders=self.colluders)
        return {released: SumOfShares(share), (LeafClassCounts, "counts"): share}

    def shares(self, clients: int) -> int:
        """Return how many clients' shares add up to the noise of `scale`; 0: the server adds it.

        Raises `UsageError` if there are not more clients than `colluders`.
        """
        return honest_shares(clients, self.colluders) if self.noise == "distributed" else 0

    def noise_shares(self, clients: int) -> dict[str, Any]:
        """Return how a `BudgetEvent` describes who adds the noise."""
        if self.noise == "central":
            return {"trusted": "server"}
        return {"trusted": "clients", "shares": clients, "calibrated": self.shares(clients)}

    def check_parties(self, parties: int) -> None:
        """Refuse as many colluders as there are clients."""
        self.shares(parties)

    def exact(self) -> DPForest:
        """Return the same with exact sums."""
        return replace(self, epsilon=math.inf)

    def claim(self) -> Guarantee:
        """Return pure DP of the released model, as published; of exact counts nothing."""
        return self._guarantee(float(self.epsilon)) if self.noisy else NoGuarantee()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the ledger."""
        events = [e for e in transcript.events if e.what == LeafClassCounts.__name__]
        if not self.noisy:
            return NoGuarantee()
        return with_adversaries(self._guarantee(composed(events)), events)

    def _guarantee(self, epsilon: float) -> PureDP:
        unprotected = "rows" if self.rows == "known" else ""
        central = self.noise == "central"
        return PureDP(
            epsilon,
            unprotected=unprotected,
            trusted="server" if central else "clients",
            colluders=0 if central else self.colluders,
        )

    def canaries(self) -> ForestCanaries:
        """Make rows that leaf counts are looked at for."""
        return ForestCanaries(self.depth, self.mechanism, float(self.epsilon / self.trees))

    def worst_case(self, defense: Composition) -> tuple[DPForest, ForestCanaries]:
        """Spend all on one tree, of so many leaves that a row has one for itself."""
        deep = replace(self, trees=1, depth=ALONE_DEPTH, repeats=False)
        return deep, ForestCanaries(deep.depth, deep.mechanism, float(deep.epsilon), alone=True)

    def check(self, schema: Schema) -> None:
        """Refuse a target without classes, and columns that cannot be tested without a look."""
        class_count(schema)
        public_tests(schema, self.bins)

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> DrawingServer | CountingClient:
        """Make the server or a client."""
        if held is None:
            return DrawingServer(self, schema)
        return CountingClient(name, held.table, self, class_count(schema))
