"""What an attack gets right of enumerated tables, and whether it knows more than its view."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.bounds.ceiling import ranked
from fedtrees.bounds.tables import TinyTables
from fedtrees.bounds.views import Tiny, Views
from fedtrees.core.guess import Membership, Records
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.core.view import View
from fedtrees.isolation.process import attacks

#: What an attack submits after a view, None: nothing.
Submits = Callable[[View], Table | None]


@dataclass(frozen=True)
class Attacked:
    """Rows that an attack gets right, over tables drawn by their probability.

    Attributes
    ----------
    score, error : float
        Expected rows right after a view that was drawn, mean and standard error.
    beyond, beyond_error : float
        How many more are right of the very table than of those that give the same view: 0 in the
        mean for whatever reads the view alone.
    """

    score: float
    error: float
    beyond: float
    beyond_error: float

    @property
    def pure(self) -> bool:
        """Whether nothing says that it reads what is not in its view (below four sigma)."""
        return self.beyond <= 4 * self.beyond_error + 1e-9


def submitted(attack: Spec) -> Submits:
    """Return what an attack submits, run in its own process."""

    def submits(view: View) -> Table | None:
        guess = attacks().run(attack, view).guess
        claims = () if guess is None else guess.all(Records)
        return claims[0].table if claims else None

    return submits


def recognised(tiny: Tiny, views: Views, attack: Spec, draws: int = 100) -> Attacked:
    """Ask an attack which types of rows the victims hold, of tables drawn by their probability.

    Scores are AUCs, as of `fedtrees.bounds.ceiling.recognition`; what gives no score is 1/2.
    """
    tables, rng = tiny.tables, np.random.default_rng(tiny.seed)
    victims, expected, beyond = tables.victims(views.principals), list[float](), list[float]()
    every = tables.table_of(range(len(tables.types)))
    for t in rng.choice(len(tables.held), draws, p=tables.weight):
        view = tiny.view(int(t), views.principals)
        guess = (
            None if view is None else attacks().run(attack, replace(view, candidates=every)).guess
        )
        claims = () if guess is None else guess.all(Membership)
        score = claims[0].score if claims else np.zeros(len(every))
        alike = np.flatnonzero(views.of == views.of[t])
        held = np.average(victims[alike], axis=0, weights=tables.weight[alike])
        expected.append(ranked(score, held, tables.prior))
        beyond.append(ranked(score, victims[t].astype(np.float64), tables.prior) - expected[-1])
    (score_, error), (more, spread) = map(_mean, (expected, beyond))
    return Attacked(score_, error, more, spread)


def attacked(tiny: Tiny, views: Views, submits: Submits, draws: int = 100) -> Attacked:
    """Run an attack on tables drawn by their probability; what it leaves out is guessed blindly.

    `views`: Of all tables.
    """
    tables, rng = tiny.tables, np.random.default_rng(tiny.seed)
    victims, expected, beyond = tables.victims(views.principals), list[float](), list[float]()
    for t in rng.choice(len(tables.held), draws, p=tables.weight):
        view = tiny.view(int(t), views.principals)
        given = None if view is None else submits(view)
        types = _completed(tables, victims, int(t), given)
        alike = np.flatnonzero(views.of == views.of[t])
        right = np.minimum(victims[alike], types).sum(axis=1)
        expected.append(float(np.average(right, weights=tables.weight[alike])))
        beyond.append(float(np.minimum(victims[t], types).sum()) - expected[-1])
    (score, error), (more, spread) = map(_mean, (expected, beyond))
    return Attacked(score, error, more, spread)


def _mean(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _completed(
    tables: TinyTables, victims: NDArray[np.int64], at: int, given: Table | None
) -> NDArray[np.int64]:
    """Return how many rows of each type are submitted, int64, shape (V,): the first n count."""
    n, V = int(victims[at].sum()), victims.shape[1]
    none = np.zeros(0, dtype=np.int64)
    few = none if given is None else tables.types_of(given)[:n]
    types = np.bincount(few, minlength=V)
    own = tables.counts.sum(axis=1) - victims
    alike = np.flatnonzero((own == own[at]).all(axis=1))
    weight = tables.weight[alike]
    for _ in range(n - int(types.sum())):
        types[np.argmax(weight @ (victims[alike] > types))] += 1
    return types
