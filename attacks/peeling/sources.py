"""What a view shows of histograms: the trees, and per source the sums over its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.rows import BinnedForest, Ints, Residual, Sums
from fedtrees.core.view import View
from fedtrees.messages.boosting import BaseScore, GlobalHistogram, Histogram, LeafValues
from fedtrees.messages.cuts import CutPoints
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.fixed_point import FIXED_POINT_BITS, UNIT_BITS
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeGrower, with_siblings
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.partition import Decisions

# Bins times nodes kept, of 24 bytes each: 700 MB.
MOST_BINS = 3e7
# Standard deviations of noise that a sum may be off: one in 300,000 is off by more.
_DEVIATIONS = 4.5


@dataclass(frozen=True, eq=False)
class Source:
    """Histograms of one party's rows, or of everybody's.

    Attributes
    ----------
    owner : str or None
        Whose rows, where a single party's histograms are seen.
    residual : Residual
    """

    owner: str | None
    residual: Residual


@dataclass(frozen=True, eq=False)
class Sources:
    """The trees of a run and all histograms of their terminal visible nodes.

    Attributes
    ----------
    forest : BinnedForest
    cuts : Cuts
    parts : tuple of Source
        Disjoint sets of rows.
    """

    forest: BinnedForest
    cuts: Cuts
    parts: tuple[Source, ...]


def unreadable(view: View) -> str | None:
    """Return why histograms of this run cannot be taken apart row by row, None if they may."""
    if len(view.schema.classes) != 2:
        return "the target does not have two classes"
    p = view.parameters
    if p.get("objective") not in (None, "binary:logistic") or p.get("reg_alpha"):
        return "gradients are not those of the log loss"
    if p.get("subsample", 1) != 1 or p.get("early_stopping_rounds"):
        return "not all rows are in every tree"
    clip = view.defense.gradient_clip
    if clip is not None and clip < 1:
        return "clipped gradients are no fingerprints"
    if view.defense.declares(view.schema, p).unit_hessian:
        return "hessians of 1 are no fingerprints"
    # what the server leaves out of the sums that it sends back, it has still received
    where = "client" if _serves(view) else ""
    for part in view.defense.parts:
        if part.declares(view.schema, p).least_rows > 1 and where in (*part.at, ""):
            return "no bin is sent that holds a single row"
    return None


def _serves(view: View) -> bool:
    return "server" in {view.roles[p] for p in view.principals}


def sources_of(view: View) -> Sources | None:
    """Read trees and histograms from a view; None where there are none."""
    cuts = next((_cuts(m) for _, m in view.messages(CutPoints)), None)
    start = next((m for _, m in view.messages(BaseScore)), None)
    levels = _levels(view)
    if cuts is None or start is None or not levels or (start.g_bits, start.h_bits) != UNIT_BITS:
        return None
    names = TreeParams.__dataclass_fields__
    params = TreeParams(**{k: v for k, v in view.parameters.items() if k in names})
    released = {m.tree: m for _, m in view.messages(LeafValues)}
    owners = sorted(next(iter(levels.values()))[0].sums)
    kept: list[_Grown] = []
    size = 0.0
    for tree in sorted(levels):
        grown = _grow_again(levels[tree], cuts, params, released.get(tree))
        size += grown.sums[owners[0]].shape[0] / 2 * cuts.total_bins * len(owners)
        if kept and size > MOST_BINS:
            break
        kept.append(grown)
    forest = BinnedForest.of([g.tree for g in kept], [g.nodes for g in kept], cuts, start.margin[0])
    last = [_terminal(g, s, forest) for g, s in zip(kept, forest.start, strict=False)]
    slack = _slack(view, params, len(owners))
    parts = []
    for o in owners:
        if o in view.principals:
            continue  # a colluding party's own rows
        sums = np.concatenate([g.sums[o][k] for g, k in zip(kept, last, strict=True)])
        totals = np.concatenate([g.totals[o][k] for g, k in zip(kept, last, strict=True)])
        residual = Residual.of(sums, totals, forest.offsets, slack, params.max_depth)
        parts.append(Source(None if o in _SUMS else o, residual))
    return Sources(forest, cuts, tuple(parts))


def _cuts(message: CutPoints) -> Cuts:
    return Cuts(message.values, message.offsets, message.minimum, message.categorical)


_EVERYONE, _SECURE = "everyone", "secure-sum"
_SUMS = (_EVERYONE, _SECURE)


@dataclass(frozen=True, eq=False)
class _Level:
    """Histograms of one level of one tree, by source; the splits were chosen from ``shared``."""

    sums: Mapping[str, Sums]
    totals: Mapping[str, Sums]
    allowed: NDArray[np.bool_] | None
    shared: Sums


def _add(parts: Mapping[str, Sums]) -> Sums:
    return np.sum(list(parts.values()), axis=0)  # type: ignore[no-any-return]


def _levels(view: View) -> dict[int, list[_Level]]:
    """Return the levels of every tree, in order: by party where each is seen, else summed."""
    levels: dict[int, list[_Level]] = defaultdict(list)
    if not _serves(view):
        for _, m in view.messages(GlobalHistogram):
            sums, totals = {_EVERYONE: m.sums}, {_EVERYONE: m.totals}
            levels[m.tree].append(_Level(sums, totals, m.allowed, m.sums))
        return dict(levels)
    sent = {(m.tree, m.nodes.tobytes()): m for _, m in view.messages(GlobalHistogram)}
    told = bool(sent) or not any(
        view.parameters.get(f"colsample_by{what}", 1) < 1 for what in ("tree", "level", "node")
    )
    if not told:
        return {}  # the server drew the columns, but they are in no message
    groups: dict[tuple[int, bytes], dict[str, Histogram]] = defaultdict(dict)
    for item, part in view.messages(Histogram):
        name = _SECURE if item.opened else item.sender
        groups[part.tree, part.nodes.tobytes()][name] = part
    for key, by_party in groups.items():
        if _SECURE in by_party:  # a principal's own reply is part of the sum
            by_party = {_SECURE: by_party[_SECURE]}
        sums = {name: m.sums for name, m in by_party.items()}
        totals = {name: m.totals for name, m in by_party.items()}
        allowed, shared = (sent[key].allowed, sent[key].sums) if key in sent else (None, _add(sums))
        levels[key[0]].append(_Level(sums, totals, allowed, shared))
    return dict(levels)


@dataclass(frozen=True, eq=False)
class _Grown:
    """A tree, its nodes with histograms in the order they came, and those of each source."""

    tree: Tree
    nodes: Ints
    sums: Mapping[str, Sums]
    totals: Mapping[str, Sums]


def _grow_again(
    levels: list[_Level], cuts: Cuts, params: TreeParams, released: LeafValues | None
) -> _Grown:
    """Grow a tree as its server did, and follow every source's sums down."""
    grower = TreeGrower(cuts, params, _add(levels[0].totals)[0])
    owners = list(levels[0].sums)
    nodes: list[Ints] = []
    sums: dict[str, list[Sums]] = {o: [] for o in owners}
    total: dict[str, dict[int, Sums]] = {o: {0: levels[0].totals[o][0]} for o in owners}
    place: dict[int, tuple[int, int]] = {}  # where a node's histograms are
    parent: dict[int, int] = {}
    for i, level in enumerate(levels):
        waiting, built = grower.nodes, grower.to_build
        for o in owners:
            full = level.sums[o]
            if len(built) < len(waiting):
                at = [place[parent[int(n)]] for n in waiting[::2]]
                above = np.stack([sums[o][a][b] for a, b in at])
                full = with_siblings(full, built == waiting[::2], above)
            sums[o].append(full)
        place.update({int(n): (i, k) for k, n in enumerate(waiting)})
        nodes.append(waiting)
        chosen = grower.decide(level.shared, level.allowed)
        parent.update(zip(chosen.left.tolist(), chosen.nodes.tolist(), strict=True))
        for o in owners:
            _split_totals(total[o], chosen, sums[o], place, cuts)
    values = None
    if released is not None and np.array_equal(released.nodes, grower.leaves()[0]):
        values = released.value  # as sent, which a defense may have changed
    every = np.concatenate(nodes)
    return _Grown(
        grower.finish(values),
        every,
        {o: np.concatenate(h) for o, h in sums.items()},
        {o: np.array([total[o][int(n)] for n in every]) for o in owners},
    )


def _split_totals(
    total: dict[int, Sums],
    chosen: Decisions,
    sums: list[Sums],
    place: Mapping[int, tuple[int, int]],
    cuts: Cuts,
) -> None:
    """Add the totals of the children of split nodes."""
    for k, node in enumerate(chosen.nodes.tolist()):
        a, b = place[node]
        first, end = cuts.offsets[chosen.feature[k]], cuts.offsets[chosen.feature[k] + 1]
        hist = sums[a][b][first:end]
        left = hist[_left_bins(chosen, k, len(hist))].sum(axis=0)
        if chosen.default_left[k]:
            left = left + total[node] - hist.sum(axis=0)
        total[int(chosen.left[k])] = left
        total[int(chosen.left[k]) + 1] = total[node] - left


def _left_bins(chosen: Decisions, k: int, n: int) -> NDArray[np.bool_]:
    """Return which of the n bins of its feature split k sends left."""
    left: NDArray[np.bool_] = np.arange(n) <= chosen.bin[k]
    if chosen.categories is not None and np.isnan(chosen.threshold[k]):
        right = chosen.categories[k, :n]
        left = ~np.pad(right, (0, n - len(right)))
    return left


def _terminal(grown: _Grown, start: int, forest: BinnedForest) -> NDArray[np.intp]:
    """Return which histograms belong to terminal nodes, in the order of their cells."""
    cell = forest.cell[start + grown.nodes]
    order = np.argsort(cell, kind="stable")
    return order[cell[order] >= 0]


def _slack(view: View, params: TreeParams, sources: int) -> float:
    """Return how far sums may be off, in units of 2^-30, given the declared noise and rounding.

    A node's histogram by subtraction carries the noise of its ancestors, at most one per level.
    """
    declared = view.defense.declares(view.schema, view.parameters)
    variance = declared.noise_variance + declared.histogram_step**2 / 12
    clients = sum(role == "client" for role in view.roles.values())
    parties = clients if sources == 1 else 1
    return float(
        np.ldexp(_DEVIATIONS * np.sqrt(variance * parties * params.max_depth), FIXED_POINT_BITS)
    )
