"""Released sums of gradients and hessians as linear functions of membership.

In boosting, the gradient of a row in round t depends on the model after t - 1 rounds. This model is
released, so that the adversary computes the gradient of any candidate as a client would, including
the clipping that the protocol and its defenses declare. Depending on the messages, the sums are
those of histogram bins, those of leaves, or one equation per leaf that follows from its value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array

from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.membership.base import GREATEST_PRIOR, LEAST_PRIOR, LinearSums
from fedtrees.attacks.membership.suppressed_bins import SuppressedBins
from fedtrees.attacks.membership.suppressed_leaves import (
    SuppressedTree,
    draw_members,
    independent_sums,
    likely_cuts,
)
from fedtrees.attacks.observations.boosting import BoostingObservations, SumVariance
from fedtrees.attacks.observations.reading import leaf_noise, read_boosting, releases_leaves
from fedtrees.attacks.observations.replay import (
    EVERYONE,
    OTHERS,
    clients_in,
    hides,
    sent_back,
    trees_grown_locally,
)
from fedtrees.core.channel import Change, chained
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, Histogram
from fedtrees.privacy.gaussian_dp import clipped_row_bound
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import UNIT_BITS, Bits, clip_to_fixed, from_fixed, to_fixed
from fedtrees.trees.boosted.losses import Objective, clipped_bounds, objective_of
from fedtrees.trees.boosted.noisy_leaves import bounded
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


def boosted_sums(
    view: View, rows: Table, possible: Mapping[str, NDArray[np.intp]] | None = None
) -> list[LinearSums]:
    """Return the gradient sums of boosted trees, one entry per group of separate sums.

    There is one entry per client if the view shows the sums or trees of single clients
    (`observe_clients`), else one for all clients together.

    Parameters
    ----------
    view : View
        Messages of the training of boosted trees.
    rows : Table
        The n candidates.
    possible : mapping of str to int64 array, or None
        By client: positions of the candidates that may be its rows. Clients that are missing here
        may have all candidates.

    Returns
    -------
    list of LinearSums
        Empty if rows have weights, which the adversary does not know, or if leaf values have an L1
        penalty and no sums are seen, because they are then not linear in membership.
    """
    if view.weighted:
        return []
    sources = [(victim.owner, victim.evidence) for victim in observe_clients(view)]
    if not sources and (joint := read_boosting(view)) is not None:
        sources = [(None, joint)]
    sources = [
        (owner, e) for owner, e in sources if e.observed.level != "values" or not e.params.reg_alpha
    ]
    if not sources:
        return []
    owners, groups = zip(*sources, strict=True)
    unknown = view.n_rows - (0 if view.rows is None else len(view.rows))
    sizes = [_unknown_rows(view, evidence, unknown / len(groups)) for evidence in groups]
    possible = possible or {}
    if not (trees_grown_locally(view) or any(e.distortion.hides_small_bins for e in groups)):
        shared = _Sums(view, groups, rows, sizes).linear()
        named = [replace(s, owner=owner) for s, owner in zip(shared, owners, strict=bool(shared))]
        return [s.restricted(possible[s.owner]) if s.owner in possible else s for s in named]
    separate = list[LinearSums]()
    for owner, e, size in zip(owners, groups, sizes, strict=True):
        place = possible.get(owner)
        if place is not None and not len(place):
            continue
        candidates = rows if place is None else rows.take(place)
        for sums in _Sums(view, [e], candidates, [size]).linear():
            separate.append(replace(sums, owner=owner, possible=place))
    return separate


def _unknown_rows(view: View, evidence: BoostingObservations, expected: float) -> float:
    """Return the number of rows in the sums of one source, without those that are known."""
    if evidence.row_counts.n_rows is None or not len(evidence.trees):
        return max(expected, 0.0)
    is_inside = view.rows is not None and evidence.observed.own_inside
    n_known = len(view.rows) if view.rows is not None and is_inside else 0
    return float(max(evidence.row_counts.n_rows - n_known, 0))


class _Sums:
    """Contributions of candidates and of known rows to the sums of groups of clients.

    Rows are the n candidates, followed by the rows that the adversary knows to be members.

    Parameters
    ----------
    view : View
        Messages of the training.
    groups : sequence of BoostingObservations
        Sums of each group, in the same trees.
    candidates : Table
        The n candidates.
    sizes : sequence of float
        Number of unknown rows in each group.
    """

    def __init__(
        self,
        view: View,
        groups: Sequence[BoostingObservations],
        candidates: Table,
        sizes: Sequence[float],
    ) -> None:
        self.view, self.groups, self.n = view, groups, len(candidates)
        self.evidence = groups[0]  # the trees and the settings are those of all groups
        self.every = candidates if view.rows is None else Table.concat([candidates, view.rows])
        self.sizes = np.array(sizes)
        self.objective = objective_of(view.parameters.get("objective"), view.schema.classes)
        self.leaf = Routes.of(self.evidence.trees).apply(self.every.X)
        self.bits = fixed_point_bits(view)
        # A row takes part in each tree with probability `share`, independently of other trees.
        self.share = self.evidence.share
        self.suppressed = _suppressed_bins(view, self.evidence, sizes[0] / max(self.n, 1))
        # Pairs of a row and a sum, contributions, and totals and variances of every group.
        self._pairs = list[tuple[Longs, Longs, Floats]]()
        self._totals, self._variances = list[Floats](), list[Floats]()
        self._n_sums = 0

    def linear(self) -> list[LinearSums]:
        """Return the sums of all trees that were grown on the local data of the groups.

        The result is empty if there is no such tree, or if none of them has sums.
        """
        if (limit := self._limit_of_leaves()) is not None:
            return [self._suppressed_leaves(limit)]
        is_binned = self.evidence.observed.level == "histograms"
        for t, g, h in self.gradients():
            if not self.evidence.is_foreign(t):
                (self.add_bins if is_binned else self.add_leaves)(t, g, h)
        if not self._pairs:
            return []
        row, place, value = (np.concatenate(part) for part in zip(*self._pairs, strict=True))
        # Most bins of small nodes contain no candidate.
        is_filled = np.bincount(place, minlength=self._n_sums) > 0
        place = (np.cumsum(is_filled) - 1)[place]
        matrix = csc_array(coo_array((value, (row, place)), shape=(self.n, int(is_filled.sum()))))
        totals, variances = (
            np.hstack(part)[:, is_filled] for part in (self._totals, self._variances)
        )
        return [
            LinearSums(matrix, total, variance, size)
            for total, variance, size in zip(totals, variances, self.sizes.tolist(), strict=True)
        ]

    def _limit_of_leaves(self) -> float | None:
        """Return the hessian sum below which clients suppressed bins that leaf sums lack.

        None if leaf sums lack no bins, or if their law is not known. It is not known if sums have
        noise, if targets are numeric (the sums of some columns are then adjusted), or if there are
        more members than candidates.
        """
        evidence, (size,) = self.evidence, self.sizes[:1]
        if evidence.observed.level == "histograms" or not evidence.distortion.hides_small_bins:
            return None
        is_distorted = evidence.distortion.noise or evidence.distortion.rounding
        if is_distorted or not self.view.schema.classes or not 1 <= size <= self.n:
            return None
        by_clients = [c for c in self.view.changes(Histogram, "sums", "client") if hides([c])]
        return _limit(by_clients)

    def _suppressed_leaves(self, limit: float) -> LinearSums:
        """Return the sums of all leaves if clients suppressed small bins (`SuppressedTree`).

        Parameters
        ----------
        limit : float
            A client suppresses a bin with a smaller hessian sum.
        """
        evidence, n, size = self.evidence, self.n, float(self.sizes[0])
        observed, params = evidence.observed, evidence.params
        X = self.every.X[:n]
        cuts = observed.cuts or likely_cuts(X, evidence.trees, params.max_bin, self.view.schema)
        bins = bin_rows(X, cuts)
        code = np.array([*bins.columns], dtype=np.int64)
        code = np.where(code == bins.missing, -1, code)
        clients = clients_in(self.view, OTHERS)
        rng = np.random.default_rng(0)
        member, client = draw_members(n, round(size), clients, rng)
        contributions, draws, totals = list[Floats](), list[Floats](), list[Floats]()
        for t, g, h in self.gradients():
            tree, is_known = evidence.trees[t], np.arange(len(self.every)) >= n
            inside = _ancestors(tree)[:, self.leaf[:n, t]].T
            gh = np.stack([g, h], axis=1)
            law = SuppressedTree(tree, cuts, code, inside, gh[:n], limit, clients)
            used = member if self.share == 1 else member & (rng.random(member.shape) < self.share)
            drawn, is_sent = law.draw_leaf_sums(used, client)
            each = [
                self.share * law.leaf_contributions(x, self.share * size / n, is_sent)
                for x in gh[:n].T
            ]
            if observed.own_sums is not None:
                known = observed.own_sums[t]
            else:
                place = np.searchsorted(tree.leaves, self.leaf[is_known, t])
                weights = (self.share * gh[is_known]).T
                known = np.stack([np.bincount(place, w, len(tree.leaves)) for w in weights], axis=1)
            if tree.g is not None and tree.h is not None:
                sums = np.stack([tree.g, tree.h], axis=1)[tree.leaves] - known
                contributions += each
                draws += [drawn[..., 0], drawn[..., 1]]
                totals += [sums[:, 0], sums[:, 1]]
            else:  # a leaf value w states that G + w H = -w lambda
                w = tree.value[tree.leaves].astype(np.float64) / params.learning_rate
                shown = w != 0
                contributions.append((each[0] + w * each[1])[:, shown])
                draws.append((drawn[..., 0] + w * drawn[..., 1])[:, shown])
                totals.append((-w * params.reg_lambda - known[:, 0] - w * known[:, 1])[shown])
        contribution, total, variance = independent_sums(
            np.hstack(contributions), np.hstack(draws), member, np.concatenate(totals)
        )
        return LinearSums(csc_array(contribution), total, variance, size)

    def gradients(self) -> Iterator[tuple[int, Floats, Floats]]:
        """Yield each tree's number and the gradient and hessian of every row, float64, (n,)."""
        e, K = self.evidence, self.evidence.outputs
        start = np.reshape(np.asarray(e.base_margin, dtype=np.float32), (-1, 1))
        margin = np.repeat(start, len(self.every), axis=1)
        for t in range(len(e.trees)):
            if t % K == 0:
                if e.restart is not None and e.restart[0] == t:
                    margin += np.reshape(e.restart[1], (-1, 1)).astype(np.float32)
                gh = client_gradients(self.view, self.objective, margin, self.every.y, self.bits)
                if e.constant_hessian:
                    gh[..., 1] = 1.0
            yield t, gh[t % K, :, 0], gh[t % K, :, 1]
            if t % K == K - 1:
                for k in range(K):
                    at = t - K + 1 + k
                    margin[k] += e.trees[at].value[self.leaf[:, at]]

    def add_leaves(self, t: int, g: Floats, h: Floats) -> None:
        """Add the sums in the leaves of a tree, or one linear equation per leaf value.

        Gradient and hessian sums are added separately if the view contains them. Otherwise there is
        one equation per leaf that follows from its value.

        Parameters
        ----------
        t : int
            Number of the tree.
        g, h : float64 array, shape (n + r,)
            Gradient and hessian of the n candidates and of the r known rows.
        """
        e, tree = self.evidence, self.evidence.trees[t]
        row, place = np.arange(len(self.every)), np.searchsorted(tree.leaves, self.leaf[:, t])
        sent = None if e.observed.own_sums is None else e.observed.own_sums[t]
        inside = e.observed.own_inside
        if e.observed.level == "statistics" and tree.g is not None and tree.h is not None:
            for k, x in enumerate((g, h)):
                sums = [(one.trees[t].g, one.trees[t].h)[k] for one in self.groups]
                total = np.stack([part[tree.leaves] for part in sums if part is not None])
                variance = np.stack([self.noise_of_leaves(one, t)[:, k] for one in self.groups])
                known_sums = None if sent is None else sent[:, k]
                self.add_cells(row, place, x, total, variance, inside, known_sums)
            return
        noise = self.noise_of_leaves(e, t)
        w = tree.value[tree.leaves].astype(np.float64) / e.params.learning_rate
        expected = np.bincount(place[: self.n], h[: self.n], len(w)) * self.sizes[0] / self.n
        expected = np.maximum(expected * self.share, 1e-6)
        # A leaf value is -G / (H + lambda (1 + doubt / H)), where `doubt` is the variance of
        # the noise in G if the protocol shrinks noisy leaves, else 0. It is linear in G and, to
        # first order around the expected H, linear in H.
        doubt = noise[:, 0] if releases_leaves(self.view) else np.zeros(len(w))
        slope = 1 - e.params.reg_lambda * doubt / expected**2
        offset = e.params.reg_lambda * (1 + 2 * doubt / expected)
        variance = noise[:, 0] + (w * slope) ** 2 * noise[:, 1]
        if (law := e.distortion.rounding) is not None:
            values = tree.value[tree.leaves].astype(np.float64)
            rounded = law.posterior_moments(values[:, None])[1][:, 0]
            variance = variance + rounded * ((expected + offset) / e.params.learning_rate) ** 2
        variance = np.where(w == 0, np.inf, variance)  # a leaf of too few rows, or none
        known_sums = None if sent is None else sent[:, 0] + w * slope * sent[:, 1]
        x = g + (w * slope)[place] * h
        self.add_cells(row, place, x, (-w * offset)[None], variance[None], inside, known_sums)

    def noise_of_leaves(self, evidence: BoostingObservations, t: int) -> Floats:
        """Return the variance of the noise on G and H of each leaf of a tree, shape (J, 2)."""
        tree, noise = evidence.trees[t], self._noise(evidence, t)
        if noise is None:
            return np.zeros((len(tree.leaves), 2))
        return np.stack([noise.g, noise.h], axis=1)[tree.leaves].astype(np.float64)

    def _noise(self, evidence: BoostingObservations, t: int) -> SumVariance | None:
        if evidence.distortion.noise is not None:
            return evidence.distortion.noise[t]
        if evidence.observed.level != "values" or not releases_leaves(self.view):
            return None
        noise_by_tree = leaf_noise(self.view, (evidence.trees[t],), 1.0)
        return None if noise_by_tree is None else noise_by_tree[0]

    def add_bins(self, t: int, g: Floats, h: Floats) -> None:
        """Add the gradient and hessian sums in the bins of those nodes whose histograms were sent.

        Parameters
        ----------
        t : int
            Number of the tree.
        g, h : float64 array, shape (n + r,)
            Gradient and hessian of the n candidates and of the r known rows.
        """
        observed, tree = self.evidence.observed, self.evidence.trees[t]
        seen = [one.observed.histograms[t] for one in self.groups if one.observed.histograms]
        above, code = _ancestors(tree), self.codes
        # The histogram of a sibling follows by subtraction and contains no further information. If
        # bins were suppressed, it does not even contain the sums of the sibling.
        for k in np.flatnonzero(seen[0].is_sent).tolist():
            node = int(seen[0].nodes[k])
            rows = np.flatnonzero(above[node][self.leaf[:, t]])
            column, position = np.nonzero(code[:, rows] >= 0)
            row = rows[position]
            place = code[column, row]
            sums = np.stack([one.sums[k] for one in seen])
            count = np.bincount(place[row < self.n], minlength=sums.shape[1]) / self.n
            noise = np.stack(
                [
                    self._noise_of_bins(one, t, node, count * size)
                    for one, size in zip(self.groups, self.sizes, strict=True)
                ]
            )
            if self.suppressed is not None and not noise.any():
                self.add_suppressed_bins(row, place, (g, h), sums[0])
                if node == 0:  # the total over all rows is sent without suppression
                    one_sum, exact = np.zeros(len(rows), dtype=np.int64), np.zeros((1, 1))
                    for x, total in zip((g, h), seen[0].totals[k], strict=True):
                        self.add_cells(
                            rows, one_sum, x[rows], exact + total, exact, observed.own_in_bins
                        )
                continue
            if self.evidence.distortion.hides_small_bins:  # a bin of zeros may be a suppressed one
                noise = np.where((sums == 0).all(axis=-1, keepdims=True), np.inf, noise)
            for s, x in enumerate((g, h)):
                self.add_cells(
                    row, place, x[row], sums[..., s], noise[..., s], observed.own_in_bins
                )

    @cached_property
    def codes(self) -> Longs:
        """Place of every value in the histogram of a node, int64, (d, n + r). Missing: -1."""
        cuts = self.evidence.observed.cuts
        assert cuts is not None
        bins = bin_rows(self.every.X, cuts)
        code = np.array([*bins.columns], dtype=np.int64)
        return np.where(code == bins.missing, -1, code + cuts.offsets[:-1, None])

    def _noise_of_bins(
        self, evidence: BoostingObservations, t: int, node: int, n_rows: Floats
    ) -> Floats:
        """Return the variance of the noise on G and H of each bin of a node, shape (B, 2).

        `n_rows` is the expected number of rows in each bin, shape (B,).
        """
        variance = np.zeros((len(n_rows), 2))
        if (noise := self._noise(evidence, t)) is not None:
            for s, cells in enumerate((noise.cell_g, noise.cell_h)):
                variance[:, s] = np.broadcast_to(cells, len(evidence.trees[t]))[node]
            variance[:, 0] += noise.row_g * n_rows
        return variance

    def add_suppressed_bins(
        self, row: Longs, place: Longs, gh: tuple[Floats, Floats], sums: Floats
    ) -> None:
        """Add the sums in the bins of a node, of which clients suppressed some (`SuppressedBins`).

        Parameters
        ----------
        row, place : int64 array, shape (m,)
            Pairs of a row of the node and a bin that contains it.
        gh : tuple of float64 array, shape (n + r,)
            Gradient and hessian of every row.
        sums : float64 array, shape (B, 2)
            Sums that were sent. A bin that every client suppressed has zeros.
        """
        assert self.suppressed is not None
        own_in_bins, candidate = self.evidence.observed.own_in_bins, row < self.n
        count = np.bincount(place[candidate], minlength=len(sums)).astype(np.float64)

        def mean_of(x: Floats) -> Floats:
            added = np.bincount(place[candidate], x[row[candidate]], len(sums))
            return np.asarray(added / np.maximum(count, 1))

        hessian, is_sent = mean_of(gh[1]), (sums != 0).any(axis=1)
        lacking, doubt, few, error = (np.zeros(len(sums)) for _ in range(4))
        sent = (count[is_sent], hessian[is_sent])
        lacking[is_sent], doubt[is_sent] = self.suppressed.lacking(*sent, sums[is_sent, 1])
        hidden = (count[~is_sent], hessian[~is_sent])
        few[~is_sent], error[~is_sent] = self.suppressed.observations(*hidden)
        if own_in_bins:  # known rows of suppressed bins were suppressed as well
            error[~is_sent] = np.inf
        ignored = ~is_sent & np.isinf(error)
        error[ignored] = 0.0
        for s, x in enumerate(gh):
            mean = mean_of(x)
            spread = lacking * (mean_of(x**2) - mean**2) + doubt * mean**2
            total = np.where(is_sent, sums[:, s] + lacking * mean, few * mean)
            variance = np.where(is_sent, np.maximum(spread, 0.0), error * mean**2)
            # The limit applies to hessian sums.
            variance[ignored if s == 1 else ~is_sent] = np.inf
            self.add_cells(row, place, x[row], total[None], variance[None], own_in_bins)

    def add_cells(
        self,
        row: Longs,
        place: Longs,
        value: Floats,
        totals: Floats,
        variances: Floats,
        includes_known: bool,
        known_sums: Floats | None = None,
    ) -> None:
        """Add K sums, without the contributions of known rows.

        Under row subsampling, the random choice of rows is added to the variances.

        Parameters
        ----------
        row, place : int64 array, shape (m,)
            Pairs of a row and a cell that contains it. Rows are the n candidates, then the r known
            rows. A row can be in several cells, for example in one bin of each column.
        value : float64 array, shape (m,)
            Contribution of the row to the cell.
        totals, variances : float64 array, shape (S, K)
            Sums of the S groups and the variance of their noise.
        includes_known : bool
            Whether the totals include the known rows.
        known_sums : float64 array, shape (K,), or None
            Sums over the known rows that the principals sent. None: compute them from `value`.
        """
        is_known, n_sums = row >= self.n, totals.shape[1]
        if includes_known:
            computed = self.share * np.bincount(place[is_known], value[is_known], n_sums)
            totals = totals - (computed if known_sums is None else known_sums)
        row, place, value = row[~is_known], place[~is_known], value[~is_known]
        if self.share < 1:
            drawn = np.bincount(place, value**2, n_sums) * self.sizes[:, None] / self.n
            variances = variances + self.share * (1 - self.share) * drawn
        self._pairs.append((row, place + self._n_sums, self.share * value))
        self._totals.append(totals)
        self._variances.append(np.broadcast_to(variances, totals.shape))
        self._n_sums += n_sums


def _suppressed_bins(
    view: View, evidence: BoostingObservations, prior: float
) -> SuppressedBins | None:
    """Return the law of suppressed bins, None if no bin is suppressed."""
    if not evidence.distortion.hides_small_bins or evidence.observed.level != "histograms":
        return None
    by_clients = [c for c in view.changes(Histogram, "sums", "client") if hides([c])]
    limit = _limit(by_clients or [c for c in sent_back(view) if hides([c])])
    if limit is None:
        return None
    clients = 1  # of which each suppresses bins before the sums are added up
    if by_clients and evidence.observed.own_inside:
        clients = clients_in(view, EVERYONE if evidence.observed.own_in_bins else OTHERS)
    return SuppressedBins(limit, clients, float(np.clip(prior, LEAST_PRIOR, GREATEST_PRIOR)))


def _limit(changes: Sequence[Change]) -> float | None:
    """Return the hessian sum below which bins are suppressed, None if there is no such limit."""
    law = chained(changes)
    limit = 0.0 if law is None else float(law.preimage(np.zeros(2), np.zeros(2))[1][-1])
    return limit if 0 < limit < np.inf else None


def fixed_point_bits(view: View) -> Bits:
    """Return the fixed-point precision of gradient and hessian sums, in bits after the point.

    It is announced with the base score. `UNIT_BITS` is used if the view contains no base score.
    """
    start = next((m for _, m in view.messages(BaseScore)), None)
    return UNIT_BITS if start is None else (start.g_bits, start.h_bits)


def client_gradients(
    view: View, objective: Objective, margin: NDArray[np.float32], y: NDArray[Any], bits: Bits
) -> Floats:  # fmt: skip
    """Return gradients and hessians with the clipping and rounding that clients apply.

    Parameters
    ----------
    view : View
        Declares gradient clipping, and the clipping of rows if noisy leaf sums are released.
    objective : Objective
        Loss of the boosting.
    margin : float32 array, shape (K, n)
        Raw predictions before the round, per output.
    y : array, shape (n,)
        Labels or numeric targets.
    bits : (int, int)
        Fixed-point precision of gradients and hessians; see `fixed_point_bits`.

    Returns
    -------
    float64 array, shape (K, n, 2)
    """
    gh = objective.gradients(margin, y)
    clip = view.defense.requirements.gradient_clip
    if clip is None:
        units = to_fixed(gh, bits)
    else:
        units = clip_to_fixed(gh, clipped_bounds(objective, clip), bits)
    if releases_leaves(view):
        p = view.parameters
        settings = {"clip": p["clip"], "share": p["hessian_share"]}
        noisy = bool(np.isfinite(p["epsilon"]))
        bound = clipped_row_bound(objective.norms, free=objective.free, noisy=noisy, **settings)
        units = bounded(units, bound.norm, bound.ratio, bits)
    return from_fixed(units, bits)


def _ancestors(tree: Tree) -> NDArray[np.bool_]:
    """Return whether each node lies on the path to each node, bool, shape (nodes, nodes)."""
    above = np.eye(len(tree), dtype=bool)
    for node in np.flatnonzero(tree.feature >= 0)[::-1]:  # children come after their parent
        above[node] |= above[tree.left[node]] | above[tree.right[node]]
    return above
