"""The last step of a reconstruction: submit it, or what one guesses who never looked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.basis import Basis
from fedtrees.attacks.evidence.counts import NOISE_FLOOR, share_out
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.blind import DRAWS, WIDE_BLOCK, Draws
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.guessing.recipes import FEWEST_ROWS, Recipe, agreement, best_recipe

#: How far samples are trusted, beside others, of rows whose boxes are known beyond doubt: own rows,
#: of which the blind guess is made, resemble them the less the narrower boxes are.
CERTAIN = 4 / 3
#: Samples of a reconstruction that guesses are compared in, and as many draws of own rows.
WORLDS = 4
# Rows of them that are looked at.
_MOST_ROWS = 300
# What sums that are not exact must promise beyond the blind guess, in share of cells; and the share
# of noise in them from which they must promise all of it. Rounding of a tenth leaves one in a
# hundred, and the client of nvflare-hist gains two points by what it may not promise (Pima).
_MARGIN, _NOISY = 0.015, 0.1
# Own rows per column below which samples of a reconstruction are trusted less: what trees do not
# split on is then known worse to it than to the blind guess (breast cancer, 10 clients: expected a
# point above, 2 below).
_ROWS_PER_COLUMN = 2
# Shares of classes are told in so many parts.
_SHARES = 1_000_000
# Variance of one row's gradient: that of a fair coin.
_ROW_VARIANCE = 0.25
# Rows expected in a leaf below which Pearson's test is not to be trusted.
_FEWEST_EXPECTED = 5


@dataclass(frozen=True, eq=False)
class Blind:
    """What a blind guess is made of.

    Attributes
    ----------
    own : Table
        The adversary's own rows, if any.
    schema : Schema
    width : float64 array, shape (d + 1,)
        Tolerances as it estimates them, 0 for the label.
    recipe : Recipe
        As own rows make best (`fedtrees.guessing.recipes.best_recipe`).
    told : bool
        Whether ``own`` are likely rows, made of own ones and of the victims' columns. Whoever
        reconstructs knows them, too: draws of them are no worlds beside its samples where sums are
        trusted.
    ranges : bool
        Whether ``own`` are draws from declared ranges, of no row: samples of any sums say more.
    """

    own: Table
    schema: Schema
    width: NDArray[np.float64]
    recipe: Recipe
    told: bool = False
    ranges: bool = False

    @staticmethod
    def of(basis: Basis, schema: Schema, share: float, rng: np.random.Generator) -> Blind:
        """Return that of a prior of own rows.

        Where sketches told the prior likely rows, it is of these, unless there are no own rows that
        tell which values go together, or a ``share`` of the rows below 1 is reconstructed: the more
        rows, the less columns tell of that.
        """
        own, recipe = basis.prior.own, basis.prior.recipe
        told = basis.prior.told and share == 1 and len(basis.own) > 0
        if basis.prior.told:
            own = own if told else basis.own
            recipe = best_recipe(own, schema, rng) if len(own) else recipe
        width = np.append(basis.prior.tolerance(schema), 0.0)
        ranges = not basis.prior.told and not len(basis.own)
        return Blind(own, schema, width, recipe, told, ranges)


def submitted(
    found: Table,
    worlds: Sequence[Table],
    blind: Blind,
    trust: float,
    rng: np.random.Generator,
    rows: int | None = None,
    *,
    weight: float = 1.0,
    between: bool = False,
) -> tuple[Table, dict[str, float]]:
    """Return the guess whose expected reconstruction accuracy is highest, and what was expected.

    The more noise in its sums, the clearer a reconstruction must be ahead to be submitted. The
    other guess is the blind one but for its labels: it has the classes that were found, so that
    where own rows have others it is ahead of the blind line. Between both stands the blind guess
    once more matched as a whole (`WIDE_BLOCK`), to samples of the reconstruction in place of draws
    of own rows: where few trees tell little beyond own rows it is ahead of either.

    A guess is best in the worlds it was made of. So all are scored in both kinds: in samples of the
    reconstruction, and in draws of own rows as the blind guess is merged of. The first kind
    counts for half where sums are exact, for less where noise drowns them (`trust`) or own rows are
    few beside the columns. Own rows so few that all draws from them look alike are worlds only as
    far as the sums are not to be trusted.

    Parameters
    ----------
    found : Table
        The reconstruction.
    worlds : sequence of Table
        Samples that it is the consensus of.
    blind : Blind
    trust : float
        How far sums are to be trusted, 0 to 1, as `trust_in` says; 1 where they are exact.
    rng : numpy.random.Generator
    rows : int, optional
        How many rows there are, if declared: of more that were found, some are left out; of fewer,
        the rest is guessed blindly.
    weight : float
        How far ``worlds`` are to be trusted where sums are: below 1 those of few chains, alike;
        `CERTAIN` where boxes are known.
    between : bool
        Whether the third guess is weighed, too: not where ``found`` keeps to more than samples do.

    Returns
    -------
    Table
        Without own rows, and where ``found`` is one sample alone: ``found``.
    dict of str to float
        ``submits_blind``, 1 or 0; and where there was a choice ``expected_gain``, in share of
        cells, of the reconstruction over the blind guess, and ``trust``.
    """
    rows = rows if rows is not None and rows > 0 else len(found)
    found = at_most(found, rows, rng)
    if not len(blind.own) or len(worlds) < 2 or not len(found):
        return found, {"submits_blind": 0.0}
    counts = _classes(found, blind, trust)
    made = Draws(blind.own, blind.schema, rows, rng, counts, at_once=True)
    recipe = blind.recipe
    guess, drawn = made.guess(recipe.guess), made.of(recipe.apart or recipe.kind)
    # samples of one chain are alike: these are of different ones
    apart, drawn = _spread(worlds, WORLDS), drawn[:WORLDS]
    part, sure = _part(blind, trust, weight), trust * weight

    def gain_of(one: Table) -> float:
        gains = (_gain(one, guess, kind, blind.width, rng) for kind in (apart, drawn))
        return float(np.dot((part, 1 - part), list(gains)))

    margin = _MARGIN * min(1.0, abs(1 - sure) / _NOISY)
    gain, chosen = gain_of(found), found
    middle = _between(guess, found, worlds, blind.width) if between else None
    if middle is not None and (less := gain_of(middle)) > gain - margin:
        gain, chosen, margin = less, middle, 0.0
    lost = gain < margin
    notes = {"submits_blind": float(lost), "expected_gain": gain, "trust": sure}
    if lost or len(chosen) == rows:
        return (guess if lost else chosen), notes
    return Table.concat([chosen, guess.take(np.arange(len(chosen), rows))]), notes


def _part(blind: Blind, trust: float, weight: float) -> float:
    """Return for how much samples of the reconstruction count beside draws of own rows."""
    if blind.ranges:
        return trust
    if blind.told:
        return min(trust * weight, 1.0)
    part = trust * weight
    if len(blind.own) >= FEWEST_ROWS:
        wide = _ROWS_PER_COLUMN * max(len(blind.schema.features), 1)
        part *= min(1.0, len(blind.own) / wide) / 2
    return part


def _between(
    guess: Table, found: Table, worlds: Sequence[Table], width: NDArray[np.float64]
) -> Table | None:
    """Return the blind guess with each cell as most samples have it that are matched to it."""
    if any(len(world) != len(found) for world in worlds):
        return None
    some, start = _spread(worlds, DRAWS), guess.take(np.arange(len(found)))
    return matched_consensus(some, width, rounds=1, block=WIDE_BLOCK, start=start)


def _spread(worlds: Sequence[Table], n: int) -> list[Table]:
    return [worlds[i] for i in np.linspace(0, len(worlds) - 1, min(n, len(worlds))).astype(int)]


def _classes(found: Table, blind: Blind, trust: float) -> NDArray[np.int64]:
    """Return how many rows of each class to guess: as found, as far as that is to be trusted."""
    K = max(len(blind.schema.classes), 2)
    share = [np.bincount(t.y, minlength=K) / len(t) for t in (found, blind.own)]
    return share_out(trust * share[0] + (1 - trust) * share[1], _SHARES)


def at_most(found: Table, rows: int, rng: np.random.Generator) -> Table:
    """Return so many of the rows at random, in their order, where there are more."""
    if len(found) <= rows:
        return found
    return found.take(np.sort(rng.permutation(len(found))[:rows]))


def _gain(
    found: Table,
    blind: Table,
    worlds: Sequence[Table],
    width: NDArray[np.float64],
    rng: np.random.Generator,
) -> float:
    """Return by how much one guess scores above the other on average over worlds."""
    parts = []
    for world in worlds:
        some = [t.take(rng.permutation(len(t))[:_MOST_ROWS]) for t in (found, blind, world)]
        parts.append(agreement(some[0], some[2], width) - agreement(some[1], some[2], width))
    return float(np.mean(parts))


def trust_in(basis: Basis, rows: int) -> float:
    """Return how much of what leaf sums tell is not noise, from 0 to 1; 1 where they are exact.

    That is, on average over leaves, V / (V + noise), where V is the variance of a leaf's gradient
    sum for who knows own rows alone: that of drawing ``rows`` rows, and that of not knowing the
    leaf's share but from own ones (a reliability: Spearman 1904).
    """
    parts = [np.ones(1)]
    for sums in basis.sums:
        own = np.bincount(sums.own_leaf, minlength=len(sums.var_g)) + 1.0
        spread = _ROW_VARIANCE * rows * own / own.sum() * (1 + rows / own.sum())
        noise = np.where(sums.var_g > NOISE_FLOOR, sums.var_g, 0.0)
        parts.append(spread / (spread + noise) if rows else np.ones(1))
    return float(np.mean(np.concatenate(parts[1:] or parts)))


def own_rows_differ(victims: NDArray[np.int64], own: NDArray[np.int64], tests: int = 1) -> bool:
    """Tell whether own rows are no draw of the victims': then no blind guess is worth submitting.

    Pearson's test of equal shares, at one in a hundred over all tests. Leaves where few rows are
    expected count as one (Cochran 1954): with many small leaves chance looks like a difference.

    Parameters
    ----------
    victims, own : int64 array, shape (J, K)
        Rows of each class in each leaf of a first tree.
    tests : int
        How many such trees are looked at.
    """
    from scipy.stats import chi2_contingency

    both = np.stack([victims.ravel(), own.ravel()])
    smaller = both.sum(axis=1).min() / max(both.sum(), 1)
    few = both.sum(axis=0) * smaller < _FEWEST_EXPECTED
    both = np.column_stack([both[:, ~few], both[:, few].sum(axis=1)])
    both = both[:, both.sum(axis=0) > 0]
    if both.shape[1] < 2 or not both.sum(axis=1).all():
        return False
    return bool(chi2_contingency(both, correction=False).pvalue < 0.01 / tests)
