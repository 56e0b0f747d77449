"""Released sums of gradients and hessians as linear functions of membership.

In boosting, the gradient of a row in round t depends on the model after t - 1 rounds. This model is
released, so that the adversary computes the gradient of any candidate as a client would, including
the clipping that the protocol and its defenses declare. Depending on the messages, the sums are
those of histogram bins, those of leaves, or one equation per leaf that follows from its value.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.membership.base import LinearSums
from fedtrees.attacks.observations.boosting import BoostingObservations, SumVariance
from fedtrees.attacks.observations.reading import leaf_noise, read_boosting, releases_leaves
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore
from fedtrees.privacy.gaussian_dp import clipped_row_bound
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import UNIT_BITS, Bits, clip_to_fixed, from_fixed, to_fixed
from fedtrees.trees.boosted.losses import Objective, clipped_bounds, objective_of
from fedtrees.trees.boosted.noisy_leaves import bounded
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


def boosted_sums(view: View, rows: Table) -> list[LinearSums]:
    """Return the gradient sums of boosted trees, one entry per group of separate sums.

    There is one entry per client if the view shows the sums or trees of single clients
    (`observe_clients`), else one for all clients together.

    Parameters
    ----------
    view : View
        Messages of the training of boosted trees.
    rows : Table
        The n candidates.

    Returns
    -------
    list of LinearSums
        Empty if rows have weights, which the adversary does not know, or if leaf values have an L1
        penalty and no sums are seen, because they are then not linear in membership.
    """
    if view.weighted:
        return []
    victims = [victim.evidence for victim in observe_clients(view)]
    one = None if victims else read_boosting(view)
    groups = victims if one is None else [one]
    unknown = view.n_rows - (0 if view.rows is None else len(view.rows))
    return [
        sums
        for evidence in groups
        if (sums := _sums_of(view, evidence, rows, unknown / len(groups))) is not None
    ]


def _sums_of(
    view: View, evidence: BoostingObservations, rows: Table, unknown: float
) -> LinearSums | None:
    """Return the sums that one source of evidence shows, None if it shows none."""
    if evidence.observed.level == "values" and evidence.params.reg_alpha:
        return None
    local = view.rows
    if evidence.row_counts.n_rows is not None and len(evidence.trees):
        n_known = len(local) if local is not None and evidence.observed.own_inside else 0
        unknown = evidence.row_counts.n_rows - n_known
    every = rows if local is None else Table.concat([rows, local])
    return _Sums(view, evidence, every, len(rows), float(max(unknown, 0))).linear()


class _Sums:
    """Contributions of candidates and of known rows to the sums of one source of evidence.

    Rows are the n candidates, followed by the rows that the adversary knows to be members.
    """

    def __init__(
        self, view: View, evidence: BoostingObservations, every: Table, n: int, unknown: float
    ) -> None:
        self.view, self.evidence, self.every, self.n = view, evidence, every, n
        self.unknown = unknown
        self.objective = objective_of(view.parameters.get("objective"), view.schema.classes)
        self.leaf = Routes.of(evidence.trees).apply(every.X)
        self.bits = fixed_point_bits(view)
        # A row takes part in each tree with probability `share`, independently of other trees.
        self.share = evidence.share

    def linear(self) -> LinearSums | None:
        """Return the sums of all trees that were grown on the local data of the victims.

        None if there is no such tree, or none of them has sums.
        """
        e = self.evidence
        parts = [
            part
            for t, g, h in self.gradients()
            if not e.is_foreign(t)
            for part in (self.bins if e.observed.level == "histograms" else self.leaves)(t, g, h)
        ]
        if not parts:
            return None
        matrix = csr_array(hstack([part[0] for part in parts], format="csr"))
        total = np.concatenate([part[1] for part in parts])
        variance = np.concatenate([part[2] for part in parts])
        return LinearSums(matrix, total, variance, self.unknown)

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

    def leaves(self, t: int, g: Floats, h: Floats) -> Iterator[tuple[csr_array, Floats, Floats]]:
        """Yield the sums in the leaves of a tree, or one linear equation per leaf value.

        Parameters
        ----------
        t : int
            Number of the tree.
        g, h : float64 array, shape (n + r,)
            Gradient and hessian of the n candidates and of the r known rows.

        Yields
        ------
        contributions, totals, variances
            As returned by `cells`. Gradient and hessian sums are yielded separately if the view
            contains them. Otherwise there is one equation per leaf that follows from its value.
        """
        e, tree = self.evidence, self.evidence.trees[t]
        row, place = np.arange(len(self.every)), np.searchsorted(tree.leaves, self.leaf[:, t])
        sent = None if e.observed.own_sums is None else e.observed.own_sums[t]
        noise = self.noise_of_leaves(t)
        if e.observed.level == "statistics" and tree.g is not None and tree.h is not None:
            for k, (x, sums) in enumerate(((g, tree.g), (h, tree.h))):
                known_sums = None if sent is None else sent[:, k]
                total, variance = sums[tree.leaves], noise[:, k]
                yield self.cells(row, place, x, total, variance, known_sums, e.observed.own_inside)
            return
        w = tree.value[tree.leaves].astype(np.float64) / e.params.learning_rate
        expected = np.bincount(place[: self.n], h[: self.n], len(w)) * self.unknown / self.n
        expected = np.maximum(expected * self.share, 1e-6)
        # A leaf value is -G / (H + lambda (1 + doubt / H)), where `doubt` is the variance of
        # the noise in G if the protocol shrinks noisy leaves, else 0. It is linear in G and, to
        # first order around the expected H, linear in H.
        doubt = noise[:, 0] if releases_leaves(self.view) else np.zeros(len(w))
        slope = 1 - e.params.reg_lambda * doubt / expected**2
        offset = e.params.reg_lambda * (1 + 2 * doubt / expected)
        variance = noise[:, 0] + (w * slope) ** 2 * noise[:, 1]
        if (law := e.distortion.rounding) is not None:
            rounded = law.posterior_moments(tree.value[tree.leaves].astype(np.float64)[:, None])[1][
                :, 0
            ]
            variance = variance + rounded * ((expected + offset) / e.params.learning_rate) ** 2
        variance = np.where(w == 0, np.inf, variance)  # a leaf of too few rows, or none
        known_sums = None if sent is None else sent[:, 0] + w * slope * sent[:, 1]
        x, own_inside = g + (w * slope)[place] * h, e.observed.own_inside
        yield self.cells(row, place, x, -w * offset, variance, known_sums, own_inside)

    def noise_of_leaves(self, t: int) -> Floats:
        """Return the variance of the noise on G and H of each leaf of a tree, shape (J, 2)."""
        tree, noise = self.evidence.trees[t], self._noise(t)
        if noise is None:
            return np.zeros((len(tree.leaves), 2))
        return np.stack([noise.g, noise.h], axis=1)[tree.leaves].astype(np.float64)

    def _noise(self, t: int) -> SumVariance | None:
        if self.evidence.distortion.noise is not None:
            return self.evidence.distortion.noise[t]
        if self.evidence.observed.level != "values" or not releases_leaves(self.view):
            return None
        noise_by_tree = leaf_noise(self.view, (self.evidence.trees[t],), 1.0)
        return None if noise_by_tree is None else noise_by_tree[0]

    def bins(self, t: int, g: Floats, h: Floats) -> Iterator[tuple[csr_array, Floats, Floats]]:
        """Yield the sums in the bins of those nodes whose histograms were sent.

        Parameters
        ----------
        t : int
            Number of the tree.
        g, h : float64 array, shape (n + r,)
            Gradient and hessian of the n candidates and of the r known rows.

        Yields
        ------
        contributions, totals, variances
            As returned by `cells`, for the gradients and then the hessians of each node.
        """
        e, tree = self.evidence, self.evidence.trees[t]
        assert e.observed.histograms is not None
        assert e.observed.cuts is not None
        seen, noise = e.observed.histograms[t], self._noise(t)
        codes = bin_rows(self.every.X, e.observed.cuts)
        above = _ancestors(tree)
        cell_g, cell_h, row_g = np.zeros(len(tree)), np.zeros(len(tree)), 0.0
        if noise is not None:
            cell_g, cell_h = (np.broadcast_to(c, len(tree)) for c in (noise.cell_g, noise.cell_h))
            row_g = noise.row_g
        # The histogram of a sibling that follows by subtraction carries the noise of the parent and
        # of the sent child, and contains no further information.
        is_sent = cell_g[seen.nodes] <= cell_g[seen.nodes].min() * (1 + 1e-9)
        offsets, code = e.observed.cuts.offsets, np.stack(codes.columns)
        for k in np.flatnonzero(is_sent).tolist():
            node = int(seen.nodes[k])
            rows = np.flatnonzero(above[node][self.leaf[:, t]])
            column, position = np.nonzero(code[:, rows] != codes.missing)
            row = rows[position]
            place = offsets[column] + code[column, row]
            for s, (x, cell) in enumerate(((g, cell_g), (h, cell_h))):
                total = seen.sums[k, :, s]
                variance = np.full(len(total), float(cell[node]))
                if s == 0 and row_g:
                    count = np.bincount(place[row < self.n], minlength=len(total))
                    variance = variance + row_g * count * self.unknown / self.n
                if e.distortion.hides_small_bins:  # a bin of few rows is sent as if it were empty
                    variance = np.where(total == 0, np.inf, variance)
                yield self.cells(row, place, x, total, variance, None, e.observed.own_in_bins)

    def cells(
        self,
        row: Longs,
        place: Longs,
        x: Floats,
        total: Floats,
        variance: Floats,
        known_sums: Floats | None,
        includes_known: bool,
    ) -> tuple[csr_array, Floats, Floats]:
        """Return contributions to cells, and totals without the contributions of known rows.

        Parameters
        ----------
        row, place : int64 array, shape (m,)
            Pairs of a row and a cell that contains it. Rows are the n candidates, then the r known
            rows. A row can be in several cells, for example in one bin of each column.
        x : float64 array, shape (n + r,)
            Contribution of every row to each of its cells.
        total, variance : float64 array, shape (K,)
            Sums and the variance of their noise.
        known_sums : float64 array, shape (K,), or None
            Sums over the known rows that the principals sent. None: compute them from `x`.
        includes_known : bool
            Whether the totals include the known rows.

        Returns
        -------
        contributions : sparse array, shape (n, K)
            Expected contribution of each candidate, if it is a member.
        totals, variances : float64 array, shape (K,)
            Under row subsampling, the variances include the random choice of rows.
        """
        value, is_known = x[row], row >= self.n
        if known_sums is None and includes_known:
            cells = np.bincount(place[is_known], value[is_known], len(total))
            known_sums = np.asarray(self.share * cells)
        row, place, value = row[~is_known], place[~is_known], value[~is_known]
        if self.share < 1:
            drawn = np.bincount(place, value**2, len(total)) * self.unknown / self.n
            variance = variance + self.share * (1 - self.share) * drawn
        matrix = csr_array((self.share * value, (row, place)), shape=(self.n, len(total)))
        left = total if known_sums is None or not includes_known else total - known_sums
        return matrix, left, variance


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
