"""Attacks on labels by record ids, as attacks on a view."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.labels.clustering import k_means, scaled
from fedtrees.attacks.labels.communities import louvain, merge_to
from fedtrees.attacks.labels.evidence import (
    Columns,
    no_leaves,
    own_columns,
    seen_leaves,
    tree_weights,
)
from fedtrees.attacks.labels.mixture import mixture_of
from fedtrees.attacks.labels.noise import MOST_LOST, denoised, response_of
from fedtrees.attacks.labels.published import MOST_ROWS, published_communities
from fedtrees.attacks.labels.spectral import spectral
from fedtrees.attacks.labels.spreading import spread
from fedtrees.attacks.labels.twins import Twins, contract
from fedtrees.attacks.labels.union import components
from fedtrees.core.attack import Attack
from fedtrees.core.errors import UsageError, check_known, check_whole
from fedtrees.core.guess import Guess, Labels
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View

Clusters = NDArray[np.int64]
Single = Literal["drop", "keep"]


@dataclass(frozen=True, eq=False)
class LeafView:
    """What attacks on labels read of a view."""

    view: View
    columns: Columns
    leaves: NDArray[np.int32]  # shape (N, T): visible leaves; -1: absent
    trees: NDArray[np.intp]  # shape (T,): numbers of these trees
    eta: NDArray[np.float64]  # shape (T,): what they count
    twins: Twins
    classes: int


def leaf_view(view: View, single: Single, decay: float) -> LeafView | None:
    """Return what is read of a view, None where its principals know no rows without labels."""
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

    `single`: {"drop", "keep"}. Of trees with one visible leaf: all that these tell is which rows
    were drawn for them.
    `decay`: A boosted tree counts so much less than one of the round before (0.6 in the code of
    Takahashi et al. 2023); all trees of a forest count the same.
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
        """Guess which rows have equal labels; by own columns alone where leaves tell nothing."""
        seen = leaf_view(view, self.single, self.decay)
        if seen is None:
            return Guess.none(self.inapplicable(view) or Reason("no-unlabelled-rows"))
        if seen.leaves.shape[1]:
            cluster = self.clusters(seen, rng)
        else:
            cluster = k_means(scaled(seen.columns.X), seen.classes, rng)
        notes = {"groups": float(len(seen.twins.weight))}
        return Guess((Labels(seen.columns.ids, cluster),), notes)

    @abstractmethod
    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return a number for every row; rows with equal numbers are said to have equal labels."""


def _with_columns(
    seen: LeafView, part: Clusters, weight: float, rng: np.random.Generator
) -> Clusters:
    """Cluster rows by own columns and, one-hot and weighted, by what part of the graph they are in.

    Parts beyond the 256 largest count as one: they are of few rows each.
    """
    sizes = np.bincount(part)
    largest = np.argsort(-sizes, kind="stable")[:256]
    at = np.full(len(sizes), -1)
    at[largest] = np.arange(len(largest))
    code = at[part]
    one_hot = weight * (code[:, None] == np.arange(len(largest)))
    points = np.hstack([scaled(seen.columns.X), one_hot])
    return k_means(points, seen.classes, rng)


@register.attack("union")
@dataclass(frozen=True, kw_only=True)
class Union(LeafAttack):
    """Rows that share a visible leaf have one label, and so on from leaf to leaf (UNI of Takahashi
    et al. 2023)."""

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the components of the record-id graph."""
        return components(seen.twins)[seen.twins.of_row]


@register.attack("union-cl")
@dataclass(frozen=True, kw_only=True)
class UnionColumns(LeafAttack):
    """K-means on own columns and the components of `union` (UNI+CL of Takahashi et al. 2023)."""

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Cluster columns and components; a component weighs 1, as in the authors' code."""
        return _with_columns(seen, components(seen.twins)[seen.twins.of_row], 1.0, rng)


@register.attack("id2graph")
@dataclass(frozen=True, kw_only=True)
class ID2Graph(LeafAttack):
    """ID2Graph (Takahashi et al. 2023, Sec. 4): communities of the record-id graph, and K-means.

    The modularity of their Eq. 2 is maximised on the graph of Eq. 1 itself, from every tree's
    leaves in turn and without its matrix; `id2graph-published` is what the authors' code does.
    K-means sees own columns, scaled to [0, 1], and communities that weigh 3.
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
    """ID2Graph as the authors' code runs it, for comparison with their tables.

    Louvain on a lower triangle (`fedtrees.attacks.labels.published`), trees with one visible leaf
    included. Their chunks of large tables, which are not connected, are not repeated.
    """

    comparison: ClassVar[bool] = True
    most_rows: ClassVar[int | None] = MOST_ROWS

    single: Single = "keep"

    def communities(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the authors' communities."""
        return published_communities(seen.leaves, seen.eta, rng)


@register.attack("merged-communities")
@dataclass(frozen=True, kw_only=True)
class MergedCommunities(LeafAttack):
    """Communities of the record-id graph, merged until there are as many as classes.

    The two whose merging costs least modularity are merged: an ordered way to come from
    communities to classes, where K-means of `id2graph` goes by their sizes.
    """

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return merged communities."""
        community, _ = louvain(seen.twins, rng)
        return merge_to(seen.twins, community, seen.classes)[seen.twins.of_row]


@register.attack("spectral")
@dataclass(frozen=True, kw_only=True)
class Spectral(LeafAttack):
    """Normalised cut of the record-id graph, by one eigenproblem as large as there are leaves."""

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the spectral clusters."""
        return spectral(seen.twins, seen.classes, rng)[seen.twins.of_row]


@register.attack("label-mixture")
@dataclass(frozen=True, kw_only=True)
class LabelMixture(LeafAttack):
    """Labels under which the splits that were seen are the best ones.

    A node takes the split that gains most, and a party without labels knows its own candidates: the
    true labels make what was taken gain at least as much as all of these, at hundreds of nodes.
    `fedtrees.attacks.labels.mixture` climbs the likelihood of that, together with label rates of
    every visible leaf, from the spectral clusters and from merged communities.

    Where labels are known to be noisy, these are what trees were grown on: the true ones are then
    guessed from them (`fedtrees.attacks.labels.noise`), as long as they explain the splits.

    `rows`: Of larger tables so many rows, drawn at random, are fitted; the others follow from the
    label rates of their leaves.
    """

    rows: int = 20_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("rows", self.rows, 2)

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the likeliest labels of all starts."""
        return self.climbed(seen, [], None, rng)

    def climbed(
        self, seen: LeafView, more: list[Clusters], known: Clusters | None, rng: np.random.Generator
    ) -> Clusters:
        """Return the likeliest labels of all starts, and more of them, given labels known."""
        community, _ = louvain(seen.twins, rng)
        starts = [spectral(seen.twins, seen.classes, rng)]
        if int(community.max(initial=0)) + 1 >= seen.classes:
            starts.append(merge_to(seen.twins, community, seen.classes))
        law = response_of(seen.view)
        fixed = known if law is None else None  # trees are grown on other labels
        observed = seen.view, seen.columns, seen.twins, seen.trees, seen.classes
        model = mixture_of(*observed, fixed)
        named = [start[seen.twins.of_row] for start in starts]
        if known is not None:
            named = [_as_known(start, known, seen.classes) for start in named]
        likeliest = model.best([*more, *named], self.rows, rng)
        if law is None or model.lost(likeliest) > MOST_LOST:
            return likeliest
        return denoised(likeliest, seen.columns.X, seen.classes, law, rng)


@register.attack("few-shot")
@dataclass(frozen=True, kw_only=True)
class FewShot(LabelMixture):  # type: ignore[misc]
    """Labels under which the splits are the best ones, given those of a few rows.

    The labels known, ``passive[labels=20]``, are spread over the record-id graph (Zhou et al.
    2004): that is one more start of `label-mixture`, which leaves them as they are.
    """

    threats: ClassVar[tuple[str, ...]] = ("passive[labels=20]",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return what is missing: visible leaves, or known labels."""
        why = super().inapplicable(view)
        if why is None and view.known is None:
            return Reason("no-known-labels", threat="passive[labels=20]")
        return why

    def clusters(self, seen: LeafView, rng: np.random.Generator) -> Clusters:
        """Return the likeliest class of every row."""
        known_rows = seen.view.known
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
        return self.climbed(seen, [start], known_labels, rng)


def _as_known(start: Clusters, known_labels: Clusters, classes: int) -> Clusters:
    """Name clusters after the classes that known labels agree with best."""
    table = np.zeros((classes, classes))
    sure = known_labels >= 0
    np.add.at(table, (start[sure], known_labels[sure]), 1.0)
    return np.asarray(linear_sum_assignment(-table)[1][start])
