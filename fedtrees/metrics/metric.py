"""Metrics: what a claim is compared with, how it is scored, and what a blind adversary scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.composition import Composition
from fedtrees.core.errors import UsageError
from fedtrees.core.guess import Claim
from fedtrees.core.local_data import KnownEntries, LocalData, rows_of, side_by_side, stacked
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import Transcript
from fedtrees.core.view import View
from fedtrees.guessing.blind import DRAWS, blind_guesses
from fedtrees.guessing.targets import range_of
from fedtrees.isolation.process import attacks
from fedtrees.metrics.known_entries import all_but, dealt, of_every_row

T = TypeVar("T")
#: Members, and non-members, that are asked about: 1 in 1,000 needs so many.
MOST_CANDIDATES = 1000


@dataclass(frozen=True)
class Score:
    """One measured value.

    Attributes
    ----------
    key : str
        One of the `Metric.measures`.
    value : float or None
        None where it is not defined.
    blind : float or None
        Its blind baseline, where that depends on the claim; else it is in `Metric.line`.
    part : str
        What it is of, where its measure has parts.
    error : float or None
        Standard error, where a sample was scored.
    klass : str
        Where the claim makes it of another class than its measure.
    """

    key: str
    value: float | None
    blind: float | None = None
    part: str = ""
    error: float | None = None
    klass: str = ""

    @property
    def name(self) -> str:
        """Key and part."""
        return f"{self.key} {self.part}".strip()


@dataclass(frozen=True, eq=False)
class Case:
    """What the harness alone knows when it scores: who holds what, and what was trained.

    Attributes
    ----------
    local_data : mapping of str to LocalData
        Of every party that holds data.
    roles : mapping of str to str
        Role of every party by name.
    top : tuple of str
        Features of the top score, () for none.
    reserve : Table or None
        Rows of the same distribution that nobody holds, and that serve nothing else.
    others : Table or None
        All rows of the same distribution that nobody holds. The non-members among the candidates of
        membership attacks are drawn from them.
    population : Table or None
        The part of them that serves as background knowledge of an adversary without local rows
        (`background`): the held-out rows. The reserve is not among them, because the specificity
        test compares a guess with the reserve and would be meaningless if the attack knew it.
    told_others : bool
        Whether the principals know `population`, as in `of_population`.
    streams : Streams
        Randomness of the scoring.
    threat : str
        As written; it names the blind adversary's randomness.
    model : object or None
        None before training.
    grown_on : function of a name and a round, or None
        Which rows of local data a round of training used, bool (n,); None: all. Without a function:
        all, in every round.
    splits : mapping of (int, int) to (str, int, float)
        Owner, column and threshold of the splits of a model that their owners alone know, by tree
        and node.
    asked : Table or None
        Rows that the model was asked to predict, with their labels.
    bins_of_rows : mapping of (str, int) to int64 array
        Bins of a party's rows, by its name and column; -1: no value.
    """

    local_data: Mapping[str, LocalData]
    roles: Mapping[str, str]
    principals: tuple[str, ...]
    schema: Schema
    streams: Streams
    threat: str = ""
    top: tuple[str, ...] = ()
    reserve: Table | None = None
    others: Table | None = None
    population: Table | None = None
    told_others: bool = False
    model: Any = None
    transcript: Transcript | None = None
    grown_on: Callable[[str, int], NDArray[np.bool_] | None] | None = None
    splits: Mapping[tuple[int, int], tuple[str, int, float]] = field(default_factory=dict)
    asked: Table | None = None
    bins_of_rows: Mapping[tuple[str, int], NDArray[np.int64]] = field(default_factory=dict)

    @property
    def victims(self) -> dict[str, LocalData]:
        """What everybody but the principals holds, by name."""
        return {n: h for n, h in self.local_data.items() if n not in self.principals}

    @cached_property
    def known(self) -> LocalData | None:
        """Labels that the threat declares known: of rows drawn at random, ids and labels alone."""
        threat = Threat.parse(self.threat) if self.threat else None
        if threat is not None and threat.sensitive is not None:
            return _labels_of(h for h in self.victims.values() if h.y is not None)
        count = threat.labels if threat is not None else 0
        labelled = next((h for h in self.victims.values() if h.y is not None), None)
        if not count or labelled is None or labelled.y is None:
            return None
        rng = self.streams.child("known", self.threat).rng("labels")
        rows = np.sort(rng.permutation(len(labelled))[:count])
        none = np.zeros(0, dtype=np.intp)
        return LocalData(labelled.ids[rows], none, labelled.X[rows][:, none], labelled.y[rows])

    @cached_property
    def entries(self) -> KnownEntries | None:
        """Values that the threat declares known (`fedtrees.metrics.known_entries`)."""
        threat = Threat.parse(self.threat) if self.threat else None
        if threat is None:
            return None
        if threat.sensitive is not None:
            return all_but(self.victims, self.schema, threat.sensitive)
        if not (threat.entries or threat.attributes):
            return None
        rng = self.streams.child("known", self.threat).rng("entries")
        if threat.attributes:
            return of_every_row(self.victims, self.schema, threat.attributes, rng)
        return dealt(self.victims, threat.entries, rng)

    @cached_property
    def told(self) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Columns that the threat declares known of all rows, and their values by row."""
        threat = Threat.parse(self.threat) if self.threat else None
        attributes_known = threat is not None and (
            threat.attributes or threat.sensitive is not None
        )
        return self.entries.of_all_rows if attributes_known and self.entries is not None else None

    @cached_property
    def candidates(self) -> Candidates | None:
        """Victims' rows, at most `MOST_CANDIDATES`, among as many others at most, in no order.

        Who holds nothing is asked about whole rows, whoever has which columns of them. None where
        nobody but the principals holds whole rows, or there are no others.
        """
        members, other_rows = self.victims_rows, self.others
        if members is None and len(self.victims) == len(self.local_data):
            members = side_by_side(self.local_data.values(), self.schema)
        if members is None or not len(other_rows or ()):
            return None
        assert other_rows is not None
        rng = self.streams.child("candidates", self.threat).rng("membership")
        some = [t.take(rng.permutation(len(t))[:MOST_CANDIDATES]) for t in (members, other_rows)]
        table, n = Table.concat(some), len(some[0])
        order = rng.permutation(len(table))
        return Candidates(table.take(order), order < n)

    @property
    def victims_rows(self) -> Table | None:
        """Whole rows of everybody but the principals, None where nobody holds such."""
        return stacked(self.victims.values(), self.schema)

    def rows_in(self, name: str, round: int) -> Table:
        """Return the whole rows of one local data that a round of training used."""
        table, used = self.local_data[name].table, self._used(name, round)
        return table if used is None else table.take(used)

    def victims_in(self, round: int) -> Table | None:
        """Return those of `victims_rows` that a round of training used."""
        if all(self._used(name, round) is None for name in self.victims):
            return self.victims_rows
        return Table.concat([self.rows_in(name, round) for name in self.victims])

    def _used(self, name: str, round: int) -> NDArray[np.bool_] | None:
        return None if self.grown_on is None else self.grown_on(name, round)

    def blind_view(self) -> View:
        """Return what the principals know without any transcript."""
        adversary_data = tuple(h for n, h in self.local_data.items() if n in self.principals)
        return View(
            principals=self.principals,
            roles=dict(self.roles),
            own=(*adversary_data, LocalData.of(self.population))
            if self.told_others and self.population
            else adversary_data,
            schema=self.schema,
            protocol="",
            parameters={},
            n_rows=rows_of(self.local_data),
            defense=Composition(),
            seen=(),
            known=self.known,
            entries=self.entries,
        )

    @property
    def background(self) -> Table | None:
        """Rows of the population that both the population baseline and the attacks receive.

        None if the principals have local rows, from which they know the population, if the victims
        have no whole rows, or if the table has no held-out rows. Attacks receive the rows as
        `fedtrees.core.view.View.population`, so that the attack and its baseline differ by the
        transcript alone.
        """
        own_rows = None if self.told_others else self.blind_view().rows
        if not len(self.population or ()) or self.victims_rows is None or own_rows is not None:
            return None
        return self.population

    @property
    def of_population(self) -> Case | None:
        """The same adversary with the rows of `background` as local data, or None without them.

        Its blind guesses are the population baseline. What they get right is not information about
        the training rows: every useful model describes the population (Jayaraman and Evans 2022).
        """
        return None if self.background is None else replace(self, told_others=True)

    def blind_rows(self, n: int, rng: np.random.Generator, draws: int = DRAWS) -> dict[str, Table]:
        """Return what the principals guess of n rows who sees nothing, by name.

        Who holds no rows is granted how many of the victims' are of each class, or the mean and the
        standard deviation of numeric targets: that is public more often than not, and the first
        messages of most protocols say it.
        """
        adversary_rows, victims = self.blind_view().rows, self.victims_rows
        counts, target = None, None
        if (adversary_rows is None or self.told_others) and victims is not None:
            if self.schema.classes:
                counts = np.bincount(victims.y, minlength=max(len(self.schema.classes), 2))
            else:
                target = range_of(float(victims.y.mean()), float(victims.y.std()))
        return blind_guesses(
            adversary_rows, self.schema, n, rng, counts=counts, target=target, draws=draws
        )

    def blind_rng(self) -> np.random.Generator:
        """Return the coins of the blind adversary's guesses: one set for who knows others' rows."""
        if self.told_others:
            return self.streams.child("blind", "population").rng("guesses")
        return self.streams.child("blind", self.threat).rng("guesses")


def _labels_of(parts: Iterable[LocalData]) -> LocalData:
    """Return ids and labels of rows, without their columns."""
    labelled = [h for h in parts if h.y is not None]
    ids = np.concatenate([h.ids for h in labelled])
    none = np.zeros(0, dtype=np.intp)
    y = np.concatenate([h.table.y for h in labelled])
    return LocalData(ids, none, np.zeros((len(ids), 0), dtype=np.float32), y)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Rows of which some are the victims'.

    `member`: bool array, shape (n,). Which.
    """

    table: Table
    member: NDArray[np.bool_]


class Metric(ABC, Generic[T]):
    """Base of all metrics. It goes with one type of claim; several may go with the same.

    Attributes
    ----------
    name : str
        Set by ``@register.metric``.
    before_training : bool
        Whether truth and blind baseline need no training: then they are measured once per
        federation and threat, in a cell of their own.
    measures : tuple of Measure
        What it scores. Those with a phrase reports show first, in this order.
    main : tuple of str
        Keys that such a cell tells of every blind guess, the deciding one first.
    prominence : int
        Where several metrics could speak for a panel, the greatest does.
    """

    name: ClassVar[str] = "metric"
    of: ClassVar[type[Claim]]
    before_training: ClassVar[bool] = False
    measures: ClassVar[tuple[Measure, ...]] = ()
    main: ClassVar[tuple[str, ...]] = ()
    prominence: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        unknown = {*cls.main} - {m.key for m in cls.measures}
        if unknown:
            raise UsageError(
                f"metric {cls.__name__}: `main` names {sorted(unknown)}, of which there is no "
                "Measure in its `measures`; declare one"
            )

    @abstractmethod
    def truth(self, case: Case) -> T | None:
        """Return what such claims are compared with, None where there is nothing of the kind."""

    @abstractmethod
    def score(self, claims: Sequence[Any], truth: T) -> list[Score]:
        """Score all claims of the type that one guess makes.

        Parameters
        ----------
        claims : sequence of Claim
            Of type `of`, at least one.
        truth : object
            From `truth`.
        """

    def refuses(self, claims: Sequence[Any], case: Case) -> str | None:
        """Return what is wrong with claims that cannot be scored at all, None if nothing is."""
        return None

    def counted(self, truth: T) -> int | None:
        """Return how many rows the shares are of, None where they are of something else."""
        return None

    def measure(self, score: Score) -> Measure:
        """Return what a score measures.

        Raises `UsageError` if it is not declared so.
        """
        for measure in self.measures:
            if measure.key == score.key and bool(measure.part) == bool(score.part):
                return measure
        part = f" with the part {score.part!r}" if score.part else ""
        raise UsageError(
            f"metric {self.name!r} scores {score.key!r}{part}; declare a Measure in its `measures`"
        )

    def best_of(self, scored: Mapping[str, Sequence[Score]]) -> dict[str, Best]:
        """Return the best defined value per score, and whose it is (the first one's on a tie)."""
        best: dict[str, Best] = {}
        for guess, scores in scored.items():
            for s in scores:
                sign, old = self.measure(s).sign, best.get(s.name)
                if s.value is not None and (old is None or sign * s.value > sign * old.value):
                    best[s.name] = Best(s.value, guess, s)
        return best

    def blind(self, case: Case, truth: T) -> dict[str, Sequence[Claim]]:
        """Return what adversaries claim who sees nothing, by name.

        Here: what the attacks marked `blind` claim that give this type.
        """
        view, guesses = case.blind_view(), dict[str, Sequence[Claim]]()
        for name in blind_attacks(self.of):
            guess = attacks().run(Spec(name), view).guess
            claims = () if guess is None else guess.all(self.of)
            if claims:
                guesses[name] = claims
        return guesses

    def line(self, case: Case, truth: T, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the best blind value of every score.

        `measured`: What the blind cell of this federation and threat measured already, of all
        metrics that need no training.
        """
        scored = {
            name: self.score(claims, truth) for name, claims in self.blind(case, truth).items()
        }
        return {name: best.value for name, best in self.best_of(scored).items()}

    def completed(
        self, claims: Sequence[Any], truth: T, blind: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        """Return the claims to score, where leaving something out must not be a disadvantage.

        `blind`: Returns the best blind claims (by the first of `main`).
        """
        return claims


@dataclass(frozen=True)
class Best:
    """The best blind value of one score, and the name of the guess that reached it."""

    value: float
    guess: str
    score: Score


def blind_attacks(kind: type[Claim]) -> Iterator[str]:
    """Yield the names of the attacks that are marked blind and give such claims."""
    for name in register.names("attack"):
        maker = register.get("attack", name)
        if getattr(maker, "blind", False) and getattr(maker, "gives", None) is kind:
            yield name


def metrics_of(kind: type[Claim]) -> list[Metric[Any]]:
    """Return the metrics of one type of claim."""
    return [m for m in all_metrics() if m.of is kind]


def headlines() -> list[str]:
    """Return the scores that reports show first, most prominent metrics before others."""
    ranked = sorted(all_metrics(), key=lambda m: -m.prominence)
    return [m.key for metric in ranked for m in metric.measures if m.phrase]


def all_metrics() -> list[Metric[Any]]:
    """Return all metrics, in the order of their names."""
    return [register.get("metric", name)() for name in register.names("metric")]
