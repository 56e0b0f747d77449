"""The last step of a reconstruction: what its samples and draws of own rows agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from fedtrees.attacks.evidence.basis import Basis, rows_in_ranges
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import NOISE_FLOOR, share_out
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.blind import WIDE_BLOCK, Draws
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.guessing.recipes import Recipe, agreement, best_recipe

#: Votes that a guess is made of, and samples of each kind, not among them, that judge it.
VOTES, JUDGES = 16, 4
#: Own rows from which they are heard in full: of 10 to 20 (Pima) samples alone are up to 6 points
#: of RA ahead, of 40 a half.
HEARD_BY = 50
#: Sums per cell from which evidence tells all: at .31 and more (Pima, 5 clients, 20 trees of depth
#: 6) samples are right of what they say, at .15 and less half is chance.
TOLD_BY = 0.4
# What a guess that starts from found rows must promise where evidence tells nothing of a row.
_CLEAR = 0.01
# Rows of a sample that are looked at.
_MOST_ROWS = 300
# Shares of classes are told in so many parts.
_SHARES = 1_000_000
# Rows expected in a leaf below which Pearson's test is not to be trusted.
_FEWEST_EXPECTED = 5


@dataclass(frozen=True)
class Weight:
    """How far samples of a reconstruction are to be believed.

    `trust`: Share of what they rest on that is not noise, 0 to 1.
    `told`: How much of a row the evidence tells, 0 (next to nothing) to 1.
    """

    trust: float
    told: float

    @staticmethod
    def of(evidence: Evidence, basis: Basis, rows: int, share: float = 1.0) -> Weight:
        """Return that of samples that follow rows by the sums of leaves, ``share`` of all rows.

        Trust is, on average over leaves, V / (V + noise), where V is the variance of a leaf's
        gradient sum for who knows own rows alone: that of drawing the rows, and that of not knowing
        the leaf's share but from own ones (a reliability: Spearman 1904). Told is how many sums
        there are for a cell, in parts of `TOLD_BY`.
        """
        parts, sums = [np.ones(0)], 0
        for t, leaf in enumerate(basis.sums):
            own_count = np.bincount(leaf.own_leaf, minlength=len(leaf.var_g)) + 1.0
            spread = (
                evidence.row_variance
                * rows
                * own_count
                / own_count.sum()
                * (1 + rows / own_count.sum())
            )
            noise = np.where(leaf.var_g > NOISE_FLOOR, leaf.var_g, 0.0)
            parts.append(spread / (spread + noise) if rows else np.ones(1))
            if not evidence.is_foreign(t):
                sums += len(leaf.var_g) * (1 if leaf.g is None else 2)
        every = np.concatenate(parts)
        trust = float(every.mean()) if len(every) else 1.0
        return Weight(trust, told_by(sums * share, rows * len(basis.grid.width)))


def told_by(sums: float, cells: int) -> float:
    """Return how much so many sums tell of a row, 0 to 1, where so many cells are sought."""
    return min(1.0, sums / max(cells, 1) / TOLD_BY)


@dataclass(frozen=True, eq=False)
class Blind:
    """What a blind guess is made of.

    `own`: The adversary's own rows; likely ones; draws from declared ranges.
    `recipe`: As own rows make best (`fedtrees.guessing.recipes.best_recipe`).
    `heard`: How far their draws are likely rows of the victims, 0 to 1.
    """

    own: Table
    schema: Schema
    recipe: Recipe
    heard: float

    @staticmethod
    def of_rows(own: Table, schema: Schema, rng: np.random.Generator) -> Blind:
        """Return that of own rows; of none, of draws from declared ranges."""
        rows = own if len(own) else rows_in_ranges(schema)
        recipe = best_recipe(rows, schema, rng) if len(rows) else Recipe(0.0, "")
        return Blind(rows, schema, recipe, min(1.0, len(rows) / HEARD_BY))

    @staticmethod
    def of(
        basis: Basis, schema: Schema, share: float, rng: np.random.Generator, *, strange: bool
    ) -> Blind:
        """Return that of a prior of own rows, which are not heard where they are ``strange``.

        Where sketches told the prior likely rows, it is of these, unless there are no own rows that
        tell which values go together, or a ``share`` of the rows below 1 is reconstructed: the more
        rows, the less columns tell of that.
        """
        prior, n_own = basis.prior, len(basis.own)
        if prior.told and n_own and share < 1:
            blind = Blind.of_rows(basis.own, schema, rng)
        else:
            rows = prior.own if n_own or not prior.told else basis.own
            blind = Blind(rows, schema, prior.recipe, min(1.0, len(rows) / HEARD_BY))
        return blind if n_own and not strange else replace(blind, heard=0.0)


def submitted(
    found: Table,
    worlds: Sequence[Table],
    blind: Blind,
    weight: Weight,
    rng: np.random.Generator,
    rows: int | None = None,
) -> tuple[Table, dict[str, float]]:
    """Return the table that samples of a reconstruction and draws of own rows agree on most.

    Either kind flatters itself: samples are of boxes that were guessed, draws of rows that are not
    the victims'. So both vote, slot by slot (`matched_consensus`), the samples as far as they are
    to be believed, never fewer than half where there is no noise. The slots are the rows that were
    found, or those of the blind guess, with the classes that were found: where a row is hardly
    told, others' rows are as near and go together. Those are taken that samples and draws that
    voted for neither agree with more.

    `found`: The reconstruction.
    `worlds`: Samples that it is the consensus of, row by row.
    `rows`: How many rows there are, if declared: of more that were found, some are left out; of
    fewer, the rest is guessed blindly.

    Returns
    -------
    Table
        Without rows to draw from, and where ``found`` is one sample alone: ``found``.
    dict of str to float
        ``submits_blind``, 1 where the slots are those of the blind guess; and where there was a
        choice ``expected_gain``, in share of cells, of those that were found, and ``votes``, the
        share of the samples.
    """
    rows = rows if rows is not None and rows > 0 else len(found)
    found, worlds = _at_most(found, worlds, rows, rng)
    n = len(found)
    if not len(blind.own) or len(worlds) < 2 or not n or any(len(w) != n for w in worlds):
        return found, {"submits_blind": 0.0}
    classes = _classes(found, blind, weight.trust)
    blind_draws = Draws(blind.own, blind.schema, rows, rng, classes, at_once=True)
    guess, kind = blind_draws.guess(blind.recipe.guess), blind.recipe.apart or blind.recipe.kind
    draws = [drawn.take(np.arange(n)) for drawn in blind_draws.of(kind)]
    doubt = blind.heard * (1 - weight.told)
    votes = round(VOTES * weight.trust * (1 - doubt / 2))
    if not votes:
        return guess, {"submits_blind": 1.0, "votes": 0.0}
    judging = _spread(np.arange(len(worlds)), min(JUDGES, len(worlds) // 2))
    voting = _spread(np.setdiff1d(np.arange(len(worlds)), judging), votes)
    order = rng.permutation(n)  # blocks of many rows are then draws of all
    voters = [worlds[k].take(order) for k in voting] + draws[JUDGES:][: VOTES - votes]
    blindly, by_rows = (
        matched_consensus(voters, blind_draws.width, rounds=1, block=WIDE_BLOCK, start=start)
        for start in (guess.take(np.arange(n)), found.take(order))
    )
    part = 1 - blind.heard * (1 - weight.trust * weight.told)
    judges = [worlds[k] for k in judging], draws[:JUDGES]
    gains = [_gain(by_rows, blindly, some, blind_draws.width, rng) for some in judges]
    gain = float(np.dot((part, 1 - part), gains))
    lost = gain < _CLEAR * doubt
    chosen = (blindly if lost else by_rows).take(np.argsort(order))
    notes = {"submits_blind": float(lost), "expected_gain": gain, "votes": votes / VOTES}
    return Table.concat([chosen, guess.take(np.arange(n, rows))]), notes


def _spread(of: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """Return n of them, far apart: samples of one chain are alike."""
    return of[np.linspace(0, len(of) - 1, n).astype(int)]


def _at_most(
    records: Table, worlds: Sequence[Table], rows: int, rng: np.random.Generator
) -> tuple[Table, Sequence[Table]]:
    """Return so many of the rows at random, in their order, where there are more."""
    if len(records) <= rows:
        return records, worlds
    chosen = np.sort(rng.permutation(len(records))[:rows])
    return records.take(chosen), [
        world.take(chosen) for world in worlds if len(world) == len(records)
    ]


def _classes(records: Table, blind: Blind, trust: float) -> NDArray[np.int64]:
    """Return how many rows of each class to guess: as found, as far as that is to be trusted."""
    K = max(len(blind.schema.classes), 2)
    share = [np.bincount(t.y, minlength=K) / len(t) for t in (records, blind.own)]
    return share_out(trust * share[0] + (1 - trust) * share[1], _SHARES)


def _gain(
    one: Table,
    other: Table,
    worlds: Sequence[Table],
    width: NDArray[np.float64],
    rng: np.random.Generator,
) -> float:
    """Return by how much one guess scores above the other on average over worlds."""
    parts = []
    for world in worlds:
        some = [t.take(rng.permutation(len(t))[:_MOST_ROWS]) for t in (one, other, world)]
        parts.append(agreement(some[0], some[2], width) - agreement(some[1], some[2], width))
    return float(np.mean(parts))


def own_rows_differ(victims: Sequence[NDArray[np.int64]], own: Sequence[NDArray[np.int64]]) -> bool:
    """Tell whether the rows of the prior are no draw of the victims': then no blind guess is worth
    much.

    Pearson's test of equal shares, at one in a hundred over all trees. Leaves where few rows are
    expected count as one (Cochran 1954): with many small leaves chance looks like a difference.

    `victims, own`: sequence of int64 array, shape (J, K). The victims' rows, and those of the prior
    (own ones, else the population's), of each class in each leaf of every tree of the first round.
    """
    for pair in zip(victims, own, strict=False):
        both = np.stack([each.ravel() for each in pair])
        smaller = both.sum(axis=1).min() / max(both.sum(), 1)
        few = both.sum(axis=0) * smaller < _FEWEST_EXPECTED
        both = np.column_stack([both[:, ~few], both[:, few].sum(axis=1)])
        both = both[:, both.sum(axis=0) > 0]
        if both.shape[1] < 2 or not both.sum(axis=1).all():
            continue
        expected = np.outer(both.sum(axis=1), both.sum(axis=0)) / both.sum()
        off = float(((both - expected) ** 2 / expected).sum())
        if chdtrc(both.shape[1] - 1, off) < 0.01 / len(victims):  # Pearson's test
            return True
    return False
