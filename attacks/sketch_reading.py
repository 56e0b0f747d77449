"""Sketch reading as an attack on a view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.column import Column, filled, fullest, nearest
from fedtrees.attacks.evidence.counts import share_out
from fedtrees.attacks.evidence.marginals import (
    LEAST_RELIABLE,
    label_shares,
    labels_of,
    pooled,
    redraws_of,
    rows_with,
)
from fedtrees.attacks.evidence.readable import shows
from fedtrees.attacks.evidence.rows_held import owners_rows, victims_rows
from fedtrees.attacks.evidence.sketched import are_drawn, columns_of, ranges_of_owners, ranks_told
from fedtrees.attacks.evidence.submission import Blind, Weight, submitted
from fedtrees.core.attack import Attack
from fedtrees.core.errors import check_whole
from fedtrees.core.guess import Claim, ColumnValues, Guess, Records
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.guessing.blind import Draws
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.guessing.tolerance import Tolerance
from fedtrees.guessing.wanted import wanted
from fedtrees.messages.additive import ClientShapes, MergedShapes
from fedtrees.messages.horizontal import FeatureRanges, FeatureSketch


@register.attack("sketch-reading")
@dataclass(frozen=True, kw_only=True)
class SketchReading(Attack):
    """Read the victims' columns off the summaries from which cut points are made.

    Before the first tree, XGBoost's collective sends every worker's sketch of every column to all
    (measured: docs/studies/sketches.md). With no more than ``8 max_bin`` different values it is the
    column. So it is told by the bins of an explainable boosting machine, merged ones too.
    Rows are guessed as well: own rows, or rows of the population for an adversary without own ones,
    redrawn so that every column is the victims'.

    `draws`: Tables of rows merged by matched consensus: 20, as the blind adversary's.
    """

    claims = (ColumnValues, Records)

    numbers: ClassVar[bool] = True

    draws: int = 20

    def __post_init__(self) -> None:
        check_whole("draws", self.draws, 1)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no summary of others' columns, None if they do."""
        if (
            shows(view, FeatureSketch, FeatureRanges, ClientShapes, MergedShapes)
            or pooled(view) is not None
        ):
            return None
        return Reason("no-sketches")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return every victim's columns, and rows that have them, with their owner."""
        columns = columns_of(view)
        claims = [*_told(view, columns), *_extremes(view)]
        seen = [c for parts in columns.values() for c in parts]
        cells = max(sum(c.present for c in seen), 1)
        notes = {
            "columns_exact": float(sum(c.exact for c in seen)),
            "columns_seen": float(len(seen)),
            "values_of_one_row": float(sum((c.counts == 1).sum() for c in seen)) / cells,
        }
        together = pooled(view)
        if not columns and together is not None:  # sums alone tell nobody's columns
            columns = {"": together}
        if columns and view.schema.classes:
            rows, choice = self._rows(view, columns, rng)
            claims.append(rows)
            notes |= choice
        return Guess.of(claims, notes, otherwise=Reason("no-sketches"))

    def _rows(
        self, view: View, columns: Mapping[str, Sequence[Column]], rng: np.random.Generator
    ) -> tuple[Records, dict[str, float]]:
        likely = view.prior_rows or Table.empty(view.schema)
        everybody = pooled(view) is not None
        columns = {owner: filled(parts, likely) for owner, parts in columns.items()}
        rows_of_owner = owners_rows(columns, victims_rows(view) if everybody else 0)
        total = sum(rows_of_owner.values())
        fewer = share_out(np.array(list(rows_of_owner.values()), dtype=np.float64), wanted(total))
        sizes = (
            rows_of_owner
            if wanted(total) == total
            else dict(zip(rows_of_owner, fewer.tolist(), strict=True))
        )
        owner = np.repeat(np.arange(len(sizes)), list(sizes.values()))
        y = labels_of(label_shares(view), owner, rng)
        tables, redraws = [], redraws_of(likely, view.schema, rng)
        drawn = are_drawn(view)
        for _ in range(self.draws):
            parts = [
                rows_with(c, fullest(c) if drawn else n, likely, y[owner == k], redraws, rng)
                for k, (c, n) in enumerate(
                    zip(columns.values(), rows_of_owner.values(), strict=True)
                )
            ]
            tables.append(Table(np.concatenate([p.X for p in parts]), y))
        width = Tolerance.of(tables[0], view.schema).width
        groups = owner * max(len(view.schema.classes), 2) + y
        X = matched_consensus(tables, width, groups=groups).X.copy()
        for k, parts in enumerate(columns.values()):
            for f, column in enumerate(parts):
                X[owner == k, f] = nearest(X[owner == k, f], column.values)
        names = tuple(list(sizes)[k] for k in owner) if all(columns) else None
        if all(c.exact for parts in columns.values() for c in parts):
            return Records(Table(X, y), owner=names), {"submits_blind": 0.0}
        trust = float(np.mean([ranks_told(view, parts) for parts in columns.values()]))
        if drawn and not len(likely) and trust < LEAST_RELIABLE:  # declared ranges tell more
            guess = Draws(None, view.schema, len(y), rng).of("low")[-1]
            return Records(guess), {"submits_blind": 1.0}
        weight = Weight(trust, 1.0)
        blind = Blind.of_rows(likely, view.schema, rng)
        rows, choice = submitted(Table(X, y), tables, blind, weight, rng)
        return Records(rows, owner=None if choice["submits_blind"] else names), choice


def _told(view: View, columns: Mapping[str, Sequence[Column]]) -> Iterator[Claim]:
    """Yield what is known of every column of every owner.

    Values that a mechanism drew lie anywhere between two true values. They say how many values of
    the prior's rows (`View.prior_rows`) lie there, as far as they are reliable.
    """
    likely = view.prior_rows if are_drawn(view) else None
    sizes = owners_rows(columns, 0 if likely is None else victims_rows(view))
    for owner, parts in columns.items():
        share = sizes[owner] / max(fullest(parts), 1)
        for f, c in enumerate(parts):
            x = np.zeros(0) if likely is None else likely.X[:, f]
            own_values = x[~np.isnan(x)]
            values_and_counts = (
                _as_own(c, own_values, round(share * c.present))
                if len(own_values)
                else (c.values, c.counts)
            )
            yield ColumnValues(owner, f, *values_and_counts, c.exact)


def _as_own(
    drawn: Column, own_values: NDArray[np.float32], n: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return n values that are as own ones, between drawn ones as many as these say."""
    values, times = np.unique(own_values, return_counts=True)
    at, k = np.searchsorted(drawn.values, values), len(drawn.values)
    own_share = np.bincount(at, times, k + 1) / len(own_values)
    halves = drawn.counts / (2 * max(drawn.present, 1))
    drawn_share = np.append(halves, 0.0) + np.append(0.0, halves)
    odds = 1 - drawn.reliability + drawn.reliability * drawn_share / np.maximum(own_share, 1e-300)
    counts = share_out(times * odds[at], n)
    return values[counts > 0], counts[counts > 0]


def _extremes(view: View) -> Iterator[Claim]:
    """Yield the smallest and largest value of every column, where ranges were told."""
    for owner, ranges in ranges_of_owners(view).items():
        for f, ends in enumerate(zip(ranges.low, ranges.high, strict=True)):
            values, counts = np.unique(np.array(ends), return_counts=True)
            if np.isfinite(values).all():
                yield ColumnValues(owner, f, values, np.ones_like(counts), False)
