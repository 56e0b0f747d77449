"""Canaries for audits of histograms and of cut points of horizontal boosting.

`HistogramCanaries` suit the parameters of a run: all canaries belong to one client, and the auditor
reads all its root histograms. `StumpCanaries` suit the parameters that reveal most: one canary per
client, one column, and one split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from fedtrees.core.channel import Chain, Channel, chained
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import LocalData, client_names, over_clients
from fedtrees.core.messages import has_sealed_field
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.defenses.cut_points import PrivateQuantileCuts
from fedtrees.messages.horizontal import (
    CutPoints,
    FeatureSketch,
    GridCounts,
    GridRequest,
    Histogram,
)
from fedtrees.privacy_audit.canaries import Canaries, register_audit_setting, register_canaries
from fedtrees.protocols.horizontal.histogram_protocols import HistogramProtocol
from fedtrees.protocols.training import Training
from fedtrees.trees.binning import Cuts, bin_rows

_COLUMNS = 64
_EXACT = 1e-3  # smallest assumed scale of the noise, so that exact sums have finite scores
_MANY, _HIGH = 64, 1 << 20
_BARE = 1  # clients without a canary, because some protocols need several clients
_SURE = 40.0  # nats, for a release that is impossible under one of the two tables


@dataclass(frozen=True)
class HistogramCanaries(Canaries):
    """Rows that share a bin of one column with few canaries, and rarely with the same ones."""

    max_bin: int

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """Columns with declared ranges, in which every bin has width 1."""
        high = float(self.max_bin)
        return Schema(tuple(Feature(f"x{i}", low=0.0, high=high) for i in range(_COLUMNS)), "y")

    @property
    def max_canaries(self) -> int:  # type: ignore[override]
        """Four canaries per bin, 1024 at most."""
        return min(4 * self.max_bin, 1024)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return canaries in random bins and of both classes, and two rows in the last bins."""
        X = rng.integers(0, self.max_bin, (count, _COLUMNS)) + np.float32(0.5)
        last = np.full((2, _COLUMNS), self.max_bin - 0.5, np.float32)
        return Table(X, np.arange(count) % 2), Table(last, np.array([0, 1]))

    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare the root histograms in a canary's bins with its contribution there."""
        scores, places = np.zeros(len(rows)), None
        client_law, total_law, row = channels_of_sums(training)
        for d in training.transcript:
            message = d.message
            if isinstance(message, CutPoints):
                codes = bin_rows(rows.X, message.to_cuts()).codes
                places = codes + message.offsets[:-1].astype(np.int64)
            is_visible = d.sender == "client-0" or d.receivers == (d.sender,)
            if not isinstance(message, Histogram) or has_sealed_field(message) or not is_visible:
                continue
            if places is None or 0 not in message.nodes:
                continue
            # Only roots contain every row. Later nodes depend on the splits.
            root = int(np.flatnonzero(message.nodes == 0)[0])
            units, _ = message.unit_of("sums")
            law = total_law if d.receivers == (d.sender,) else client_law
            sums, noise = _estimate_sums(law, message.sums[root], units)
            contributions = gradients_of_rows(training, message.tree, rows)
            for which in (0, 1):  # gradients, hessians
                contribution = np.broadcast_to(contributions[:, which, None], places.shape)
                # Subtract the expected contribution of the other canaries in the same bin.
                half = _by_bin(places, contribution / 2, len(sums)) - contribution / 2
                spread = _by_bin(places, contribution**2 / 4, len(sums)) - contribution**2 / 4
                seen = sums[places, which] - half
                noise_variance = noise[places, which] + (row if which == 0 else 0.0)
                scale = np.maximum(np.sqrt((noise_variance + spread) / 2), _EXACT)
                scores += ((np.abs(seen) - np.abs(seen - contribution)) / scale).sum(axis=1)
        return scores


@dataclass(frozen=True)
class StumpCanaries(Canaries):
    """Canaries of which each is the only unknown row of its client.

    One column and one split: a row then contributes to the fewest sums, which share the complete
    budget.

    Parameters
    ----------
    max_canaries : int
        Largest number of canaries. 1 if only sums of all clients' histograms are decrypted.
    quantiles : int
        Number of quantiles of a summary that each client draws. 0 if none is drawn.
    only_cuts : bool
        Read only messages that cut points are computed from.
    """

    max_canaries: int = _MANY
    quantiles: int = 0
    only_cuts: bool = False

    schema = Schema((Feature("x", low=0.0, high=float(_HIGH)),), "y")

    @classmethod
    def of(cls, defense: Composition) -> StumpCanaries:
        """Create the canaries that suit a defense."""
        parts = defense.parts
        quantiles = next((p.quantiles for p in parts if isinstance(p, PrivateQuantileCuts)), 0)
        bounded = [c for c in defense.claims() if c.budget and c.budget[0] == "epsilon"]
        # If only cut points have a claim, histograms are outside of the audit.
        unclaimed = all(getattr(c, "unit", "") == "cuts" for c in bounded)
        return cls(
            1 if Histogram in defense.summed_types and not unclaimed else _MANY,
            quantiles,
            unclaimed,
        )

    @property
    def runs(self) -> int:  # type: ignore[override]
        """Number of runs for 2,048 canaries in total, or 1,024 runs with one canary each."""
        return min(2048 // self.max_canaries, 1024)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return canaries of class 0, and the further rows of each client.

        For summaries that clients draw, the number of rows is then on either side of a step, and a
        canary moves quantiles from a wide range to a narrow one. Otherwise all canaries have
        separate cells, and there is one further row.
        """
        step = 2 * (self.quantiles + 1) - 1 if self.quantiles else 1
        besides = np.full((step, 1), 0.75 * _HIGH if self.quantiles else 0, np.float32)
        position = np.ones(count) if self.quantiles else (np.arange(count) + 0.5) / count
        X = (position[:, None] * _HIGH).astype(np.float32)
        return Table(X, np.zeros(count, np.int64)), Table(besides, np.ones(step, np.int64))

    def distribute(
        self, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> dict[str, LocalData]:
        """Return at most one canary per client, or all for one client if only sums are visible."""
        each = np.eye(len(rows), dtype=bool) if self._apart else np.ones((1, len(rows)), bool)
        client_tables = [
            Table.concat([rows.take(is_included & selected), companions]) for selected in each
        ]
        return over_clients([*client_tables, *[companions] * _BARE])

    @property
    def _apart(self) -> bool:
        return bool(self.quantiles) or not self.only_cuts

    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare every released message with its distributions with and without the canary."""
        client_index = {name: i for i, name in enumerate(client_names(len(rows)))}
        scores, borders = np.zeros(len(rows)), np.zeros(0, np.float32)
        roots: list[Histogram] = []
        cuts: Cuts | None = None
        for d in training.transcript:
            m, summed = d.message, d.receivers == (d.sender,)
            if isinstance(m, GridRequest):
                borders = m.borders
            elif isinstance(m, CutPoints):
                cuts = m.to_cuts()
            elif has_sealed_field(m) or not (summed or d.sender in client_index):
                continue
            elif isinstance(m, GridCounts) and summed:
                scores += _of_grid(training, m, borders, rows, companions)
            # A drawn summary has a known distribution under both tables, with and without the
            # canary.
            elif isinstance(m, FeatureSketch):
                i = client_index[d.sender]
                X = np.concatenate([rows.X[[i]], companions.X])
                for part in training.defense.parts:
                    a, b = (part.log_likelihood(m, x, training.schema) for x in (X, companions.X))
                    scores[i] += np.nan_to_num(a - b) if np.isfinite(max(a, b)) else 0.0
            elif type(m) is Histogram and 0 in m.nodes and not self.only_cuts:
                roots.append(m)
        if roots and cuts is not None:
            scores += _of_roots(training, roots, cuts, rows, companions)
        return scores

    def residuals(
        self, training: Training, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> NDArray[np.float64]:
        """Compare the noisy bins of each client's first root with those of its rows."""
        law, _, row = channels_of_sums(training)
        if law is None or law.suppresses or row or self.only_cuts:
            return np.zeros(0)
        client_index, parts = (
            {name: i for i, name in enumerate(client_names(len(rows)))},
            [np.zeros(0)],
        )
        for d in training.transcript:
            m = d.message
            if isinstance(m, CutPoints):
                cuts = m.to_cuts()
            elif (
                type(m) is Histogram
                and d.sender in client_index
                and m.tree == 0
                and not has_sealed_field(m)
            ):
                i, units = client_index[d.sender], m.unit_of("sums")[0]
                included = Table.concat(
                    [rows.take(np.flatnonzero(is_included[i : i + 1]) + i), companions]
                )
                y, place = m.sums[0].astype(np.float64), bin_rows(included.X, cuts).codes[:, 0]
                x = np.zeros_like(y)
                np.add.at(x, place, np.rint(gradients_of_rows(training, 0, included) * units))
                mean, variance = law.in_units_of(units).posterior_moments(y)
                noisy = (variance > 0) & np.isfinite(variance)
                # Bins without noise, or with unbounded variance, have no meaningful residual.
                parts.append((mean - x)[noisy] / np.sqrt(variance[noisy]))
        return np.concatenate(parts)


@register_canaries(HistogramProtocol)
def create_histogram_canaries(protocol: HistogramProtocol) -> HistogramCanaries:
    """Create canaries for an audit of the root histograms."""
    return HistogramCanaries(protocol.max_bin)


@register_audit_setting(HistogramProtocol)
def choose_stump_setting(
    protocol: HistogramProtocol, defense: Composition
) -> tuple[HistogramProtocol, StumpCanaries]:
    """Grow one split, with a gradient or hessian of the canary as large as possible."""
    # The hessian is largest at 0.5. Without a small clip, the gradient is largest near 1.
    clip = defense.requirements.gradient_clip
    middle = clip is not None and clip <= 0.5
    stump = replace(
        protocol, trees=1, max_depth=1, max_bin=2, cuts="public", subsample=1.0,
        base_score=0.5 if middle else 0.999, early_stopping_rounds=0,
    )  # fmt: skip
    return stump, StumpCanaries.of(defense)


def gradients_of_rows(training: Training, tree: int, rows: Table) -> NDArray[np.float64]:
    """Return the gradient and hessian of each row in a tree of two classes, shape (n, 2).

    Parameters
    ----------
    training : Training
        A finished training.
    tree : int
        Number of the tree.
    rows : Table
        Rows.
    """
    p, needs = training.model.first(tree).predict(rows.X), training.defense.requirements
    g, h = p - rows.y, np.ones(len(p)) if needs.unit_hessian else p * (1 - p)
    clip = needs.gradient_clip or np.inf
    return np.stack([np.clip(g, -clip, clip), np.minimum(h, 2 * clip)], axis=-1)


def channels_of_sums(training: Training) -> tuple[Channel | None, Channel | None, float]:
    """Return the channels of histogram sums, and the variance of the noise on a row's gradient.

    Returns
    -------
    client, total : Channel or None
        Channel of one client's sums, and of the sums of all clients. None without noise.
    variance : float
        0 if no defense changes the gradients of single rows.
    """
    changes, public = training.defense.changes, (training.schema, training.protocol.parameters)
    clients = sum(role == "client" for role in training.transcript.roles.values())
    sum_changes = changes((Histogram, "sums"), *public, "client")
    row = chained(changes(("gradients", "g"), *public))
    variance = 0.0 if row is None else float(row.posterior_moments(np.zeros(1))[1][0])
    return chained(sum_changes), chained(sum_changes, clients), variance


def _estimate_sums(
    law: Channel | None, sums: NDArray[np.int64], units: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return estimated sums and the variance of their noise, float64, shape (bins, 2) each."""
    if law is None:
        return sums / units, np.zeros(sums.shape)
    mean, variance = law.in_units_of(units).posterior_moments(sums)
    return mean / units, variance / units**2


def _by_bin(
    places: NDArray[np.int64], values: NDArray[np.float64], bins: int
) -> NDArray[np.float64]:
    """Return, for each row and feature, the sum of values over all rows in the same bin."""
    total = np.bincount(places.reshape(-1), weights=values.reshape(-1), minlength=bins)
    return np.asarray(total[places], dtype=np.float64)


def _of_grid(
    training: Training,
    message: GridCounts,
    borders: NDArray[np.float32],
    rows: Table,
    other_rows: Table,
) -> NDArray[np.float64]:
    """Return the log odds of canaries from the counts of their cells."""
    public = (training.schema, training.protocol.parameters)
    clients = len(training.columns)
    law = chained(training.defense.changes((GridCounts, "counts"), *public), clients) or Chain(())
    cells, rest = (np.searchsorted(borders, of.X[:, 0], side="right") for of in (rows, other_rows))
    base = clients * np.bincount(rest, minlength=len(message.counts))[cells, None]
    n_companions, scores = np.bincount(cells)[cells] - 1, np.zeros(len(rows))
    for k in np.unique(n_companions):
        y = message.counts[cells[n_companions == k], None]
        scores[n_companions == k] = _log_odds(law, y, base[n_companions == k], np.ones(1), int(k))
    return scores


def _of_roots(
    training: Training, roots: list[Histogram], cuts: Cuts, rows: Table, other_rows: Table
) -> NDArray[np.float64]:
    """Return the log odds of canaries from the roots of their clients, or from the total."""
    client_law, total_law, row = channels_of_sums(training)
    clients = len(training.columns)
    summed, units = len(rows) == 1, roots[0].unit_of("sums")[0]
    contribution, rest = (
        np.rint(gradients_of_rows(training, 0, of) * units) for of in (rows, other_rows)
    )
    places, other_places = (bin_rows(of.X, cuts).codes[:, 0] for of in (rows, other_rows))
    x = np.stack([rest[other_places == place].sum(axis=0) for place in places])
    law = ((total_law if summed else client_law) or Chain(())).in_units_of(units)
    root = int(np.flatnonzero(roots[0].nodes == 0)[0])
    bins = np.stack([m.sums[root, p] for m, p in zip(roots, places, strict=True)])
    totals = np.stack([m.totals[0] for m in roots])
    # The sum over all clients contains the known rows of every client.
    times = clients if summed else 1
    # Noise on single rows hides the gradient, so that only hessians remain.
    cell = slice(1, None) if row else slice(None)
    by_bin = _log_odds(law, bins[:, cell], times * x[:, cell], contribution[:, cell])
    return by_bin + _log_odds(
        law, totals[:, cell], times * rest.sum(axis=0)[cell], contribution[:, cell]
    )


def _log_odds(
    law: Channel,
    y: NDArray[Any],
    x: NDArray[Any],
    contribution: NDArray[Any],
    n_companions: int = 0,
) -> NDArray[np.float64]:
    """Return the log odds of a release y with the canary (x + contribution) to without it (x).

    `n_companions` further canaries with the same contribution each took part by a coin flip. Arrays
    broadcast to shape (n, c) for n canaries. The log odds have shape (n,).
    """
    n_included = np.arange(n_companions + 1)
    # Logarithm of the binomial weights, up to a constant that cancels in the difference.
    weight = -gammaln(n_included + 1) - gammaln(n_companions - n_included + 1)
    log_chance = [
        np.stack([law.log_likelihood(y, x + j * contribution) for j in n_included + k])
        for k in (1, 0)
    ]
    with_row, without_row = (logsumexp(weight[:, None] + each, axis=0) for each in log_chance)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip(np.nan_to_num(with_row - without_row), -_SURE, _SURE))
