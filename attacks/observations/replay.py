"""Rebuild boosted trees from the histograms and the leaf values that a view contains.

The server of a histogram protocol chooses the splits of a tree from the summed histograms of its
nodes, and every party that receives these sums can repeat its choice. `replay_trees` is the only
function that does so for a view. It gives every tree the leaf values that were sent, because the
clients add these values, not those that follow from the sums, to the margins from which the next
tree is computed: a defense such as `leaf-rounding` makes the two differ.

`own_sums` propagates the histograms that the adversary's parties sent to the leaves. If rounds are
subsampled, these messages reveal more than the local rows: they show which rows took part.

The functions ``law_of_...`` return the mechanisms that defenses applied to sums and leaf values
before the adversary saw them. They read the channels that defenses publish in the view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.boosting import relatives
from fedtrees.core.channel import Change, Channel, chained
from fedtrees.core.view import View
from fedtrees.messages.captured import RoundedHistogram
from fedtrees.messages.horizontal import (
    ClientTrees,
    CutPoints,
    FeatureSketch,
    GlobalHistogram,
    Histogram,
    LeafValues,
    SharedTrees,
)
from fedtrees.trees.binning import MOST_BINS, Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeGrower, with_siblings
from fedtrees.trees.boosted.histogram import Bits, from_fixed
from fedtrees.trees.boosted.params import DEEPEST, TreeParams
from fedtrees.trees.partition import Decisions

Floats = NDArray[np.float64]
Sums = NDArray[np.int64]


def own_histograms(view: View) -> dict[tuple[int, bytes], Histogram]:
    """Return the sum of the histograms that the adversary's parties sent, by tree and nodes.

    Opened sums of several clients are not included.
    """
    histograms: dict[tuple[int, bytes], Histogram] = {}
    for item, m in view.messages(Histogram):
        if item.sender in view.principals and not item.opened:
            key = m.tree, m.nodes.tobytes()
            before = histograms.get(key)
            sums, totals = m.sums, m.totals
            if before is not None:
                sums, totals = before.sums + sums, before.totals + totals
            histograms[key] = Histogram(m.tree, m.nodes, sums, totals, *m.bits)
    return histograms


def own_sums(view: View, trees: Sequence[Tree], cuts: Cuts) -> tuple[Floats, ...] | None:
    """Return the sums of g and h of the adversary's rows in each leaf of every tree.

    Parameters
    ----------
    view : View
        The adversary's view.
    trees : sequence of Tree
        The trees.
    cuts : Cuts
        Bins of the histograms.

    Returns
    -------
    tuple of float64 array, shape (J, 2), or None
        Zeros if the adversary has no rows. None if the messages do not determine the sums of a
        tree.
    """
    if view.rows is None or not len(view.rows):
        return tuple(np.zeros((len(t.leaves), 2)) for t in trees)
    levels: dict[int, list[Histogram]] = defaultdict(list)
    for (tree, _), m in own_histograms(view).items():
        levels[tree].append(m)
    out = [_leaf_sums(tree, levels[t], cuts) for t, tree in enumerate(trees)]
    if any(part is None for part in out):
        return None
    return tuple(part for part in out if part is not None)


def _leaf_sums(tree: Tree, levels: Sequence[Histogram], cuts: Cuts) -> Floats | None:
    """Propagate the sums of the sent histograms from the root to the leaves."""
    if not levels or len(levels[0].totals) != 1:
        return None
    of: dict[int, Sums] = {}
    total: dict[int, Sums] = {0: levels[0].totals[0]}
    # a child that was not sent is the difference of its parent and its sibling
    for m in levels:
        nodes = m.nodes.tolist()
        of.update(zip(nodes, m.sums, strict=True))
        for node, (parent, other) in zip(nodes, relatives(tree)[m.nodes].tolist(), strict=True):
            if other not in of and parent in of:
                of[other] = of[parent] - of[node]
    for node in np.flatnonzero(tree.feature >= 0).tolist():  # children come after their parent
        if node not in of:
            return None
        f = int(tree.feature[node])
        hist = of[node][cuts.offsets[f] : cuts.offsets[f + 1]]
        part = hist[bins_left(tree, node, cuts)].sum(axis=0)
        if tree.default_left[node]:
            part = part + total[node] - hist.sum(axis=0)
        total[int(tree.left[node])], total[int(tree.right[node])] = part, total[node] - part
    return from_fixed(np.array([total[n] for n in tree.leaves.tolist()]), levels[0].bits)


def bins_left(tree: Any, node: int, cuts: Cuts) -> NDArray[np.bool_]:
    """Return which bins of its feature a split sends left, as bools of shape (bins,).

    Parameters
    ----------
    tree : Tree
        The tree, or any object with its attributes.
    node : int
        An inner node.
    cuts : Cuts
        Bins of the features.
    """
    edges = cuts.of(int(tree.feature[node]))
    if not np.isnan(tree.threshold[node]):
        # a bin lies left of the split iff its upper edge does
        return edges <= tree.threshold[node]  # type: ignore[no-any-return]
    right = tree.categories[node, : len(edges)]
    return ~np.pad(right, (0, len(edges) - len(right)))  # type: ignore[no-any-return]


Parts = Mapping[str, Histogram | GlobalHistogram]

EVERYONE = "everyone"  # source name of sums over all clients
OTHERS = "others"  # source name of sums without the adversary's messages


def cuts_of(view: View) -> Cuts | None:
    """Return the announced cut points, None if there are none."""
    for _, m in view.messages(CutPoints):
        return m.to_cuts()
    return None


def cuts_are_of_rows(view: View) -> bool:
    """Return whether cut points are quantiles of the rows' values that no defense changed."""
    plan = view.defense.cut_plan()
    method = view.parameters.get("cuts") if plan is None else plan.method
    altered = any(issubclass(FeatureSketch, p.handled_types) for p in view.defense.parts)
    return method == "sketch" and not altered


def trees_grown_locally(view: View) -> bool:
    """Return whether each client grows trees on its local rows only and shares the trees."""
    return "intercept" in view.parameters


def params_of(view: View) -> TreeParams:
    """Return the public tree parameters. LightGBM's are converted to XGBoost's where possible."""
    names, p = TreeParams.__dataclass_fields__, view.parameters
    arguments = {k: v for k, v in p.items() if k in names}
    if "num_leaves" in p:
        arguments |= {
            "max_depth": p["max_depth"] if p["max_depth"] > 0 else DEEPEST,
            "max_leaves": p["num_leaves"], "grow_policy": "lossguide",
            "max_bin": min(p["max_bin"], MOST_BINS),
            "min_child_weight": p["min_sum_hessian_in_leaf"],
        }  # fmt: skip
    return TreeParams(**arguments)


def serves(view: View) -> bool:
    """Return whether the adversary controls the server."""
    return "server" in {view.roles[p] for p in view.principals}


def clients_in(view: View, source: str = EVERYONE) -> int:
    """Return the number of clients in the sums of a source: a client, `OTHERS` or `EVERYONE`."""
    clients = {name for name, role in view.roles.items() if role == "client"}
    if source == OTHERS:
        clients -= set(view.principals)
    return len(clients) if source in (EVERYONE, OTHERS) else 1


def sent_back(view: View, field: str = "sums") -> list[Change]:
    """Return the changes that the server makes to the sums it sends back.

    The result is empty if the adversary controls the server, because it receives the sums before.
    """
    return [] if serves(view) else view.changes(GlobalHistogram, field, "server")


def hides(changes: Iterable[Change]) -> bool:
    """Return whether a mechanism sends some bins as if they were empty."""
    return any(isinstance(change, Channel) and change.suppresses for change in changes)


@dataclass(frozen=True, eq=False)
class TreeLevel:
    """Histograms of one level of one tree.

    Attributes
    ----------
    sums : mapping of str to int64 array, shape (m, total_bins, 2)
        Histograms of the requested nodes by source: a client, `OTHERS` or `EVERYONE`.
    hidden : mapping of str to bool array, shape (m, total_bins)
        Bins that may contain more rows than the sums show.
    totals : mapping of str to int64 array, shape (1, 2) or (0, 2)
        Sums over the root, by source.
    shared, shared_totals : int64 array
        Sums over all sources, from which the splits were chosen.
    allowed : bool array, shape (k, total_bins), or None
        Splits that were allowed at the open nodes.
    bits : Bits
        Binary places of gradients and hessians.
    off : int64 array, shape (m,)
        Largest error of sums that were computed with floats, in fixed-point units.
    """

    sums: Mapping[str, Sums]
    hidden: Mapping[str, NDArray[np.bool_]]
    totals: Mapping[str, Sums]
    # int64
    shared: Sums
    shared_totals: Sums
    allowed: NDArray[np.bool_] | None
    bits: Bits
    off: Sums

    def summed(self, principals: Container[str]) -> TreeLevel:
        """Return the level with the single source `OTHERS` if it has sums of single clients."""
        # the sums are already those of several clients
        if not self.sums.keys() - {EVERYONE, OTHERS}:
            return self
        sums, totals = (
            {OTHERS: sum_of({o: part for o, part in of.items() if o not in principals})}
            for of in (self.sums, self.totals)
        )
        return replace(self, sums=sums, hidden={}, totals=totals)


def levels_of(view: View) -> dict[int, list[TreeLevel]]:
    """Return the levels of every tree in order, by client where the view shows them.

    The messages of the adversary's parties, with their noise, are subtracted from sums, whose
    source is then `OTHERS`. The source `EVERYONE` means that nothing was subtracted.
    """
    global_histograms = {(m.tree, m.nodes.tobytes()): m for _, m in view.messages(GlobalHistogram)}
    take = _Taken.of(view)
    levels: dict[int, list[TreeLevel]] = defaultdict(list)
    if not serves(view):
        for m in global_histograms.values():
            levels[m.tree].append(take.level({EVERYONE: m}, m))
    elif global_histograms or not params_of(view).samples_columns:
        # otherwise no message contains the columns drawn
        for key, by_sender in _sent(view).items():
            levels[key[0]].append(take.level(by_sender, global_histograms.get(key)))
    return dict(levels)


@dataclass(frozen=True, eq=False)
class _Taken:
    """Messages of the adversary's parties, and the ways in which bins are sent as 0."""

    local_histograms: Mapping[tuple[int, bytes], Histogram]
    n_other_clients: int  # number of clients that the adversary does not control
    sent: bool  # clients send some bins as 0
    late: bool  # the server sends some bins back as 0

    @staticmethod
    def of(view: View) -> _Taken:
        own_sums = {} if view.changes("sums", "parties") else own_histograms(view)
        sent = hides(view.changes(Histogram, "sums", "client"))
        return _Taken(own_sums, clients_in(view, OTHERS), sent, hides(sent_back(view)))

    def level(self, parts: Parts, global_histogram: GlobalHistogram | None) -> TreeLevel:
        """Return a level from the messages for the same nodes, by source."""
        sums, totals = ({o: getattr(m, of) for o, m in parts.items()} for of in ("sums", "totals"))
        one = next(iter(parts.values()))
        if global_histogram is not None:
            shared = global_histogram.sums, global_histogram.totals, global_histogram.allowed
        else:
            shared = sum_of(sums), sum_of(totals), None
        if EVERYONE not in parts:
            hidden = {o: _nothing(part) for o, part in sums.items() if self.sent}
            return TreeLevel(sums, hidden, totals, *shared, one.bits, _off(one))
        masked, few = _nothing(one.sums) & self.late, False
        own_histogram = self.local_histograms.get((one.tree, one.nodes.tobytes()))
        if own_histogram is not None:
            sums = {OTHERS: one.sums - np.where(masked[..., None], 0, own_histogram.sums)}
            totals, few = {OTHERS: one.totals - own_histogram.totals}, self.n_other_clients == 1
        ((source, part),) = sums.items()
        if self.sent:  # any of several clients may have left rows out
            masked |= _nothing(part) if few else True
        hidden = {source: masked} if self.sent or self.late else {}
        return TreeLevel(sums, hidden, totals, *shared, one.bits, _off(one))


def _off(histogram: Histogram | GlobalHistogram) -> Sums:
    return (
        histogram.off
        if isinstance(histogram, RoundedHistogram)
        else np.zeros(len(histogram.nodes), np.int64)
    )


def _nothing(sums: Sums) -> NDArray[np.bool_]:
    return np.asarray((sums == 0).all(axis=-1))


def _sent(view: View) -> dict[tuple[int, bytes], dict[str, Histogram]]:
    """Return the histograms that the server received, by tree and nodes, then by source."""
    groups: dict[tuple[int, bytes], dict[str, Histogram]] = defaultdict(dict)
    for item, m in view.messages(Histogram):
        groups[m.tree, m.nodes.tobytes()][EVERYONE if item.opened else item.sender] = m
    # a secure sum contains the replies of the adversary's parties as well
    return {
        key: {EVERYONE: parts[EVERYONE]} if EVERYONE in parts else parts
        for key, parts in groups.items()
    }


def sum_of(parts: Mapping[str, Sums]) -> Sums:
    """Return the sum over all sources."""
    return np.sum(list(parts.values()), axis=0)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ReplayedTree:
    """A tree that was rebuilt from its levels, with the histograms of its nodes.

    Attributes
    ----------
    tree : Tree
        Splits and leaf values.
    nodes : int32 array, shape (k,)
        Nodes with histograms, in the order in which they were opened.
    sums : mapping of str to int64 array, shape (k, total_bins, 2)
        Histograms of these nodes by source.
    totals : mapping of str to int64 array, shape (n_nodes, 2)
        Sums over all rows of every node of the tree, by source.
    hidden : mapping of str to bool array, shape (k, total_bins)
        Bins that may contain more rows than the sums show, by source.
    n_summands : int64 array, shape (k,)
        Number of sent histograms from which each histogram was computed.
    off : int64 array, shape (k,)
        Largest error of sums that were computed with floats, in fixed-point units.
    bits : Bits
        Binary places of gradients and hessians.
    """

    tree: Tree
    nodes: NDArray[np.int32]
    sums: Mapping[str, Sums]
    totals: Mapping[str, Sums]
    hidden: Mapping[str, NDArray[np.bool_]]
    n_summands: NDArray[np.int64]
    off: NDArray[np.int64]
    bits: Bits


def replay_trees(view: View, *, by_client: bool) -> Iterator[ReplayedTree]:
    """Yield the boosted trees of a run in order, rebuilt from the histograms in a view.

    Every attack that reads histograms obtains its trees here, so that all of them compute the same
    margins: those of the model that was released.

    Parameters
    ----------
    view : View
    by_client : bool
        Whether to keep the histograms of single clients apart where the view contains them. False:
        the trees have the sums over all clients that are not principals, as the source `OTHERS`.

    Yields
    ------
    ReplayedTree
        Nothing where the view contains no cut points or no readable histogram.
    """
    cuts, params = cuts_of(view), params_of(view)
    if cuts is None:
        return
    released = {message.tree: message for _, message in view.messages(LeafValues)}
    for number, levels in sorted(levels_of(view).items()):
        if not by_client:
            levels = [level.summed(view.principals) for level in levels]
        yield _replay_tree(
            levels,
            cuts,
            params,
            view.schema.complete,
            released.get(number),
            numeric_targets=not view.schema.classes,
        )


def _replay_tree(
    levels: Sequence[TreeLevel],
    cuts: Cuts,
    params: TreeParams,
    complete: NDArray[np.bool_],
    released: LeafValues | None,
    *,
    numeric_targets: bool,
) -> ReplayedTree:
    """Grow a tree from the root down as its server did, and follow the sums of every source.

    `complete`, bool of shape (d,), marks features without missing values. `released` contains the
    leaf values that the server sent. It is None if clients compute the values from the sums, as in
    `nvflare-hist`.
    """
    root, bits = levels[0].shared_totals[0], levels[0].bits
    grower = TreeGrower(cuts, params, root, bits=bits, complete=complete, unbounded=numeric_targets)
    sources = {name: _Source(cuts, totals) for name, totals in levels[0].totals.items()}
    nodes: list[NDArray[np.int32]] = []
    for level in levels:
        open_nodes, built = grower.nodes, grower.to_build
        for name, source in sources.items():
            hidden = level.hidden.get(name)
            source.complete(open_nodes, built, level.sums[name], level.off, hidden)
        nodes.append(open_nodes)
        decisions = grower.choose_splits(level.shared, level.allowed)
        for source in sources.values():
            source.split(decisions)
    any_source = next(iter(sources.values()))
    return ReplayedTree(
        grower.finish(_values_of_leaves(released, grower.leaves()[0])),
        np.concatenate(nodes),
        {name: np.concatenate(s.levels) for name, s in sources.items()},
        {name: np.array([s.total[n] for n in sorted(s.total)]) for name, s in sources.items()},
        {name: np.concatenate(s.hidden) for name, s in sources.items() if s.hidden},
        np.concatenate(any_source.n_summands),
        np.concatenate(any_source.off),
        bits,
    )


def _values_of_leaves(
    released: LeafValues | None, leaves: NDArray[np.int32]
) -> NDArray[np.float32] | None:
    """Return the released values in the order of `leaves`. None means: compute them.

    The result is None if no values were sent, or if they belong to other leaves. The latter happens
    when a malicious server sends leaf values that do not fit the histograms it received.
    """
    if released is None or not np.array_equal(np.sort(released.nodes), np.sort(leaves)):
        return None
    ascending = np.argsort(released.nodes)
    return released.value[ascending[np.searchsorted(released.nodes, leaves, sorter=ascending)]]


class _Source:
    """One source's histograms of a tree that grows.

    Attributes
    ----------
    levels : list of int64 array, shape (k, total_bins, 2)
        Histograms of all nodes of every level.
    hidden : list of bool array, shape (k, total_bins)
        As in `ReplayedTree`, per level. Empty if no bin is left out.
    n_summands, off : list of int64 array, shape (k,)
        As in `ReplayedTree`, per level.
    total : dict of int to int64 array, shape (2,)
        Sums over the rows of every node.
    """

    def __init__(self, cuts: Cuts, totals: Sums) -> None:
        self.cuts, self.levels = cuts, list[Sums]()
        self.hidden, self.n_summands = list[NDArray[np.bool_]](), list[NDArray[np.int64]]()
        self.off = list[NDArray[np.int64]]()
        self.total: dict[int, Sums] = {0: totals[0]}
        self._of: dict[int, tuple[int, int]] = {}  # level and position of every node
        self._parent: dict[int, int] = {}

    def complete(
        self,
        open_nodes: NDArray[np.int32],
        built: NDArray[np.int32],
        sums: Sums,
        off: NDArray[np.int64],
        hidden: NDArray[np.bool_] | None,
    ) -> None:
        """Add the histograms of the built nodes, and compute those of their siblings.

        Parameters
        ----------
        open_nodes : int32 array, shape (k,)
            Nodes of the level.
        built : int32 array, shape (m,)
            Nodes whose histograms were sent.
        sums : int64 array, shape (m, total_bins, 2)
            Their histograms.
        off : int64 array, shape (m,)
            Their largest errors.
        hidden : bool array, shape (m, total_bins), or None
            Bins that may contain more rows.
        """
        n_summands = np.ones(len(open_nodes), dtype=np.int64)
        if len(built) < len(open_nodes):
            above = [self._of[self._parent[n]] for n in open_nodes[::2].tolist()]
            left = built == open_nodes[::2]
            sums = with_siblings(sums, left, np.stack([self.levels[a][k] for a, k in above]))
            other = 2 * np.arange(len(left)) + left
            n_summands[other] += [self.n_summands[a][k] for a, k in above]
            off = np.repeat(off, 2)
            off[other] += [self.off[a][k] for a, k in above]
            if hidden is not None:
                hidden = np.repeat(hidden, 2, axis=0)
                hidden[other] |= [self.hidden[a][k] for a, k in above]
        self.levels.append(sums)
        self.n_summands.append(n_summands)
        self.off.append(off)
        if hidden is not None:
            self.hidden.append(hidden)
        where = ((n, (len(self.levels) - 1, k)) for k, n in enumerate(open_nodes.tolist()))
        self._of.update(where)

    def split(self, chosen: Decisions) -> None:
        """Distribute the totals of split nodes to their children."""
        for k, node in enumerate(chosen.nodes.tolist()):
            left, f = int(chosen.left[k]), chosen.feature[k]
            level, place = self._of[node]
            hist = self.levels[level][place, self.cuts.offsets[f] : self.cuts.offsets[f + 1]]
            part = hist[_left_bins(chosen, k, len(hist))].sum(axis=0)
            if chosen.default_left[k]:
                part = part + self.total[node] - hist.sum(axis=0)
            self.total[left], self.total[left + 1] = part, self.total[node] - part
            self._parent[left] = node


def _left_bins(chosen: Decisions, k: int, n: int) -> NDArray[np.bool_]:
    """Return which of the n bins of its feature split k sends left."""
    left: NDArray[np.bool_] = np.arange(n) <= chosen.bin[k]
    if chosen.categories is not None and np.isnan(chosen.threshold[k]):
        right = chosen.categories[k, :n]
        left = ~np.pad(right, (0, n - len(right)))
    return left


# Largest variance of a sum, in its squared units. A channel may state nothing about a sum, such as
# a gradient sum of which only the sign is sent, and products with an infinite variance are NaN.
_UNINFORMATIVE = 1e12
# Standard deviations of noise that a sum may be off. One sum in 300,000 exceeds them.
DEVIATIONS = 4.5


def law_of_sums(view: View, parties: int = 1, hiding: bool = True) -> Channel | None:
    """Return the channel of the sum of histograms of the given number of clients. None means exact.

    Changes by the clients and changes to the sums that the server sends back are chained.

    Parameters
    ----------
    view : View
        The adversary's view.
    parties : int, default 1
        Number of clients whose histograms are added.
    hiding : bool, default True
        If False, mechanisms that replace bins by empty ones are left out.
    """
    sent, back = view.changes(Histogram, "sums", "client"), sent_back(view, "sums")
    if not hiding:
        sent, back = ([c for c in part if not hides([c])] for part in (sent, back))
    return chained(c for c in (chained(sent, parties), chained(back)) if c is not None)


def reach_of(law: Channel | None, n_summands: NDArray[np.int64], bits: Bits) -> NDArray[np.float64]:
    """Return the largest error of sums of several sent statistics, shape (k,).

    For unbounded noise, it is the error that one sum in 300,000 exceeds.

    Parameters
    ----------
    law : Channel or None
        Mechanism applied to one sent statistic. None gives zeros.
    n_summands : int64 array, shape (k,)
        Number of statistics in each sum.
    bits : Bits
        Fixed-point exponents of the gradient and hessian sums.
    """
    if law is None:
        return np.zeros(len(n_summands))
    # channels are stated in gradients, and sums are fixed-point integers
    units = np.ldexp(1.0, bits)
    largest_error = float(np.max(np.abs(law.in_units_of(units).error_range(2)) / units))
    if np.isfinite(largest_error):
        return np.asarray(largest_error * n_summands, dtype=np.float64)
    return DEVIATIONS * float(np.sqrt(max(cell_variance(law)))) * np.sqrt(n_summands)


def cell_variance(law: Channel | None) -> tuple[float, float]:
    """Return the noise variance of nonzero gradient and hessian sums, in their squared units."""
    if law is None:
        return 0.0, 0.0
    g, h = np.broadcast_to(law.posterior_moments(np.ones((1, 2)))[1][0], 2)
    return min(float(g), _UNINFORMATIVE), min(float(h), _UNINFORMATIVE)


def leaf_sum_variance(view: View) -> tuple[float, float]:
    """Return the noise variance of sums released with leaf values, as `cell_variance`."""
    laws = (view.channel(LeafValues, field, "server") for field in "gh")
    g, h = (0.0 if law is None else float(law.posterior_moments(np.zeros(1))[1][0]) for law in laws)
    return g, h


def law_of_rows(view: View) -> Channel | None:
    """Return the mechanism applied to each row's clipped gradient, once for all sums of a tree."""
    return view.channel("gradients", "g")


def row_variance(view: View) -> float:
    """Return the variance of the noise on a row's gradient."""
    law = law_of_rows(view)
    return 0.0 if law is None else float(law.posterior_moments(np.ones(1))[1][0])


def law_of_values(view: View) -> Channel | None:
    """Return the mechanism applied to the server's leaf values. None means exact."""
    return view.channel(LeafValues, "value", "server")


def law_of_shared(view: View, kind: type[SharedTrees]) -> Channel | None:
    """Return the mechanism applied to the leaf values of trees that clients grew. None means exact.

    The server passes on the trees of the clients, so that both changes are chained.
    """
    sent = view.changes(ClientTrees, "value", "client")
    passed = [] if kind is ClientTrees else view.changes(kind, "value", "server")
    return chained([*sent, *passed])
