"""The registered attacks that infer labels from record ids.

All attacks extend `LeafAttack`, which collects the visible leaves of a view. They differ in the
method that clusters the rows.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.labels.communities import Twins, contract, louvain, merge_to
from fedtrees.attacks.labels.evidence import (
    Columns,
    no_leaves,
    own_columns,
    seen_leaves,
    tree_weights,
)
from fedtrees.attacks.labels.graph_methods import (
    MOST_ROWS,
    components,
    k_means,
    published_communities,
    spectral,
    spread,
)
from fedtrees.attacks.labels.mixture import MOST_LOST, denoise_labels, mixture_of, response_of
from fedtrees.blind_baselines.conditional import between_0_and_1
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Labels
from fedtrees.core.errors import UsageError, check_known, check_whole
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View

Clusters = NDArray[np.int64]
Single = Literal["drop", "keep"]


@dataclass(frozen=True, eq=False)
class LeafView:
    """Data of a view that attacks on labels use.

    Attributes
    ----------
    columns : Columns
        Local columns of the principals.
    leaves : int32 array, shape (N, T)
        Visible leaf of every row, -1 if the row is absent from the tree.
    trees : intp array, shape (T,)
        Numbers of these trees.
    eta : float64 array, shape (T,)
        Weights of these trees.
    twins : Twins
        The record-id graph.
    classes : int
        Number of classes, at least 2.
    """

    view: View
    columns: Columns
    leaves: NDArray[np.int32]
    trees: NDArray[np.intp]
    eta: NDArray[np.float64]
    twins: Twins
    classes: int


def leaf_view(view: View, single: Single, decay: float) -> LeafView | None:
    """Collect the visible leaves and local columns of a view.

    Parameters
    ----------
    view : View
        Messages of a vertical training.
    single : {"drop", "keep"}
        Whether to omit trees with a single visible leaf.
    decay : float
        Weight of a boosted tree relative to the previous round.

    Returns
    -------
    LeafView or None
        None if the principals have no rows or know their labels.
    """
    columns = own_columns(view)
    if columns is None or not len(columns.ids):
        return None
    leaves, trees = seen_leaves(view, single)
    eta = tree_weights(view, int(trees.max(initial=-1)) + 1, decay)[trees]
    classes = max(len(view.schema.classes), 2)
    return LeafView(view, columns, leaves, trees, eta, contract(leaves, eta), classes)


@dataclass(frozen=True, kw_only=True)
class LeafAttack(Attack):
    """Base of attacks that cluster rows by the visible leaves that they share.

    Parameters
    ----------
    single : {"drop", "keep"}
        Whether to omit trees with a single visible leaf. Such a leaf shows only which rows were
        sampled for the tree.
    decay : float
        Weight of a boosted tree relative to the previous round, in (0, 1] (0.6 in the code of
        Takahashi et al. 2023). Trees of a forest have equal weights.
    """

    claims = (Labels,)

    single: Single = "drop"
    decay: float = 0.6

    def __post_init__(self) -> None:
        check_known("single", self.single, get_args(Single))
        number = isinstance(self.decay, int | float) and not isinstance(self.decay, bool)
        if not number or not 0 < self.decay <= 1:
            raise UsageError(f"decay={self.decay!r}: give a number above 0, at most 1")

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there are no visible leaves, None if there are."""
        return no_leaves(view)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Cluster rows with presumably equal labels.

        Parameters
        ----------
        view : View
            Messages of a vertical training.
        rng : numpy.random.Generator
            The only source of randomness.

        Returns
        -------
        guess : Guess
            `Labels`. Without visible leaves the clusters result from K-means on the local columns.
        """
        seen = leaf_view(view, self.single, self.decay)
        if seen is None:
            return Guess.none(self.inapplicable(view) or Reason("no-unlabelled-rows"))
        if seen.leaves.shape[1]:
            cluster = self.clusters(seen, rng)
        else:
            cluster = k_means(between_0_and_1(seen.columns.X), seen.classes, rng)
        notes = {"groups": float(len(seen.twins.weight))}
        return Guess((Labels(seen.columns.ids, cluster),), notes)

    @abstractmethod
    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return a cluster number for every row, int64, shape (N,)."""


def _with_columns(
    seen: LeafView, part: Clusters, weight: float, rng: np.random.Generator
) -> Clusters:
    """Cluster rows by K-means on local columns and the weighted one-hot code of a graph partition.

    Parts beyond the 256 largest have the code 0, because they contain few rows each.
    """
    sizes = np.bincount(part)
    largest = np.argsort(-sizes, kind="stable")[:256]
    at = np.full(len(sizes), -1)
    at[largest] = np.arange(len(largest))
    code = at[part]
    one_hot = weight * (code[:, None] == np.arange(len(largest)))
    points = np.hstack([between_0_and_1(seen.columns.X), one_hot])
    return k_means(points, seen.classes, rng)


@register.attack("union")
@dataclass(frozen=True, kw_only=True)
class Union(LeafAttack):
    """Assign one label to rows that are connected by shared leaves (UNI, Takahashi et al. 2023).

    Two rows are connected if they share a visible leaf, directly or through other rows.
    """

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the components of the record-id graph."""
        return components(seen.twins)[seen.twins.of_row]


@register.attack("union-cl")
@dataclass(frozen=True, kw_only=True)
class UnionColumns(LeafAttack):
    """Cluster local columns and `union` components by K-means (UNI+CL, Takahashi et al. 2023)."""

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Cluster columns and components. A component has weight 1, as in the authors' code."""
        return _with_columns(seen, components(seen.twins)[seen.twins.of_row], 1.0, rng)


@register.attack("id2graph")
@dataclass(frozen=True, kw_only=True)
class ID2Graph(LeafAttack):
    """Cluster record-id communities and local columns (ID2Graph, Takahashi et al. 2023, Sec. 4).

    The attack has two steps. First, the modularity (Eq. 2) of the record-id graph
    (Eq. 1) is maximised. We start the search from the leaves of each tree, and never compute the
    matrix of the graph. `id2graph-published` does this step like the authors' code. Second, K-means
    clusters the local columns, scaled to [0, 1], with the one-hot code of the communities, weight
    3.
    """

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Cluster columns and communities."""
        return _with_columns(seen, self.communities(seen, rng), 3.0, rng)

    def communities(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the community of every row."""
        return louvain(seen.twins, rng)[0][seen.twins.of_row]


@register.attack("id2graph-published")
@dataclass(frozen=True, kw_only=True)
class PublishedID2Graph(ID2Graph):
    """ID2Graph as in the authors' code, for comparison with their tables.

    The authors run Louvain on a lower triangular matrix (`published_communities`), and include
    trees with one visible leaf. We do not repeat their division of large tables into unconnected
    chunks.
    """

    is_reference: ClassVar[bool] = True
    max_training_rows: ClassVar[int | None] = MOST_ROWS

    single: Single = "keep"

    def communities(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the communities that the authors' code finds."""
        return published_communities(seen.leaves, seen.eta, rng)


@register.attack("merged-communities")
@dataclass(frozen=True, kw_only=True)
class MergedCommunities(LeafAttack):
    """Merge communities of the record-id graph until there are as many as classes.

    In each step the two communities whose merger costs the least modularity are merged. This uses
    the edges between communities, while the K-means step of `id2graph` depends on their sizes.
    """

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return merged communities."""
        community, _ = louvain(seen.twins, rng)
        return merge_to(seen.twins, community, seen.classes)[seen.twins.of_row]


@register.attack("spectral")
@dataclass(frozen=True, kw_only=True)
class Spectral(LeafAttack):
    """Cluster rows by a normalised cut of the record-id graph.

    The eigenvectors come from a matrix with one row per leaf, see
    `fedtrees.attacks.labels.graph_methods`.
    """

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the spectral clusters."""
        return spectral(seen.twins, seen.classes, rng)[seen.twins.of_row]


@register.attack("label-mixture")
@dataclass(frozen=True, kw_only=True)
class LabelMixture(LeafAttack):
    """Search for the labels under which the visible splits are the best ones.

    Every node takes the split with the largest gain. A party without labels knows its local
    candidate splits and the partition that was chosen instead. Under the true labels, this
    partition gains at least as much as every local candidate, at hundreds of nodes. The attack
    maximises the likelihood of these choices together with that of the label rates of all visible
    leaves (`fedtrees.attacks.labels.mixture`). It starts from spectral clusters and from merged
    communities.

    If a defense adds noise to labels, trees are grown on the noisy labels. The true labels are then
    estimated from the noisy ones (`fedtrees.attacks.labels.mixture`), provided that the noisy ones
    explain the splits (`MOST_LOST`).

    Parameters
    ----------
    rows : int
        Largest number of rows that are fitted, at least 2. For larger tables a random sample of
        this size is fitted, and all labels follow from the label rates of the leaves.
    """

    rows: int = 20_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("rows", self.rows, 2)

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the most probable labels over all starts."""
        return self.climb(seen, [], None, rng)

    def climb(
        self,
        seen: LeafView,
        more: list[Clusters],
        known_labels: Clusters | None,
        rng: np.random.Generator,
    ) -> Clusters:
        """Maximise the likelihood of the labels from several starts.

        Parameters
        ----------
        seen : LeafView
            Visible leaves and local columns.
        more : list of int64 array, shape (N,)
            Additional starts.
        known_labels : int64 array, shape (N,), or None
            Known labels, -1 for unknown ones. They stay fixed unless labels are noisy.
        rng : numpy.random.Generator
            The only source of randomness.

        Returns
        -------
        int64 array, shape (N,)
            The most probable labels. With noisy labels, an estimate of the true ones.
        """
        community, _ = louvain(seen.twins, rng)
        starts = [spectral(seen.twins, seen.classes, rng)]
        if int(community.max(initial=0)) + 1 >= seen.classes:
            starts.append(merge_to(seen.twins, community, seen.classes))
        law = response_of(seen.view)
        # Under label noise the trees are grown on noisy labels, which may differ from known ones.
        fixed = known_labels if law is None else None
        observed = seen.view, seen.columns, seen.twins, seen.trees, seen.classes
        model = mixture_of(*observed, fixed)
        named = [start[seen.twins.of_row] for start in starts]
        if known_labels is not None:
            named = [_as_known(start, known_labels, seen.classes) for start in named]
        likeliest = model.best([*more, *named], self.rows, rng)
        if law is None or model.lost(likeliest) > MOST_LOST:
            return likeliest
        return denoise_labels(likeliest, seen.columns.X, seen.classes, law, rng)


@register.attack("few-shot")
@dataclass(frozen=True, kw_only=True)
class FewShot(LabelMixture):  # type: ignore[misc]
    """Search for the labels under which the splits are best, given the labels of a few rows.

    The known labels (``passive[labels=20]``) are propagated over the record-id graph (Zhou et al.
    2004). The result is an additional start of `label-mixture`, which keeps the known labels fixed.
    """

    threats: ClassVar[tuple[str, ...]] = ("passive[labels=20]",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the attack does not apply: no visible leaves, or no known labels."""
        why = super().inapplicable(view)
        if why is None and view.known_labels is None:
            return Reason("no-known-labels", threat="passive[labels=20]")
        return why

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the most probable class of every row."""
        known_rows = seen.view.known_labels
        if known_rows is None:
            return super().clusters(seen, rng)
        assert known_rows.y is not None
        order = np.argsort(seen.columns.ids)
        rows = order[np.searchsorted(seen.columns.ids[order], known_rows.ids)]
        known_labels = np.full(len(seen.columns.ids), -1)
        known_labels[rows] = known_rows.y
        shares = np.zeros((len(seen.twins.weight), seen.classes))
        np.add.at(shares, (seen.twins.of_row[rows], known_rows.y), 1.0)
        start = spread(seen.twins, shares).argmax(axis=1)[seen.twins.of_row]
        return self.climb(seen, [start], known_labels, rng)


def _as_known(start: Clusters, known_labels: Clusters, classes: int) -> Clusters:
    """Rename clusters so that they agree with as many known labels as possible."""
    table = np.zeros((classes, classes))
    sure = known_labels >= 0
    np.add.at(table, (start[sure], known_labels[sure]), 1.0)
    return np.asarray(linear_sum_assignment(-table)[1][start])
