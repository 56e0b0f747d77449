"""Protocol `dp-gbdt`: boosted trees with random splits and differentially private leaves.

The server draws all splits from public cut points. Clients send gradient sums in the leaves, to
which the server or the clients add discrete Gaussian noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Share, SumOfShares
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Channels
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import ApproximateDP, Guarantee, NoGuarantee, PureDP
from fedtrees.core.network import Network
from fedtrees.core.parameters import one_of, positive, share, whole
from fedtrees.core.party import handles
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.requests import Turns, check_equal, refuse
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import BudgetEvent, Transcript
from fedtrees.messages.horizontal import (
    CUT_MESSAGES,
    SOME_CUT_MESSAGES,
    SUMMARIES,
    BaseScore,
    CutPoints,
    CutsRequest,
    FeatureSketch,
    LeafSums,
    LeafSumsRequest,
    LeafValues,
    NodeSplits,
    exact_summaries,
)
from fedtrees.privacy.accounting import (
    compose_releases,
    for_each_party,
    trusted_with,
    with_adversaries,
)
from fedtrees.privacy.gaussian_dp import RowBound, clipped_row_bound, leaf_scales, mu_of
from fedtrees.privacy.mechanisms import discrete_gaussian_share
from fedtrees.privacy.noise import Gaussian
from fedtrees.protocols.base import Coordinator, ProtocolInfo, Seat
from fedtrees.protocols.cut_points import cut_plan_of, settle_cuts
from fedtrees.protocols.horizontal.histogram_parties import GrowingClient
from fedtrees.protocols.settings import NOISE, NoisySums, epsilon_or_inf
from fedtrees.trees.binning import Cuts, lower_sentinel, upper_sentinel
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.histogram import Bits, clip_to_int64, from_fixed, node_sums, to_fixed
from fedtrees.trees.boosted.losses import Objective, objective_of
from fedtrees.trees.boosted.noisy_leaves import (
    bounded,
    complete_tree,
    noisy_leaf_values,
    places_for,
)
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.forest.random_decision import (
    RandomSplits,
    draw_splits,
    public_tests,
    undeclared,
)
from fedtrees.trees.partition import RowPartition

#: Reason why a client of `dp-gbdt` need not check the splits of a tree.
_ANY_TREE = "any: a row is in one leaf of each tree, and its gradient is bounded whatever it is"


class LeafNoise(NamedTuple):
    """Bounds on the contribution of a row to the sums of leaves, and the noise on these sums.

    Attributes
    ----------
    norms : (float, float)
        Largest Euclidean norms of a row's gradients and of its hessians. Infinite without noise.
    bound : RowBound
        Bound on the contribution to the sums of one round.
    scales : (float, float)
        Scales of the noise on sums of gradients and of hessians.
    bits : (int, int)
        Binary places of sums of gradients and of hessians.
    """

    norms: tuple[float, float]
    bound: RowBound
    scales: tuple[float, float]
    bits: Bits


class LeafClient(GrowingClient):
    """A client that sums the gradients of its rows in the leaves of trees that the server drew.

    It answers one request per tree, for all leaves in order, after the splits of all levels. The
    number of noise shares, their scale and the units of sums follow from its copy of the agreement.
    """

    def __init__(self, seat: Seat, protocol: DPGBDT) -> None:
        super().__init__(seat.name, seat.table)
        if self.data.weight is not None:
            raise DataError(
                "dp-gbdt bounds the contribution of a row and does not support sample weights; "
                "drop the weights"
            )
        self.params, self.objective = protocol, protocol.objective_for(seat.schema)
        self.objective.check(self.data.y)
        self.noise = protocol.leaf_noise(self.objective)
        # Budget and noise cover exactly this number of trees. Each can be started and released
        # once. The level is that after a finished tree, so that a split starts a new one.
        trees = protocol.trees * self.objective.n_outputs
        self.grown, self.asked = Turns(trees), Turns(trees)
        self.tree, self.level = -1, protocol.max_depth

    @handles(
        BaseScore,
        margin="the agreed base score",
        g_bits="as computed from the agreed norm and noise of gradients",
        h_bits="as computed from the agreed norm and noise of hessians",
    )
    def store_base_score(self, message: BaseScore) -> None:
        """Store the initial prediction, after comparing it with the agreed score and units."""
        margin = self.objective.base_margin(self.params.base_score)
        check_equal(message, "margin", margin, "the start of every prediction")
        g_bits, h_bits = self.noise.bits
        check_equal(message, "g_bits", g_bits, "the number of binary places")
        check_equal(message, "h_bits", h_bits, "the number of binary places")
        super().store_base_score(message)

    @handles(
        NodeSplits,
        tree="in order, at most the agreed trees",
        nodes="each level once, whole and in order, down to the agreed `max_depth`",
        left="two children for each node, numbered as in a complete tree",
        feature="a column of the schema",
        bin="a bin of that column",
        threshold="not read: rows move by `bin`",
        categories="none",
        **dict.fromkeys(("default_left", "g", "h", "gain"), _ANY_TREE),
    )
    def split(self, message: NodeSplits) -> None:
        """Move rows to the children. The first split of a tree starts the tree."""
        if message.tree != self.tree or self.level == self.params.max_depth:
            self.grown.take(message, "tree")
            if self.tree != self.asked.last:
                refuse(message, "tree", f"the leaves of tree {self.tree} were not asked for yet")
            self.start_tree(message.tree)
        # In heap order, level l of a complete tree has the numbers 2^l - 1 to 2^(l + 1) - 2.
        nodes = np.arange(2**self.level - 1, 2 ** (self.level + 1) - 1, dtype=np.int32)
        check_equal(message, "nodes", nodes, "the next level of the tree")
        check_equal(message, "left", 2 * nodes + 1, "the left child of each node")
        self.check_tests(message)
        self.level += 1
        super().split(message)

    def check_tests(self, message: NodeSplits) -> None:
        """Refuse splits by columns or bins that do not exist."""
        feature, bins = message.feature, self.cuts.n_bins
        size = len(message.nodes)
        integral = all(a.dtype.kind == "i" for a in (feature, message.bin))
        if feature.shape != (size,) or not integral or (feature < 0).any():
            refuse(message, "feature", "each node has one column of the schema")
        if (feature >= len(bins)).any():
            refuse(message, "feature", f"columns are 0 to {len(bins) - 1}")
        if message.bin.shape != (size,) or (message.bin < 0).any():
            refuse(message, "bin", "each node has one bin of its column")
        if (message.bin >= bins[feature]).any():
            refuse(message, "bin", "each node has one bin of its column")
        if message.categories is not None or message.default_left.shape != (size,):
            refuse(message, "categories", "trees contain one threshold at each node")

    def start_tree(self, tree: int) -> None:
        """Put all rows into the root, and compute the gradients once per round."""
        self.tree, self.level, self.partition = tree, 0, RowPartition(len(self.data))
        # All trees of a round use the gradients at the start of the round, as in XGBoost.
        if tree % self.objective.n_outputs == 0:
            gh = clip_to_int64(self.objective.gradients(self.margin, self.data.y), self.bits)
            bound = self.noise.bound
            units = to_fixed(gh, self.bits)
            if math.isinf(bound.norm):
                self._check_sums(units)
            self.gradients = bounded(units, bound.norm, bound.ratio, self.bits)

    def _check_sums(self, units: NDArray[np.int64]) -> None:
        """Refuse gradients whose sum over all clients may not fit an int64.

        This is possible only without noise and without a clip, for numeric targets in the billions.
        The sum would wrap around, and the model would be meaningless.

        Raises
        ------
        DataError
            If the absolute values add up to more than the share of one client.
        """
        clients = len(self.agreement.members("client"))
        largest = np.abs(units.astype(np.float64)).sum(axis=1).max(initial=0.0)
        if not largest * clients < 2.0**63:
            raise DataError(
                "gradients are too large for sums of 64 bits: express the target in a larger unit, "
                "or give `clip`"
            )

    @handles(
        LeafSumsRequest,
        tree="the tree of the last splits; each tree once, in order, at most the agreed trees",
        nodes="all leaves of the tree, in order",
    )
    def leaf_sums(self, message: LeafSumsRequest) -> LeafSums:
        """Answer with the sums of all leaves, plus a noise share if clients add the noise."""
        if message.tree != self.tree or self.level != self.params.max_depth:
            refuse(message, "tree", "leaves are asked for when all splits of their tree were sent")
        leaves = 2**self.level - 1 + np.arange(2**self.level, dtype=np.int32)
        check_equal(message, "nodes", leaves, "the list of leaves")
        self.asked.take(message, "tree")
        gh = self.gradients[self.tree % self.objective.n_outputs]
        sums = node_sums(gh, self.partition.rows, self.partition.ranges(message.nodes))
        # Client i adds a share whose sum over all honest clients has the calibrated distribution.
        if self.params.noise == "distributed" and self.params.noisy:
            rng = self.streams.noise.rng("noise", message.tree)
            shares = self.params.shares(len(self.agreement.members("client")))
            for part, (scale, places) in enumerate(zip(self.noise.scales, self.bits, strict=True)):
                # Discrete noise on the fixed-point grid is added exactly, without floating-point
                # leaks.
                grid = math.ldexp(scale, places)
                sums[:, part] += discrete_gaussian_share(grid, len(sums), rng, shares)
        return LeafSums(message.tree, sums)

    @handles(
        LeafValues,
        value="finite and at most 1e30 in size; the gradient of a row is bounded whatever it is",
        **dict.fromkeys(("nodes", "g", "h"), _ANY_TREE),
    )
    def end_tree(self, message: LeafValues) -> None:
        """Add the leaf values to the predictions, once for every tree."""
        if self.asked.last != self.tree:
            refuse(message, "tree", f"the leaves of tree {self.tree} were not asked for yet")
        super().end_tree(message)


class RandomTreeServer(Coordinator):
    """The server. It draws the splits, adds noise if it is trusted to, and computes leaf values."""

    def __init__(self, seat: Seat, protocol: DPGBDT) -> None:
        super().__init__(seat.name)
        self.params, self.schema = protocol, seat.schema
        self.objective = protocol.objective_for(seat.schema)
        self.noise = protocol.leaf_noise(self.objective)

    def train(self, net: Network) -> Forest:
        """Draw all trees, then request the sums in the leaves of one tree after the other."""
        p = self.params
        self.cuts = self.settle_cuts(net)
        splits = self.draw()
        start = BaseScore(self.objective.base_margin(p.base_score), *self.noise.bits)
        sent = net.send("client", start, reason="the fixed start of every prediction")
        if p.noisy:
            # Gradients and hessians form one vector, each in units of its noise scale. The event
            # expresses it in grid steps of the narrower noise.
            noise = self.noise
            steps = float(np.ldexp(noise.scales, noise.bits).min())
            l2 = steps * noise.bound.norm / noise.scales[0]
            what = LeafSums.__name__
            release = {"l2": l2, "scale": steps, "count": p.trees, "what": what}
            net.record_release(
                "discrete-gaussian", **release, **p.noise_shares(len(net.members("client")))
            )
        trees = [self.grow(net, tree, splits) for tree in range(len(splits.feature))]
        return Forest(tuple(trees), sent.margin, self.objective)

    def settle_cuts(self, net: Network) -> Cuts:
        """Broadcast the declared cut points, or agree on cut points as the defenses require."""
        # A defense can determine cut points by counts with noise instead of declared ones.
        if cut_plan_of(net) is not None:
            return settle_cuts(net, "public", self.params.max_bin, self.schema)
        tests = public_tests(self.schema, self.params.max_bin)
        low, high = self.schema.ranges
        for k, feature in enumerate(self.schema.features):
            if feature.cuts:
                low[k], high[k] = feature.cuts[0], feature.cuts[-1]
        # Sentinels just beyond the declared range close the outer bins.
        values = [np.append(t, upper_sentinel(end)) for t, end in zip(tests, high, strict=True)]
        cuts = Cuts.join(values, [lower_sentinel(end) for end in low])
        message = CutPoints(cuts.values, cuts.offsets, cuts.minimum, cuts.categorical)
        net.send("client", message, reason="cut points from the declared ranges")
        return cuts

    def draw(self) -> RandomSplits:
        """Draw the splits of all trees.

        Columns take turns, in an order that is drawn again in every turn.
        """
        p, d = self.params, len(self.schema.features)
        tests = [self.cuts.of(f)[:-1] for f in range(d)]
        usable = np.flatnonzero([len(t) > 0 for t in tests])
        if not len(usable):
            raise DataError(
                "no column can be split, because every column has a single bin: the columns are "
                "constant, or the noise of the cut points merged their bins; give a larger epsilon "
                "for the cut points (dp-grid-cuts[epsilon=...]) or more rows"
            )
        # Columns without two distinct values cannot be split and are left out.
        trees, n_columns = p.trees * self.objective.n_outputs, p.features_per_tree or len(usable)
        rng = self.streams.rng("columns")
        # Enough permutations that each column occurs equally often, up to one turn.
        turns = [rng.permutation(usable) for _ in range(-(-trees * n_columns // len(usable)))]
        columns = np.zeros((trees, d), dtype=bool)
        tree_of_turn = np.repeat(np.arange(trees), n_columns)
        columns[tree_of_turn, np.concatenate(turns)[: len(tree_of_turn)]] = True
        return draw_splits(
            self.schema,
            p.max_depth,
            lambda tree: self.streams.rng("tests", tree),
            trees,
            tests=tests,
            columns=columns,
        )

    def grow(self, net: Network, tree: int, splits: RandomSplits) -> Tree:
        """Broadcast the splits of a tree, then the noisy sums and values of its leaves.

        Parameters
        ----------
        net : Network
            Network of the run.
        tree : int
            Number of the tree.
        splits : RandomSplits
            Splits of all trees.

        Returns
        -------
        tree : Tree
            The tree as released.
        """
        feature, threshold = splits.feature[tree], splits.threshold[tree]
        for level in range(splits.depth):
            level_nodes = slice(2**level - 1, 2 ** (level + 1) - 1)
            self.tell_splits(net, tree, level_nodes, feature[level_nodes], threshold[level_nodes])
        nodes = np.arange(len(feature), 2 * len(feature) + 1, dtype=np.int32)
        request = LeafSumsRequest(tree, nodes)
        total = net.request_sum("client", request, reason="gradient sums in the leaves")
        sums = self.released(total)
        # The leaf values are shrunk by the noise that the sums really contain, including excess
        # shares.
        deviation = self.noise.scales[0] * math.sqrt(self.params.excess(len(net.members("client"))))
        value = noisy_leaf_values(sums, self.params.tree_params, self.noise.bits, deviation)
        g, h = from_fixed(sums, self.noise.bits).T
        sent = net.send(
            "client", LeafValues(tree, nodes, value, g, h), reason="the noisy sums and leaf values"
        )
        # A defense may have removed the statistics, so that the released tree must not contain
        # them.
        statistics = (
            None if sent.g is None or sent.h is None else np.stack([sent.g, sent.h], axis=1)
        )
        return complete_tree(feature, threshold, sent.value, statistics)

    def tell_splits(
        self,
        net: Network,
        tree: int,
        here: slice,
        feature: NDArray[np.int32],
        threshold: NDArray[np.float32],
    ) -> None:
        """Broadcast the splits of one level.

        Parameters
        ----------
        net : Network
            Network of the run.
        tree : int
            Number of the tree.
        here : slice
            Numbers of the level's nodes.
        feature : int32 array, shape (k,)
            Columns of the splits.
        threshold : float32 array, shape (k,)
            Thresholds of the splits.
        """
        nodes = np.arange(here.start, here.stop, dtype=np.int32)
        bins = [
            np.searchsorted(self.cuts.of(f), t) for f, t in zip(feature, threshold, strict=True)
        ]
        message = NodeSplits(
            tree=tree, nodes=nodes, feature=feature, bin=np.array(bins, dtype=np.int32),
            threshold=threshold, default_left=np.ones(len(nodes), dtype=bool), left=2 * nodes + 1,
        )  # fmt: skip
        net.send("client", message, reason="splits that were drawn without a look at data")

    def released(self, total: LeafSums) -> NDArray[np.int64]:
        """Return the released sums of the leaves, int64, shape (k, 2)."""
        if self.params.noise == "distributed" or not self.params.noisy:
            return total.sums
        law = Gaussian(self.noise.scales).in_units_of(np.ldexp(1.0, self.noise.bits))
        return law.send(total.sums, self.streams.noise.rng("noise", total.tree))


@register.protocol("dp-gbdt")
@dataclass(frozen=True, kw_only=True)
class DPGBDT(NoisySums):
    """Boosted trees with random splits and differentially private Newton leaves.

    Splits are drawn from public cut points, so that only the gradient and hessian sums in the
    leaves are released, with discrete Gaussian noise. A row is in one leaf of every tree, and all
    rounds compose exactly (`fedtrees.privacy.gaussian_dp`). Totally random trees are those of
    Maddock et al. (2022). A few columns per tree, in turns, generalise Nori et al. (2021), who use
    one column.

    Parameters
    ----------
    epsilon, delta : float
        Budget of all sums, for one row added or removed. epsilon is in nats, inf means exact sums.
        The claim adds the budget that a defense spends on cut points.
    trees : int
        Number of boosting rounds. Each round grows one tree, or one tree per class if there are
        more than two classes.
    max_depth : int
        Number of splits on every path, 1 to 12.
    features_per_tree : int
        Number of columns that a tree may use, in turns. 0 for all.
    learning_rate, reg_lambda, min_child_weight, max_bin, base_score, objective
        As in the other boosting protocols, except that the base score is a public number.
    hessian_share : float or None
        Share of the squared mu that is spent on hessians. None for the share that costs nothing,
        because a row with a large gradient has a small hessian, or for one fifth if the target is
        numeric.
    clip : float or None
        Bound on the Euclidean norm of a row's gradients of one round. None for the bound of the
        loss. A numeric target needs a bound, in its units.
    noise : {"central", "distributed"}
        ``central``: the server receives exact sums (``secure-sum`` and ``masking`` hide the
        contribution of each client) and adds the noise. ``distributed``: each client adds a share
        of the noise, and only the sum is decrypted.
    colluders : int
        Number of colluding clients against whom `epsilon` holds if clients share the noise. A
        client knows its own share, so that the shares of m clients are scaled as if there were ``m
        - colluders`` of them. The released sums then contain ``m / (m - colluders)`` times the
        variance that outsiders need. 0: `epsilon` holds for outsiders only.
    """

    epsilon: float = epsilon_or_inf(1.0)
    delta: float = share(1e-5)
    trees: int = whole(1, 100_000, default=200)
    max_depth: int = whole(1, 12, default=4)
    features_per_tree: int = whole(0, 2**31 - 1, default=2)
    learning_rate: float = 0.2
    reg_lambda: float = 1.0
    min_child_weight: float = 1.0
    max_bin: int = 32
    base_score: float = 0.5
    objective: str | None = None
    hessian_share: float | None = share(None)
    clip: float | None = positive(None)
    noise: str = one_of(NOISE, default="central")
    colluders: int = whole(0, default=1)

    noisy_sums = LeafSums
    info = ProtocolInfo(
        message_types=(
            *(m for m in CUT_MESSAGES if m is not FeatureSketch),
            BaseScore,
            NodeSplits,
            LeafSumsRequest,
            LeafSums,
            LeafValues,
        ),
        conditional_types={
            **SOME_CUT_MESSAGES,
            CutsRequest: "a defense settles cut points",
        },
        noised_types=(LeafSums,),
        adversaries=("public",),
        example_dataset="digits[rows=300]",  # all columns declare a range
    )
    party_types = {"server": RandomTreeServer, "client": LeafClient}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base_score is None:
            raise UsageError("base_score=None: give a number; the label mean would not be private")
        _ = self.tree_params  # `TreeParams` checks the remaining parameters

    @property
    def tree_params(self) -> TreeParams:
        """Parameters of the tree engine."""
        return TreeParams(
            trees=self.trees, max_depth=self.max_depth, learning_rate=self.learning_rate,
            reg_lambda=self.reg_lambda, min_child_weight=self.min_child_weight,
            max_bin=self.max_bin, base_score=self.base_score,
        )  # fmt: skip

    def objective_for(self, schema: Schema) -> Objective:
        """Return the loss function for a target."""
        return objective_of(self.objective, schema.classes)

    def leaf_noise(self, objective: Objective) -> LeafNoise:
        """Return the bounds on a row and the noise on the sums of leaves that follows from them.

        Raises
        ------
        UsageError
            If there is noise, and neither the loss nor `clip` bounds the gradients.
        """
        norms = self._norms(objective)
        bound = clipped_row_bound(
            objective.norms,
            free=objective.free,
            noisy=self.noisy,
            clip=self.clip,
            share=self.hessian_share,
        )
        scales = leaf_scales(bound, epsilon=self.epsilon, delta=self.delta, rounds=self.trees)
        g, h = map(max, zip(norms, scales, strict=True))
        return LeafNoise(norms, bound, scales, (places_for(g), places_for(h)))

    def _norms(self, objective: Objective) -> tuple[float, float]:
        """Return the bounds on the norms of a row's gradients and hessians. Infinite without noise.

        Raises `UsageError` if there is noise, and the gradients have no bound.
        """
        g, h = objective.norms if self.noisy else (math.inf, math.inf)
        # A clip above the bound of the loss changes nothing, so that the smaller bound determines
        # noise.
        g = g if self.clip is None else min(g, self.clip)
        if self.noisy and math.isinf(g):
            raise UsageError(
                f"clip=None: gradients of {objective.name} are unbounded; give a bound "
                "in units of the target"
            )
        return g, h

    def noise_channels(self, schema: Schema) -> Channels:
        """Return the noise on the released sums of leaves, or its division among the clients."""
        if not self.noisy:
            return {}
        g, h = self.leaf_noise(self.objective_for(schema)).scales
        if self.noise == "central":
            return {(LeafValues, "g"): Gaussian(g), (LeafValues, "h"): Gaussian(h)}
        return {
            (LeafValues, "g"): SumOfShares(Share(Gaussian(g), colluders=self.colluders)),
            (LeafValues, "h"): SumOfShares(Share(Gaussian(h), colluders=self.colluders)),
            (LeafSums, "sums"): Share(Gaussian((g, h)), colluders=self.colluders),
        }

    def excess(self, clients: int) -> float:
        """Return the variance of the noise in the released sums, relative to `leaf_noise`."""
        shares = self.shares(clients)
        return clients / shares if shares else 1.0

    def claim(self) -> Guarantee:
        """Return the (epsilon, delta) guarantee of the released model. None for exact sums."""
        if not self.noisy:
            return NoGuarantee()
        return self._guarantee(float(self.epsilon), (), [self._leaf_event()])

    def claim_with(self, defense: Composition) -> Guarantee:
        """Compose the claim with the cost of cut points.

        Cut points without a bound are unprotected.
        """
        plan = defense.cut_plan()
        if not self.noisy or plan is None or plan.method == "public":
            return self.claim()
        claims = [c for c in defense.claims() if isinstance(c, PureDP) and c.unit == "cuts"]
        if not claims:
            return self._guarantee(math.inf, ("cuts",))
        events = [self._leaf_event()]
        for cuts in claims:
            release = ("", "exponential", cuts.epsilon, 1.0, "cuts")
            events.append(BudgetEvent(*release, trusted="+".join(cuts.trusted)))
        colluders = [c.colluders for c in claims if "clients" in c.trusted]
        return self._guarantee(compose_releases(events, self.delta), (), events, colluders)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the recorded privacy losses, including those of noisy cut points."""
        if not self.noisy:
            return NoGuarantee()
        # Summaries without noise make the cut points depend on rows without any bound.
        if exact_summaries(transcript):
            return self._guarantee(math.inf, ("cuts",))
        leaves = [e for e in transcript.events if e.what == LeafSums.__name__]
        cuts = [e for e in transcript.events if e.what in {t.__name__ for t in SUMMARIES}]
        # Leaf sums cover the rows of all clients, a summary only the rows of one client.
        events = for_each_party(leaves, cuts)
        return self._guarantee(compose_releases(events, self.delta), (), events)

    def _leaf_event(self) -> BudgetEvent:
        """Return all releases of leaf sums as one event, for an unknown number of clients."""
        mu = mu_of(self.epsilon, self.delta)
        trusted = "server" if self.noise == "central" else "clients"
        return BudgetEvent("", "gaussian", 0.0, 1.0, LeafSums.__name__, l2=mu, trusted=trusted)

    def _guarantee(
        self,
        epsilon: float,
        unprotected: tuple[str, ...],
        events: Sequence[BudgetEvent] = (),
        colluders: Sequence[int] = (),
    ) -> ApproximateDP:
        """Return a guarantee. The number of rows is public in every run (`View.n_rows`)."""
        trusted = trusted_with(events, "server" if self.noise == "central" else "clients")
        shared = [self.colluders] if self.noise == "distributed" else []
        bare = ApproximateDP(
            epsilon,
            self.delta,
            unprotected=("rows", *unprotected),
            trusted=trusted,
            colluders=min([*shared, *colluders], default=0),
        )
        return with_adversaries(bare, events)

    def check(self, schema: Schema) -> None:
        """Refuse a target that the objective does not suit, or gradients without a bound."""
        objective = self.objective_for(schema)
        objective.base_margin(self.base_score)
        self._norms(objective)

    def missing_requirement(self, schema: Schema, defense: Composition) -> Reason | None:
        """Return why there are no public cut points, unless a defense determines them."""
        if defense.cut_plan() is not None:
            return super().missing_requirement(schema, defense)
        bare = undeclared(schema)
        return bare and Reason("no-tests", **dict(bare.args))
