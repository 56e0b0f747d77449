"""Attack `sketch-reading`: infer columns and rows from sketches of cut points.

The adversary is any party that receives the sketch or the ranges of another party's columns.
`fedtrees.attacks.observations.columns` collects the columns from the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.applicability import shows
from fedtrees.attacks.observations.columns import (
    Column,
    are_drawn,
    columns_of,
    fullest,
    nearest,
    ranges_of_owners,
    reliability_of_ranks,
    replace_points,
)
from fedtrees.attacks.observations.rows_from_columns import (
    LEAST_RELIABLE,
    label_shares,
    labels_of,
    owners_rows,
    pool_columns,
    redraws_of,
    rows_with,
    victims_rows,
)
from fedtrees.attacks.reconstruction.ensemble_vote import (
    BlindEnsemble,
    EvidenceWeight,
    vote_on_rows,
)
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.blind_baselines.guesses import Draws
from fedtrees.blind_baselines.rows import Tolerance, row_budget
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Claim, ColumnValues, Guess, Records
from fedtrees.core.errors import check_whole
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.additive import ClientShapes, MergedShapes
from fedtrees.messages.horizontal import FeatureRanges, FeatureSketch


@register.attack("sketch-reading")
@dataclass(frozen=True, kw_only=True)
class SketchReading(Attack):
    """Infer the victims' columns from the summaries from which cut points are computed.

    Before the first tree, XGBoost's collective sends every worker's sketch of every column to all
    workers (measured in docs/studies/sketches.md). A sketch with at most ``8 max_bin`` distinct
    values contains all values of the column and their counts. For example, the sketch of a column
    of ages shows how many rows have each age. The bins of an explainable boosting machine are
    equivalent, including merged ones.

    The attack also guesses rows. It starts from local rows, or from rows of the population for an
    adversary without local rows, and redraws them so that every column has the victims' values.

    Parameters
    ----------
    draws : int
        Number of tables of rows that are merged by matched consensus, 20 as for the blind baseline.
    """

    claims = (ColumnValues, Records)

    supports_regression: ClassVar[bool] = True

    draws: int = 20

    def __post_init__(self) -> None:
        check_whole("draws", self.draws, 1)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no summary of other parties' columns, None if they do."""
        if (
            shows(view, FeatureSketch, FeatureRanges, ClientShapes, MergedShapes)
            or pool_columns(view) is not None
        ):
            return None
        return Reason("no-sketches")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim every victim's columns, and rows with these columns and their owner.

        Diagnostics: ``columns_exact`` and ``columns_seen`` count columns, and ``values_of_one_row``
        is the share of cells with a value that occurs once.
        """
        columns = columns_of(view)
        claims = [*_claim_columns(view, columns), *_extremes(view)]
        seen = [c for parts in columns.values() for c in parts]
        cells = max(sum(c.present for c in seen), 1)
        notes = {
            "columns_exact": float(sum(c.exact for c in seen)),
            "columns_seen": float(len(seen)),
            "values_of_one_row": float(sum((c.counts == 1).sum() for c in seen)) / cells,
        }
        pooled_columns = pool_columns(view)
        # Sums over all parties contain columns without an owner.
        if not columns and pooled_columns is not None:
            columns = {"": pooled_columns}
        if columns and view.schema.classes:
            rows, choice = self._rows(view, columns, rng)
            claims.append(rows)
            notes |= choice
        return Guess.of(claims, notes, otherwise=Reason("no-sketches"))

    def _rows(
        self, view: View, columns: Mapping[str, Sequence[Column]], rng: np.random.Generator
    ) -> tuple[Records, dict[str, float]]:
        """Return rows with the inferred columns, and diagnostics of the submitted guess."""
        prior_rows = view.prior_rows or Table.empty(view.schema)
        is_pooled = pool_columns(view) is not None
        columns = {owner: replace_points(parts, prior_rows) for owner, parts in columns.items()}
        rows_of_owner = owners_rows(columns, victims_rows(view) if is_pooled else 0)
        total = sum(rows_of_owner.values())
        reduced_sizes = largest_remainder(
            np.array(list(rows_of_owner.values()), dtype=np.float64), row_budget(total)
        )
        sizes = (
            rows_of_owner
            if row_budget(total) == total
            else dict(zip(rows_of_owner, reduced_sizes.tolist(), strict=True))
        )
        owner = np.repeat(np.arange(len(sizes)), list(sizes.values()))
        y = labels_of(label_shares(view), owner, rng)
        tables, redraws = [], redraws_of(prior_rows, view.schema, rng)
        drawn = are_drawn(view)
        for _ in range(self.draws):
            parts = [
                rows_with(c, fullest(c) if drawn else n, prior_rows, y[owner == k], redraws, rng)
                for k, (c, n) in enumerate(
                    zip(columns.values(), rows_of_owner.values(), strict=True)
                )
            ]
            tables.append(Table(np.concatenate([p.X for p in parts]), y))
        width = Tolerance.of(tables[0], view.schema).width
        groups = owner * max(len(view.schema.classes), 2) + y
        X = matched_consensus(tables, width, groups=groups).X.copy()
        # The consensus averages values. Only values of the sketch can occur in the column.
        for k, sketches in enumerate(columns.values()):
            for f, column in enumerate(sketches):
                X[owner == k, f] = nearest(X[owner == k, f], column.values)
        names = tuple(list(sizes)[k] for k in owner) if all(columns) else None
        if all(c.exact for parts in columns.values() for c in parts):
            return Records(Table(X, y), owner=names), {"submits_blind": 0.0}
        trust = float(np.mean([reliability_of_ranks(view, parts) for parts in columns.values()]))
        # Unreliable sketches contain less information than the declared ranges.
        if drawn and not len(prior_rows) and trust < LEAST_RELIABLE:
            guess = Draws(None, view.schema, len(y), rng).of("low")[-1]
            return Records(guess), {"submits_blind": 1.0}
        weight = EvidenceWeight(trust, 1.0)
        blind = BlindEnsemble.of_rows(prior_rows, view.schema, rng)
        rows, choice = vote_on_rows(Table(X, y), tables, blind, weight, rng)
        return Records(rows, owner=None if choice["submits_blind"] else names), choice


def _claim_columns(view: View, columns: Mapping[str, Sequence[Column]]) -> Iterator[Claim]:
    """Yield a claim about every column of every owner.

    Values that a private mechanism drew lie between true values. They show how many values of the
    prior's rows (`View.prior_rows`) lie between them, as far as they are reliable.
    """
    prior_rows = view.prior_rows if are_drawn(view) else None
    sizes = owners_rows(columns, 0 if prior_rows is None else victims_rows(view))
    for owner, parts in columns.items():
        share = sizes[owner] / max(fullest(parts), 1)
        for f, c in enumerate(parts):
            x = np.zeros(0, np.float32) if prior_rows is None else prior_rows.X[:, f]
            own_values = x[~np.isnan(x)]
            values, counts = (
                _as_own(c, own_values, round(share * c.present))
                if len(own_values)
                else (c.values, c.counts)
            )
            yield ColumnValues(owner, f, values, counts, c.exact)


def _as_own(
    drawn: Column, own_values: NDArray[np.float32], n: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return n of the local values, as many between drawn values as the mechanism indicates."""
    values, times = np.unique(own_values, return_counts=True)
    interval, k = np.searchsorted(drawn.values, values), len(drawn.values)
    own_share = np.bincount(interval, times, k + 1) / len(own_values)
    half_shares = drawn.counts / (2 * max(drawn.present, 1))
    drawn_share = np.append(half_shares, 0.0) + np.append(0.0, half_shares)
    odds = 1 - drawn.reliability + drawn.reliability * drawn_share / np.maximum(own_share, 1e-300)
    counts = largest_remainder(times * odds[interval], n)
    return values[counts > 0], counts[counts > 0]


def _extremes(view: View) -> Iterator[Claim]:
    """Yield the smallest and the largest value of every column whose range was announced."""
    for owner, ranges in ranges_of_owners(view).items():
        for f, ends in enumerate(zip(ranges.low, ranges.high, strict=True)):
            values, counts = np.unique(np.array(ends), return_counts=True)
            if np.isfinite(values).all():
                yield ColumnValues(owner, f, values, np.ones_like(counts), False)
