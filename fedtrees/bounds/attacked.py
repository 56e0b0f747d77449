"""What an attack gets right of enumerated tables, and whether it knows more than its view."""

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

#: What an attack claims after a view, None: nothing.
Submits = Callable[[View], Guess | None]


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

    return lambda view: attacks().run(attack, view).guess


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
        guess = (None if view is None else submits(view)) or Guess.none("the attack does not apply")
        types = _submission(tables, views.principals, int(t), guess)
        alike = np.flatnonzero(views.of == views.of[t])
        right = np.minimum(victims[alike], types).sum(axis=1)
        expected.append(float(np.average(right, weights=tables.weight[alike])))
        beyond.append(float(np.minimum(victims[t], types).sum()) - expected[-1])
    (score, error), (more, spread) = map(_mean, (expected, beyond))
    return Attacked(score, error, more, spread)


def _mean(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _submission(
    tables: TinyTables, principals: Sequence[str], at: int, guess: Guess
) -> NDArray[np.int64]:
    """Return what is submitted, as a line of `TinyTables.victims`: at most as many rows."""
    victims, own = tables.victims(principals), tables.own(principals)
    alike = np.flatnonzero((own == own[at]).all(axis=1))
    weight = tables.weight[alike]
    if isinstance(tables, AlignedTables) and tables.places(principals):
        return tables.named(principals, guess, weight @ victims[alike] / weight.sum())
    n, V, claims = int(victims[at].sum()), victims.shape[1], guess.all(Records)
    few = tables.types_of(claims[0].table)[:n] if claims else np.zeros(0, dtype=np.int64)
    types = np.bincount(few, minlength=V)
    for _ in range(n - int(types.sum())):
        types[np.argmax(weight @ (victims[alike] > types))] += 1
    return types
