"""Last step of a reconstruction: the consensus of its samples and of draws from local rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from fedtrees.attacks.counts.leaf_sums import NOISE_FLOOR
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.reconstruction.context import ReconstructionContext, rows_in_ranges
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.blind_baselines.guesses import WIDE_BLOCK, Draws
from fedtrees.blind_baselines.recipes import Recipe, agreement, best_recipe
from fedtrees.core.schema import Schema, Table

#: Number of votes for a guess, and number of additional samples of each kind that evaluate it.
VOTES, JUDGES = 16, 4
#: Number of local rows from which their draws have full weight. With 10 to 20 rows (Pima), samples
#: without draws are up to 6 points of reconstruction accuracy better, with 40 half a point.
FULL_WEIGHT_ROWS = 50
#: Number of sums per cell from which the evidence determines rows fully. From .31 (Pima, 5 clients,
#: 20 trees of depth 6) samples are as accurate as they claim. Up to .15, half of it is chance.
SUMS_PER_CELL = 0.4
# Gain that a guess from reconstructed rows must promise if the evidence reveals nothing of a row.
_CLEAR = 0.01
# Number of rows of a sample that are compared.
_MOST_ROWS = 300
# Resolution of class shares.
_SHARES = 1_000_000
# Smallest expected number of rows in a leaf for Pearson's test.
_FEWEST_EXPECTED = 5


@dataclass(frozen=True)
class EvidenceWeight:
    """Reliability of the samples of a reconstruction.

    Attributes
    ----------
    trust : float
        Share of their evidence that is not noise, 0 to 1.
    determined : float
        How far the evidence determines a row, 0 (hardly at all) to 1.
    """

    trust: float
    determined: float

    @staticmethod
    def of(
        evidence: BoostingObservations, basis: ReconstructionContext, rows: int, share: float = 1.0
    ) -> EvidenceWeight:
        """Return the weight of samples whose rows follow from leaf sums.

        Trust is the average over leaves of V / (V + noise), a reliability (Spearman 1904). V is the
        prior variance of a leaf's gradient sum: that of drawing the rows, plus that of estimating
        the leaf's share from local rows. The other field is the number of sums per cell divided by
        `SUMS_PER_CELL`, at most 1.

        Parameters
        ----------
        evidence : BoostingObservations
            Determines the variance of a row's gradient.
        basis : ReconstructionContext
            Leaf sums and grid.
        rows : int
            Number of reconstructed rows.
        share : float, default 1.0
            Share of all rows that is reconstructed.
        """
        parts, sums = [np.ones(0)], 0
        for t, leaf in enumerate(basis.sums):
            prior_count = np.bincount(leaf.prior_leaf, minlength=len(leaf.var_g)) + 1.0
            spread = (
                evidence.row_variance
                * rows
                * prior_count
                / prior_count.sum()
                * (1 + rows / prior_count.sum())
            )
            noise = np.where(leaf.var_g > NOISE_FLOOR, leaf.var_g, 0.0)
            parts.append(spread / (spread + noise) if rows else np.ones(1))
            if not evidence.is_foreign(t):
                sums += len(leaf.var_g) * (1 if leaf.g is None else 2)
        every = np.concatenate(parts)
        trust = float(every.mean()) if len(every) else 1.0
        return EvidenceWeight(trust, share_determined(sums * share, rows * len(basis.grid.width)))


def share_determined(sums: float, cells: int) -> float:
    """Return how far the given number of sums determines a row, 0 to 1, for a number of cells."""
    return min(1.0, sums / max(cells, 1) / SUMS_PER_CELL)


@dataclass(frozen=True, eq=False)
class BlindEnsemble:
    """Input of a blind guess.

    Attributes
    ----------
    rows : Table
        Local rows, likely rows, or draws from declared ranges.
    schema : Schema
        Names, ranges and categories of the columns.
    recipe : Recipe
        Recipe that suits these rows best (`fedtrees.blind_baselines.recipes.best_recipe`).
    row_weight : float
        Weight of draws from these rows, 0 to 1.
    """

    rows: Table
    schema: Schema
    recipe: Recipe
    row_weight: float

    @staticmethod
    def of_rows(local_rows: Table, schema: Schema, rng: np.random.Generator) -> BlindEnsemble:
        """Return the input for local rows, or for draws from declared ranges if there are none."""
        rows = local_rows if len(local_rows) else rows_in_ranges(schema)
        recipe = best_recipe(rows, schema, rng) if len(rows) else Recipe(0.0, "")
        return BlindEnsemble(rows, schema, recipe, min(1.0, len(rows) / FULL_WEIGHT_ROWS))

    @staticmethod
    def of(
        basis: ReconstructionContext,
        schema: Schema,
        share: float,
        rng: np.random.Generator,
        *,
        rows_differ: bool,
    ) -> BlindEnsemble:
        """Return the input for a prior.

        If the prior's rows come from sketches (`Prior.from_sketches`), they are used if the
        adversary has local rows and reconstructs all rows. If only a share of the rows is
        reconstructed, the local rows are used, because with many rows the columns hardly determine
        which values belong together. A prior that does not come from sketches is always used.

        Parameters
        ----------
        basis : ReconstructionContext
            Prior and local rows.
        schema : Schema
            Names, ranges and categories of the columns.
        share : float
            Share of the rows that is reconstructed.
        rng : numpy.random.Generator
            Randomness of the choice of the recipe.
        rows_differ : bool
            Whether the victims' rows are distributed differently (`own_rows_differ`). The draws
            then have no weight, as for an adversary without local rows.
        """
        prior, n_own = basis.prior, len(basis.background)
        if prior.from_sketches and n_own and share < 1:
            blind = BlindEnsemble.of_rows(basis.background, schema, rng)
        else:
            rows = prior.rows if n_own or not prior.from_sketches else basis.background
            blind = BlindEnsemble(
                rows, schema, prior.recipe, min(1.0, len(rows) / FULL_WEIGHT_ROWS)
            )
        return blind if n_own and not rows_differ else replace(blind, row_weight=0.0)


def vote_on_rows(
    reconstruction: Table,
    worlds: Sequence[Table],
    blind: BlindEnsemble,
    weight: EvidenceWeight,
    rng: np.random.Generator,
    rows: int | None = None,
) -> tuple[Table, dict[str, float]]:
    """Return the table on which samples of a reconstruction and draws from local rows agree most.

    Both kinds overestimate themselves: samples fill boxes that were guessed, and draws are not rows
    of the victims. Both therefore vote, slot by slot (`matched_consensus`). The samples have votes
    in proportion to their reliability, and at least half of the votes without noise. The slots are
    either the reconstructed rows or the rows of the blind guess with the reconstructed class
    shares. If a row is hardly determined, rows of the blind guess are as close and have consistent
    values. Samples and draws that did not vote decide between both.

    Parameters
    ----------
    reconstruction : Table
        The reconstruction.
    worlds : sequence of Table
        Samples that it is the consensus of, row by row.
    blind : BlindEnsemble
        Input of the blind guess.
    weight : EvidenceWeight
        Reliability of the samples.
    rng : numpy.random.Generator
        Randomness of the draws.
    rows : int, optional
        Declared number of rows. If more were reconstructed, a random part is used. If fewer were,
        the remaining rows are those of the blind guess.

    Returns
    -------
    table : Table
        ``reconstruction`` if there are no rows to draw from or fewer than two samples.
    notes : dict of str to float
        ``submits_blind`` is 1 if the slots are those of the blind guess. If there was a choice,
        ``expected_gain`` is the expected gain of the reconstructed slots, as a share of cells, and
        ``votes`` is the share of votes that samples have.
    """
    rows = rows if rows is not None and rows > 0 else len(reconstruction)
    reconstruction, worlds = _at_most(reconstruction, worlds, rows, rng)
    n = len(reconstruction)
    if not len(blind.rows) or len(worlds) < 2 or not n or any(len(w) != n for w in worlds):
        return reconstruction, {"submits_blind": 0.0}
    classes = _classes(reconstruction, blind, weight.trust)
    blind_draws = Draws(blind.rows, blind.schema, rows, rng, classes, at_once=True)
    guess, kind = blind_draws.guess(blind.recipe.guess), blind.recipe.apart or blind.recipe.kind
    draws = [drawn.take(np.arange(n)) for drawn in blind_draws.of(kind)]
    # draws count where they are reliable and the evidence is weak
    doubt = blind.row_weight * (1 - weight.determined)
    votes = round(VOTES * weight.trust * (1 - doubt / 2))
    if not votes:
        return guess, {"submits_blind": 1.0, "votes": 0.0}
    # samples that vote for a guess would rate it too highly, so that other samples judge it
    judging = _spread(np.arange(len(worlds)), min(JUDGES, len(worlds) // 2))
    voting = _spread(np.setdiff1d(np.arange(len(worlds)), judging), votes)
    order = rng.permutation(n)  # each block is then a random part of all rows
    voters = [worlds[k].take(order) for k in voting] + draws[JUDGES:][: VOTES - votes]
    blindly, by_rows = (
        matched_consensus(voters, blind_draws.width, rounds=1, block=WIDE_BLOCK, start=start)
        for start in (guess.take(np.arange(n)), reconstruction.take(order))
    )
    part = 1 - blind.row_weight * (1 - weight.trust * weight.determined)
    judges = [worlds[k] for k in judging], draws[:JUDGES]
    gains = [_gain(by_rows, blindly, some, blind_draws.width, rng) for some in judges]
    gain = float(np.dot((part, 1 - part), gains))
    blind_is_better = gain < _CLEAR * doubt
    chosen = (blindly if blind_is_better else by_rows).take(np.argsort(order))
    notes = {"submits_blind": float(blind_is_better), "expected_gain": gain, "votes": votes / VOTES}
    return Table.concat([chosen, guess.take(np.arange(n, rows))]), notes


def _spread(of: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """Return n of the indices, evenly spaced, as neighbouring samples of a chain are similar."""
    return of[np.linspace(0, len(of) - 1, n).astype(int)]


def _at_most(
    records: Table, worlds: Sequence[Table], rows: int, rng: np.random.Generator
) -> tuple[Table, Sequence[Table]]:
    """Return a random part of the rows, in their order, if there are more than `rows`."""
    if len(records) <= rows:
        return records, worlds
    chosen = np.sort(rng.permutation(len(records))[:rows])
    return records.take(chosen), [
        world.take(chosen) for world in worlds if len(world) == len(records)
    ]


def _classes(records: Table, blind: BlindEnsemble, trust: float) -> NDArray[np.int64]:
    """Return the class shares of the blind guess: those found, shrunk to the prior's by trust."""
    K = max(len(blind.schema.classes), 2)
    share = [np.bincount(t.y, minlength=K) / len(t) for t in (records, blind.rows)]
    return largest_remainder(trust * share[0] + (1 - trust) * share[1], _SHARES)


def _gain(
    one: Table,
    other: Table,
    worlds: Sequence[Table],
    width: NDArray[np.float64],
    rng: np.random.Generator,
) -> float:
    """Return the mean difference between the scores of two guesses over several tables."""
    parts = []
    for world in worlds:
        some = [t.take(rng.permutation(len(t))[:_MOST_ROWS]) for t in (one, other, world)]
        parts.append(agreement(some[0], some[2], width) - agreement(some[1], some[2], width))
    return float(np.mean(parts))


def own_rows_differ(
    victims: Sequence[NDArray[np.int64]], prior_counts: Sequence[NDArray[np.int64]]
) -> bool:
    """Return whether the victims' rows have another distribution than the rows of the prior.

    If so, no blind guess is reliable. Pearson's test of equal shares is used at the level 0.01
    divided by the number of trees. Leaves with a small expected count are merged (Cochran 1954),
    because with many small leaves chance looks like a difference.

    Parameters
    ----------
    victims, prior_counts : sequence of int64 array, shape (J, K)
        Number of the victims' rows and of the prior's rows of each class in each leaf, for every
        tree of the first round.
    """
    for pair in zip(victims, prior_counts, strict=False):
        both = np.stack([each.ravel() for each in pair])
        # expected counts are smallest in the smaller of both groups
        smaller = both.sum(axis=1).min() / max(both.sum(), 1)
        sparse = both.sum(axis=0) * smaller < _FEWEST_EXPECTED
        both = np.column_stack([both[:, ~sparse], both[:, sparse].sum(axis=1)])
        both = both[:, both.sum(axis=0) > 0]
        if both.shape[1] < 2 or not both.sum(axis=1).all():
            continue
        expected = np.outer(both.sum(axis=1), both.sum(axis=0)) / both.sum()
        statistic = float(((both - expected) ** 2 / expected).sum())
        if chdtrc(both.shape[1] - 1, statistic) < 0.01 / len(victims):  # Pearson's test
            return True
    return False
