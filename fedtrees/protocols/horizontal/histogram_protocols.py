"""The protocols `fedtree-hist`, `nvflare-hist` and `federboost-h`: trees from summed histograms.

They differ in the party that finds the splits and in the statistics that all clients receive. In
`fedtree-hist` the server finds splits and broadcasts them with statistics. In `nvflare-hist` the
server broadcasts the summed histograms and every client finds the splits. In `federboost-h` the
sums are computed securely and the splits are broadcast without statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.defense import XGBOOST, Deployed
from fedtrees.core.errors import DataError, UsageError, check_known
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.parameters import flag, whole
from fedtrees.core.party import handles, ignores
from fedtrees.core.registry import register
from fedtrees.core.requests import check_equal
from fedtrees.core.schema import Schema
from fedtrees.core.streams import Streams
from fedtrees.messages.horizontal import (
    CUT_MESSAGES,
    SOME_CUT_MESSAGES,
    BaseScore,
    CutsRequest,
    FeatureRanges,
    FeatureSketch,
    GlobalHistogram,
    GridCounts,
    GridRequest,
    Histogram,
    HistogramRequest,
    LabelSums,
    LabelSumsRequest,
    LeafValues,
    NodeSplits,
    StopBoosting,
    ValidationLoss,
    ValidationRequest,
)
from fedtrees.protocols.base import ProtocolInfo
from fedtrees.protocols.cut_points import CUT_METHODS
from fedtrees.protocols.horizontal.histogram_parties import (
    DecidingServer,
    HistogramClient,
    HistogramServer,
)
from fedtrees.protocols.settings import SubsampledBoosting
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeGrower


@dataclass(frozen=True, kw_only=True)
class HistogramProtocol(SubsampledBoosting):
    """Boosted trees grown from summed histograms: parameters of the engine, and the following.

    A `base_score` of None is the mean label from a secure sum (as estimated by XGBoost >= 2). A
    number such as 0.5 reveals nothing.

    Parameters
    ----------
    cuts : {"sketch", "xgboost", "equal-width", "public"}
        Cut points from merged client sketches (evenly spaced in rank, or pruned as in XGBoost),
        equal-width cut points from the pooled ranges (FedTree), or equal-width cut points from the
        declared public ranges, which reveal nothing.
    enable_categorical : bool
        Split categorical features by sets of categories, as XGBoost does. Each needs declared
        category names. If False, their codes are numbers and split by thresholds.
    early_stopping_rounds : int
        Stop after this number of rounds without a smaller loss on validation rows, and return the
        model of the best round. 0 for no early stopping. Every round then needs one secure sum of
        losses.
    validation_fraction : float
        Probability with which each row of a client is a validation row, in (0, 1).
    """

    cuts: str = "sketch"
    enable_categorical: bool = flag(False)
    early_stopping_rounds: int = whole(0, default=0)
    validation_fraction: float = 0.1

    info = ProtocolInfo(
        message_types=(
            *CUT_MESSAGES, LabelSumsRequest, LabelSums, BaseScore, HistogramRequest,
            Histogram, ValidationRequest, ValidationLoss, StopBoosting,
        ),
        conditional_types={
            **SOME_CUT_MESSAGES,
            **dict.fromkeys(
                (ValidationRequest, ValidationLoss, StopBoosting), "early_stopping_rounds is not 0"
            ),
        },
        capabilities=frozenset({"transform_examples", "allowed_splits", "gradient_clip"}),
    )  # fmt: skip
    summed_types: ClassVar[tuple[type[Message], ...]] = (LabelSums, ValidationLoss)
    cut_methods: ClassVar[tuple[str, ...]] = CUT_METHODS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("cuts", self.cuts, self.cut_methods)
        share = self.validation_fraction
        if not isinstance(share, float) or not 0 < share < 1:
            raise UsageError(f"validation_fraction={share!r}: give a number between 0 and 1")

    def validation_rows(self, n: int, streams: Streams) -> NDArray[np.bool_]:
        """Return which of a client's rows are validation rows.

        Rows are drawn independently, so that a further row does not change the draw of any other
        row. The privacy accounting of `laplace-hist` relies on this.

        Parameters
        ----------
        n : int
            Number of rows of the client.
        streams : Streams
            Randomness of the client.

        Returns
        -------
        mask : bool array, shape (n,)
            True for the validation rows.
        """
        if not self.early_stopping_rounds:
            return np.zeros(n, dtype=bool)
        return np.asarray(streams.rng("validation").random(n) < self.validation_fraction)

    def training_rows(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_] | None:
        """Return the rows of a round: neither validation rows nor left out by subsampling.

        Parameters
        ----------
        n : int
            Number of rows of the client.
        streams : Streams
            Randomness of the client.
        round : int
            Round of boosting.
        defense : Composition or None
            Not used.

        Returns
        -------
        mask : bool array, shape (n,), or None
            True for the rows that the round uses. None if it uses all rows.
        """
        drawn = super().training_rows(n, streams, round, defense)
        if not self.early_stopping_rounds:
            return drawn
        # Validation rows are excluded from every round, rows that are not drawn only from this one.
        remaining = ~self.validation_rows(n, streams)
        return remaining if drawn is None else remaining & drawn

    def grower(self, cuts: Cuts, root: Histogram | GlobalHistogram, schema: Schema) -> TreeGrower:
        """Return a grower of one tree, which the server and clients create from the same sums.

        Parameters
        ----------
        cuts : Cuts
            Cut points of the run.
        root : Histogram or GlobalHistogram
            Sums over all clients in the root.
        schema : Schema
            Columns and target.

        Returns
        -------
        grower : TreeGrower
            It starts with the root.
        """
        unbounded = math.isinf(self.objective_for(schema).bounds[0])
        return TreeGrower(
            cuts, self, root.totals[0],
            bits=root.bits, complete=schema.complete, unbounded=unbounded,
        )  # fmt: skip

    def category_counts(self, schema: Schema) -> NDArray[np.int32]:
        """Return the number of categories of each feature that is split by categories, 0 otherwise.

        Parameters
        ----------
        schema : Schema
            Columns and target.

        Returns
        -------
        counts : int32 array, shape (d,)
            Number of categories of each feature.

        Raises
        ------
        DataError
            If a categorical feature does not declare its categories.
        """
        native = schema.categorical & self.enable_categorical
        counts = np.array([len(f.categories) for f in schema.features], dtype=np.int32)
        # The number of categories must be public, because it determines the bins of all clients.
        for k in np.flatnonzero(native & (counts == 0)):
            raise DataError(
                f"feature {schema.names[k]!r} is categorical and declares no categories: name them "
                "in the schema, or leave out enable_categorical"
            )
        return np.where(native, counts, 0).astype(np.int32)


@register.protocol("fedtree-hist")
@dataclass(frozen=True, kw_only=True)
class FedTreeHist(HistogramProtocol):
    """FedTree's horizontal boosting (Li et al. 2023), as attacked by Di Gennaro et al. (2025).

    Clients send gradient histograms. The server sums them and broadcasts the chosen split of each
    node with the gradient sum G and hessian sum H, and the leaf values. The default of `max_bin` is
    FedTree's 32. FedTree's base score of 0.5 and equal-width cut points correspond to
    ``base_score=0.5,cuts=equal-width``.
    """

    max_bin: int = 32

    info = replace(
        HistogramProtocol.info,
        message_types=(*HistogramProtocol.info.message_types, NodeSplits, LeafValues),
    )
    party_types = {"server": DecidingServer, "client": HistogramClient}


class AllReduceClient(HistogramClient):
    """A client that receives all histogram sums and grows the same tree as all other parties."""

    note = ignores(FeatureSketch)  # the merged cut points follow

    @handles(
        GlobalHistogram,
        tree="the tree that is grown",
        **dict.fromkeys(
            ("nodes", "sums", "totals", "g_bits", "h_bits", "allowed"),
            "any: the later splits must comply with the rules of `NodeSplits`",
        ),
    )
    def follow(self, message: GlobalHistogram) -> None:
        """Find the splits of a level from the global sums, and move the rows.

        Parameters
        ----------
        message : GlobalHistogram
            Histograms summed over all clients. Those of a root start a tree.

        Raises
        ------
        BeyondParametersError
            If the sums are those of another tree, or if the public parameters exclude the splits.
        """
        check_equal(message, "tree", self.tree, "the tree that is grown")
        # Only the histogram of a root has totals. It starts a new tree.
        if message.totals.size:
            self.grower = self.params.grower(self.cuts, message, self.schema)
        self.follow_splits(self.grower.choose_splits(message.sums, message.allowed))
        if not len(self.grower.nodes):
            tree = self.grower.finish()
            leaves = tree.leaves.astype(np.int32)
            margin = self.margin[self.tree % self.objective.n_outputs]
            self.partition.add_to(margin, leaves, tree.value[leaves])
            self.last_finished_tree = self.tree


class AllReduceServer(HistogramServer):
    """A server that broadcasts sums. It finds the same splits as every client."""

    gathers_sketches: ClassVar[bool] = True

    def share_level(
        self,
        net: Network,
        grower: TreeGrower,
        total: Histogram,
        mask: NDArray[np.bool_] | None,
    ) -> None:
        """Broadcast the summed histograms.

        Parameters
        ----------
        net : Network
            Network of the run.
        grower : TreeGrower
            Split finder with the open nodes.
        total : Histogram
            Summed histograms.
        mask : bool array or None
            Permitted splits, None for all.
        """
        message = GlobalHistogram(**vars(total), allowed=mask)
        reason = "summed histograms: every client finds the splits itself"
        sent = net.send("client", message, reason=reason)
        # A defense may have changed the sums. Server and clients must decide from the same ones.
        grower.choose_splits(sent.sums, sent.allowed)

    def share_tree(self, net: Network, grower: TreeGrower, tree: int) -> Tree:
        """Return the tree. Nothing is sent, because the clients compute the leaf values.

        Parameters
        ----------
        net : Network
            Network of the run.
        grower : TreeGrower
            Grower of the finished tree.
        tree : int
            Number of the tree.

        Returns
        -------
        Tree
            The finished tree.
        """
        return grower.finish()


@register.protocol("nvflare-hist")
@dataclass(frozen=True, kw_only=True)
class NVFlareHist(HistogramProtocol):
    """NVFlare's histogram-based XGBoost: an all-reduce of gradient histograms.

    The messages follow the notes of the published artefact (Di Gennaro et al. 2025): every client
    receives the summed histogram of every candidate node. Before the first tree, with
    ``cuts=sketch``, every client receives the sketches of all clients for every column, as XGBoost
    sends them (`GatherSketchInfo` in ``src/common/quantile.cc`` of XGBoost 3.2).
    """

    info = replace(
        HistogramProtocol.info,
        message_types=(*HistogramProtocol.info.message_types, GlobalHistogram),
        deployments={
            "xgboost": Deployed(
                "a federated server (xgboost.federated); workers load DMatrix(..., "
                "data_split_mode=DataSplitMode.ROW)",
                XGBOOST,
            ),
            "nvflare": Deployed(
                "XGBFedController(data_split_mode=0, xgb_params={...}, ...)",
                {**XGBOOST, "trees": "num_rounds={}"},
            ),
        },
    )
    party_types = {"server": AllReduceServer, "client": AllReduceClient}


class SummingServer(DecidingServer):
    """A server that broadcasts splits and leaf values without their statistics."""

    sends_statistics = False


@register.protocol("federboost-h")
@dataclass(frozen=True, kw_only=True)
class FederBoostH(FedTreeHist):
    """FederBoost (Tian et al. 2020), horizontal: only sums over clients are decrypted.

    Quantiles are computed from sums of counts of rows below a value. The paper uses a binary search
    for each quantile. Here the rows are counted twice in the cells of a grid, as in the defense
    `grid-cuts`. Histograms are summed securely (ideal functionality). The server broadcasts splits
    and leaf values.

    Parameters
    ----------
    cuts : {"grid", "public"}
        Cut points from sums of counts, or declared ones.
    """

    cuts: str = "grid"

    # Clients send counts on a grid instead of summaries.
    info = replace(
        FedTreeHist.info,
        message_types=tuple(
            kind
            for kind in FedTreeHist.info.message_types
            if kind not in (CutsRequest, FeatureSketch, FeatureRanges)
        ),
        conditional_types={
            kind: when
            for kind, when in FedTreeHist.info.conditional_types.items()
            if kind not in (FeatureRanges, GridRequest, GridCounts)
        },
    )
    summed_types: ClassVar[tuple[type[Message], ...]] = (
        LabelSums, ValidationLoss, Histogram, GridCounts,
    )  # fmt: skip
    party_types = {**FedTreeHist.party_types, "server": SummingServer}
    cut_methods: ClassVar[tuple[str, ...]] = ("grid", "public")
