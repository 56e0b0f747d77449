"""Expected score of an attack on enumerated tables, and a test that it uses only its view.

The score can be compared with the ceiling (`fedtrees.bounds.ceiling`), which no attack exceeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.bounds.aligned import AlignedTables
from fedtrees.bounds.ceiling import ranked
from fedtrees.bounds.tables import TinyTables
from fedtrees.bounds.views import Tiny, Views
from fedtrees.core.guess import Guess, Membership, Records
from fedtrees.core.specs import Spec
from fedtrees.core.view import View
from fedtrees.isolation.process import attacks

#: Function from a view to the guess of an attack, None if the attack returns no guess.
Submits = Callable[[View], Guess | None]


@dataclass(frozen=True)
class Attacked:
    """Score of an attack over tables that are drawn with their prior probability.

    The score is the number of correct rows, or an AUC for membership inference.

    Attributes
    ----------
    score, error : float
        Mean and standard error of the expected score given the view. The expectation is over all
        tables that give the same view.
    beyond, beyond_error : float
        Mean and standard error of the score on the drawn table minus the expected score. The mean
        is 0 for an attack that uses only its view.
    """

    score: float
    error: float
    beyond: float
    beyond_error: float

    @property
    def pure(self) -> bool:
        """Whether `beyond` is at most four standard errors above 0.

        Otherwise the attack uses information that is not in its view.
        """
        return self.beyond <= 4 * self.beyond_error + 1e-9


def submitted(attack: Spec) -> Submits:
    """Return a function that runs a registered attack on a view, in a separate process."""

    return lambda view: attacks().run(attack, view).guess


def recognised(tiny: Tiny, views: Views, attack: Spec, draws: int = 100) -> Attacked:
    """Run a membership inference attack on tables that are drawn with their prior probability.

    The candidates are one row of every type. The score is the AUC of
    `fedtrees.bounds.ceiling.recognition`, and 1/2 if the attack makes no claim. Arguments are as in
    `attacked`, with a registered attack instead of a function.
    """
    tables, rng = tiny.tables, np.random.default_rng(tiny.seed)
    victims, expected, beyond = tables.victims(views.principals), list[float](), list[float]()
    candidates = tables.table_of(range(len(tables.types)))
    for t in rng.choice(len(tables.held), draws, p=tables.weight):
        view = tiny.view(int(t), views.principals)
        guess = (
            None
            if view is None
            else attacks().run(attack, replace(view, candidates=candidates)).guess
        )
        claims = () if guess is None else guess.all(Membership)
        score = claims[0].score if claims else np.zeros(len(candidates))
        same_view = np.flatnonzero(views.of == views.of[t])
        posterior_counts = np.average(victims[same_view], axis=0, weights=tables.weight[same_view])
        expected.append(ranked(score, posterior_counts, tables.prior))
        beyond.append(ranked(score, victims[t].astype(np.float64), tables.prior) - expected[-1])
    (score_, error), (difference, spread) = map(_mean, (expected, beyond))
    return Attacked(score_, error, difference, spread)


def attacked(tiny: Tiny, views: Views, submits: Submits, draws: int = 100) -> Attacked:
    """Run an attack on tables that are drawn with their prior probability.

    Rows or values without a claim are completed by the best blind guess.

    Parameters
    ----------
    tiny : Tiny
        Enumerated tables, protocol and defense.
    views : Views
        Views of all tables.
    submits : callable
        Function from a view to a guess, for example from `submitted`.
    draws : int
        Number of tables.

    Returns
    -------
    result : Attacked
        Mean number of correct rows with its standard error.
    """
    tables, rng = tiny.tables, np.random.default_rng(tiny.seed)
    victims, expected, beyond = tables.victims(views.principals), list[float](), list[float]()
    for t in rng.choice(len(tables.held), draws, p=tables.weight):
        view = tiny.view(int(t), views.principals)
        # If the training fails, there is no view, and the blind guess is scored.
        guess = (None if view is None else submits(view)) or Guess.none("the attack does not apply")
        types = _submission(tables, views.principals, int(t), guess)
        same_view = np.flatnonzero(views.of == views.of[t])
        right = np.minimum(victims[same_view], types).sum(axis=1)
        expected.append(float(np.average(right, weights=tables.weight[same_view])))
        beyond.append(float(np.minimum(victims[t], types).sum()) - expected[-1])
    (score, error), (difference, spread) = map(_mean, (expected, beyond))
    return Attacked(score, error, difference, spread)


def _mean(values: list[float]) -> tuple[float, float]:
    """Return mean and standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _submission(
    tables: TinyTables, principals: Sequence[str], at: int, guess: Guess
) -> NDArray[np.int64]:
    """Convert a guess to the coding of `TinyTables.victims`, with the number of victims' rows.

    Missing rows are chosen greedily to maximise the expected number of correct rows, given only the
    local rows of the principals in table `at`.
    """
    victims, local_values = tables.victims(principals), tables.own(principals)
    same_local_data = np.flatnonzero((local_values == local_values[at]).all(axis=1))
    weight = tables.weight[same_local_data]
    if isinstance(tables, AlignedTables) and tables.places(principals):
        return tables.named(principals, guess, weight @ victims[same_local_data] / weight.sum())
    n, V, claims = int(victims[at].sum()), victims.shape[1], guess.all(Records)
    claimed = tables.types_of(claims[0].table)[:n] if claims else np.zeros(0, dtype=np.int64)
    types = np.bincount(claimed, minlength=V)
    for _ in range(n - int(types.sum())):
        # A further row of type v is correct if the victims have more than types[v] rows of it.
        types[np.argmax(weight @ (victims[same_local_data] > types))] += 1
    return types
