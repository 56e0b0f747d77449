"""The attack `forest-boxes`: reconstruct rows from class counts or shares in leaves of forests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forest_gibbs.gibbs import (
    FlatForest,
    Ints,
    Numbers,
    State,
    TargetForest,
    advance,
    likelihood,
    read_target_forests,
    start,
)
from fedtrees.attacks.reconstruction.ensemble_vote import (
    BlindEnsemble,
    EvidenceWeight,
    share_determined,
    vote_on_rows,
)
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.blind_baselines.rows import estimated_width
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Records
from fedtrees.core.errors import check_positive
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View

#: First weight of the log-likelihood during annealing, number of annealing steps, number of samples
#: after it, and number of chains.
COOL, STEPS, SAMPLES, CHAINS = 0.05, 20, 20, 2
#: Draws per value during annealing, draws per value during sampling, and final weight of the
#: log-likelihood, for trees of bootstrap samples and for trees of all rows. The counts of the
#: latter are exact, so that the weight can exceed 1.
DRAWN, EXACT = (40, 40, 1.0), (100, 60, 6.0)
#: Limit on the draws of all chains of a source. A draw takes about 10 microseconds for 100 trees.
MOST_DRAWS = 1_500_000


@register.attack("forest-boxes")
@dataclass(frozen=True, kw_only=True)
class ForestBoxes(Attack):
    """Reconstruct rows from the boxes of all leaves of a random forest and their class counts.

    The attack is not from a paper (docs/explanation/forests.md). Markov chains sample tables that
    explain the class counts of all trees, with or without a bootstrap. The guess is a consensus of
    these tables, weighed against draws from the prior, which are local rows or rows of the
    population. If leaves contain only class shares, their counts are sampled, too. No value is
    guessed as missing.

    Parameters
    ----------
    work : float
        Factor on the default number of draws, positive.
    """

    claims = (Records,)

    work: float = 1.0

    def __post_init__(self) -> None:
        check_positive("work", self.work)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no class counts or shares of leaves, None if they do."""
        if not read_target_forests(view):
            return Reason("no-forest-counts")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Reconstruct the rows of the victims.

        Parameters
        ----------
        view : View
            Contains the forest, or one forest per client.
        rng : numpy.random.Generator
            The only source of randomness.

        Returns
        -------
        guess : Guess
            `Records`, with owners if the view contains separate forests of named clients. The
            guess is empty if there are no forests with counts or shares, or no victims' rows.
        """
        own_rows = view.rows or Table.empty(view.schema)
        likely = view.prior_rows or own_rows
        tables, owners, notes = [], list[str](), list[dict[str, float]]()
        for source in read_target_forests(view):
            known_rows = own_rows if source.owner is None else own_rows.take(slice(0))
            if source.rows <= len(known_rows):
                continue
            table, note = self._rows(source, known_rows, likely, view, rng)
            tables.append(table)
            notes.append(note)
            owners += [source.owner or ""] * len(table)
        if not tables:
            return Guess.none(self.inapplicable(view) or Reason("no-victim-rows"))
        named = tuple(owners) if all(owners) else None
        mean = {k: float(np.mean([n[k] for n in notes])) for k in notes[0]}
        return Guess((Records(Table.concat(tables), owner=named),), mean)

    def _rows(
        self,
        source: TargetForest,
        known_rows: Table,
        likely: Table,
        view: View,
        rng: np.random.Generator,
    ) -> tuple[Table, dict[str, float]]:
        """Reconstruct the rows of a source, without the known ones.

        ``known_rows`` are local rows that the trees were grown on. ``likely`` are the rows of the
        prior.
        """
        boxes = FlatForest.of(source.trees, len(view.schema.features))
        n = source.rows - len(known_rows)
        numbers = None if source.step is None else Numbers.of(boxes, source)
        y = _classes(boxes, source, known_rows, likely, n)
        chains = [
            self._chain(boxes, source.drawn, numbers, y, known_rows, rng) for _ in range(CHAINS)
        ]
        fit = [value for value, _ in chains]
        values = _values(boxes, likely, view)
        # The consensus is built from the chain with the highest likelihood, and is judged by the
        # samples of the other chain. Samples of one chain are too similar to one another.
        worlds, apart = (
            [
                Table(
                    _draw_values(boxes, values, level, likely, rng)
                    if len(likely)
                    else _at(values, level),
                    y,
                )
                for level in chains[i][1]
            ]
            for i in np.argsort(fit)[[-1, 0]]
        )
        ends = np.array([[v.min(), v.max()] for v in values], dtype=np.float64).T
        width = estimated_width(likely, view.schema, *ends)
        agreed_rows = matched_consensus(worlds, width)
        if not len(likely):
            return agreed_rows, {"log_likelihood": max(fit), "submits_blind": 0.0}
        blind = BlindEnsemble.of_rows(likely, view.schema, rng)
        counted = boxes.counts[boxes.nodes[:, 0] < 0].size
        evidence_share = share_determined(counted, n * len(boxes.thresholds))
        # Chains use only the counts. They contain no prior of the values or of their dependence, so
        # that the prior gets the weight of the missing evidence.
        guess, notes = vote_on_rows(
            agreed_rows, apart, blind, EvidenceWeight(evidence_share, evidence_share), rng
        )
        return guess, {
            "log_likelihood": max(fit), "submits_blind": notes["submits_blind"],
        }  # fmt: skip

    def _chain(
        self,
        boxes: FlatForest,
        drawn: bool,
        numbers: Numbers | None,
        y: NDArray[np.int64],
        known_rows: Table,
        rng: np.random.Generator,
    ) -> tuple[float, list[Ints]]:
        """Run one chain. Return the log-likelihood of its last table, and samples of the levels."""
        before, while_, weight = DRAWN if drawn else EXACT
        level = np.concatenate([start(boxes, y, rng), boxes.level(known_rows.X)])
        state = State.of(boxes, level, np.concatenate([y, known_rows.y]), len(y))
        bits = rng.integers(0, 1 << 63, 1).astype(np.uint64)
        cells = len(y) * len(boxes.thresholds)
        share = self.work * min(1.0, MOST_DRAWS / (CHAINS * cells * (before + while_)))
        for beta in np.geomspace(COOL, weight, STEPS).tolist():
            advance(boxes, state, beta, max(1, round(before * share * cells / STEPS)), bits)
            if numbers is not None:
                numbers.draw(boxes, state, beta, bits)
        samples = []
        for _ in range(SAMPLES):
            advance(boxes, state, weight, max(1, round(while_ * share * cells / SAMPLES)), bits)
            if numbers is not None:
                numbers.draw(boxes, state, weight, bits)
            samples.append(state.level[: len(y)].copy())
        return likelihood(boxes, state), samples


def _classes(
    boxes: FlatForest, source: TargetForest, known_rows: Table, likely: Table, n: int
) -> NDArray[np.int64]:
    """Return a class for each of n rows, int64, with the class shares of the leaf counts.

    Class shares of leaves do not reveal the size of the leaves. If there are only shares, the
    classes have the frequencies of the prior instead.
    """
    totals = boxes.counts[boxes.nodes[:, 0] < 0].sum(axis=0).astype(np.float64)
    if source.step is not None and len(likely):
        totals = np.bincount(likely.y, minlength=len(totals)).astype(np.float64)
    share = totals / totals.sum() * source.rows - np.bincount(known_rows.y, minlength=len(totals))
    share = np.maximum(share, 0) + 1e-9
    ends = np.round(np.cumsum(share / share.sum()) * n).astype(np.int64)
    return np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)).astype(np.int64)


def _values(boxes: FlatForest, likely: Table, view: View) -> list[NDArray[np.float32]]:
    """Return a representative value for every level of each feature.

    It is the lower edge if thresholds are values of rows (protocol ``local-forests``), else the
    centre. For both outer levels it is the median of the prior's rows there, else a value beyond
    the outermost threshold. Declared minima are respected, and categories have their codes.
    """
    out = []
    lower = view.protocol == "local-forests"
    for f, (edges, feature) in enumerate(zip(boxes.thresholds, view.schema.features, strict=True)):
        x = likely.X[np.isfinite(likely.X[:, f]), f]
        if not len(edges):
            out.append(np.array([np.median(x) if len(x) else feature.low or 0], dtype=np.float32))
            continue
        gap = float(np.median(np.diff(edges))) if len(edges) > 1 else 1.0
        below, above = x[x < edges[0]], x[x >= edges[-1]]
        first = np.median(below) if len(below) else edges[0] - gap
        last = np.median(above) if len(above) else edges[-1] + (0.0 if lower else gap)
        if feature.low is not None:
            first = max(first, min(feature.low, edges[0]))
        inner = edges[:-1] if lower else (edges[:-1] + edges[1:]) / 2
        every = np.concatenate([[first], inner, [last]])
        if feature.categories:
            every = np.ceil(np.concatenate([[0.0], edges]))
        out.append(every.astype(np.float32))
    return out


def _draw_values(
    boxes: FlatForest,
    values: list[NDArray[np.float32]],
    level: Ints,
    likely: Table,
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Draw values from the prior's rows at the same level, else uniformly from the interval."""
    X, likely_level = _at(values, level), boxes.level(likely.X)
    for f, edges in enumerate(boxes.thresholds):
        for g in np.unique(level[:, f]).tolist():
            here = np.flatnonzero(level[:, f] == g)
            pool = likely.X[(likely_level[:, f] == g) & np.isfinite(likely.X[:, f]), f]
            if len(pool):
                X[here, f] = rng.choice(pool, len(here))
            elif 0 < g < len(edges):
                X[here, f] = rng.uniform(edges[g - 1], edges[g], len(here))
    return X


def _at(values: list[NDArray[np.float32]], level: Ints) -> NDArray[np.float32]:
    return np.stack([v[g] for v, g in zip(values, level.T, strict=True)], axis=1)
