"""Interface of metrics: the truth, the scores of claims, and their blind baseline.

An attack returns a guess, which consists of typed claims (`fedtrees.core.claims`). A `Metric`
scores the claims of one type. The harness calls `truth` with a `Case`, which contains everything
that is known about a run, and `score` with the claims. It also computes the blind baseline with
`line`: the best score of claims that need no received message. Attacks have no access to this
module's objects.

`Case.known_entries` selects the values of the victims that a threat model declares known to the
adversary, by one of three functions: ``attributes=`` (`of_every_row`), ``sensitive=`` (`all_but`)
and ``entries=`` (`draw_known_values`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.guesses import DRAWS, blind_guesses
from fedtrees.blind_baselines.rows import range_of
from fedtrees.core.attack import claims_of
from fedtrees.core.claims import Claim
from fedtrees.core.composition import Composition
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import KnownEntries, LocalData, rows_of, side_by_side, stacked
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import Transcript
from fedtrees.core.view import View
from fedtrees.isolation.process import attack_process
from fedtrees.messages.horizontal import CutPoints
from fedtrees.trees.binning import Cuts


def advantage(
    score: float | None, blind: float | None, *, best: float | None = 1.0, tolerance: float = 1e-12
) -> float | None:
    """Return ``(score - blind) / (best - blind)``.

    Parameters
    ----------
    score : float or None
        Score of the attack.
    blind : float or None
        Blind baseline of the same score.
    best : float or None
        Score of a perfect guess (`fedtrees.core.results.Measure`). It is 0 for an error, so that
        the advantage is the share of the blind error that the attack removes.
    tolerance : float
        If the blind baseline is at most this far from `best`, the advantage is undefined.

    Returns
    -------
    advantage : float or None
        1 for a perfect guess, 0 for a guess as good as the baseline, negative for a worse one. None
        if a score is missing, `best` is None or infinite, or the baseline is perfect.

    Examples
    --------
    >>> advantage(0.75, 0.5)
    0.5
    >>> advantage(0.125, 0.5, best=0.0)
    0.75
    """
    if score is None or blind is None or best is None or not tolerance < abs(best - blind) < inf:
        return None
    return (score - blind) / (best - blind) or 0.0  # never -0


def of_every_row(
    victims: Mapping[str, LocalData], schema: Schema, count: int, rng: np.random.Generator
) -> KnownEntries:
    """Draw attributes that are known for all rows of the victims (Gorgé et al. 2026).

    Parameters
    ----------
    victims : mapping of str to LocalData
        Complete rows, by victim.
    schema : Schema
        Columns. A one-hot group is one attribute.
    count : int
        Number of known attributes.
    rng : numpy.random.Generator
        Draws the attributes.

    Returns
    -------
    known : KnownEntries
        Values of the attributes in all rows.

    Raises
    ------
    UsageError
        If no attribute remains unknown, or a victim has only some columns of its rows.
    """
    attributes = schema.attributes
    if count >= len(attributes):
        raise UsageError(
            f"attributes={count}, and a row has {len(attributes)}, a one-hot group being one; give "
            "fewer, so that some are left to guess"
        )
    if not all(local_data.covers(schema) for local_data in victims.values()):
        raise UsageError(
            f"attributes={count}: other parties have columns, not rows; give entries, or "
            "use a protocol whose parties have complete rows"
        )
    # The same attributes are known for all rows of all victims.
    drawn = rng.permutation(len(attributes))[:count]
    return _cells(victims, [c for a in drawn.tolist() for c in attributes[a]])


def all_but(victims: Mapping[str, LocalData], schema: Schema, attribute: int) -> KnownEntries:
    """Return all values of the victims' rows except one attribute (Fredrikson et al. 2014).

    Parameters
    ----------
    victims : mapping of str to LocalData
        Complete rows, by victim.
    schema : Schema
        Columns. A one-hot group is one attribute.
    attribute : int
        Index of the sensitive attribute in ``schema.attributes``.

    Returns
    -------
    known : KnownEntries
        Values of all further attributes.

    Raises
    ------
    UsageError
        If there is no such attribute, or a victim has only some columns of its rows.
    """
    attributes = schema.attributes
    if attribute >= len(attributes):
        raise UsageError(
            f"sensitive={attribute}: a row has {len(attributes)} attributes, counted from 0"
        )
    if not all(local_data.covers(schema) for local_data in victims.values()):
        raise UsageError(
            f"sensitive={attribute}: other parties have columns, not rows; use a "
            "protocol whose parties have complete rows"
        )
    return _cells(victims, [c for k, a in enumerate(attributes) if k != attribute for c in a])


def _cells(victims: Mapping[str, LocalData], of: Sequence[int]) -> KnownEntries:
    """Return the values of the columns `of` in all rows of the victims."""
    columns = np.sort(of).astype(np.int64)
    ids = np.concatenate([local_data.ids for local_data in victims.values()])
    X = np.concatenate([local_data.X[:, columns] for local_data in victims.values()])
    return KnownEntries(np.repeat(ids, len(columns)), np.tile(columns, len(ids)), X.reshape(-1))


def draw_known_values(
    victims: Mapping[str, LocalData], count: int, rng: np.random.Generator
) -> KnownEntries | None:
    """Draw known values in the order in which an attack on linear regressions needs them.

    The values are divided into n groups. For a victim without labels (vertical), a group is one of
    its columns. For a victim with labels, it is one row. The first group, in random order, provides
    n - 2 values, the next one n - 3, and so on (the known data of Li et al. 2022, Thm. 2). Then
    each group provides one more value in turn, until `count` values are drawn.

    Parameters
    ----------
    victims : mapping of str to LocalData
        Local data of the victims. Constant columns are omitted.
    count : int
        Number of known values.
    rng : numpy.random.Generator
        Draws the order of the groups and of the values in each group.

    Returns
    -------
    known : KnownEntries or None
        None if there is no value to draw.
    """
    groups: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]] = []
    for local_data in victims.values():
        # A constant column would provide no equation for the attack.
        varied = np.array([len(np.unique(x[~np.isnan(x)])) > 1 for x in local_data.X.T], dtype=bool)
        X, columns = local_data.X[:, varied], local_data.columns[varied].astype(np.int64)
        if local_data.y is None:
            groups += [(local_data.ids, np.full(len(X), c), X[:, j]) for j, c in enumerate(columns)]
        else:
            groups += [
                (np.full(len(columns), i), columns, x)
                for i, x in zip(local_data.ids, X, strict=True)
            ]
    shuffled = []
    for g in rng.permutation(len(groups)).tolist():
        ids, columns, values = groups[g]
        order = rng.permutation(len(values))
        order = order[~np.isnan(values[order])]
        shuffled.append((ids[order], columns[order], values[order]))
    taken = [0] * len(shuffled)
    # First n - 2 values of group 0, n - 3 of group 1, and so on. Then one of each group in turn.
    draws_from = [g for g in range(len(shuffled)) for _ in range(len(shuffled) - 2 - g)]
    longest = max((len(g[0]) for g in shuffled), default=0)
    draws_from += [g for _ in range(longest) for g in range(len(shuffled))]
    for g in draws_from:
        if sum(taken) < count and taken[g] < len(shuffled[g][0]):
            taken[g] += 1
    parts = [tuple(a[:k] for a in group) for group, k in zip(shuffled, taken, strict=True)]
    if not sum(taken):
        return None
    ids, columns, values = (np.concatenate(p) for p in zip(*parts, strict=True))
    return KnownEntries(ids.astype(np.int64), columns, values.astype(np.float32))


T = TypeVar("T")
#: Largest number of members, and of non-members, among the candidates of membership inference. A
#: false positive rate of 0.1% needs 1,000 non-members.
MOST_CANDIDATES = 1000


@dataclass(frozen=True)
class Score:
    """One measured value.

    Attributes
    ----------
    key : str
        Key of one of the `Metric.measures`.
    value : float or None
        None if the score is undefined, for example if there is nothing to average.
    blind : float or None
        Blind baseline, if it depends on the claim. None: it is computed by `Metric.line`.
    part : str
        Part that was measured, for example a column. Empty if the measure has no parts.
    error : float or None
        Standard error of the value, if only a sample was scored.
    klass : str
        Class of the leak, if it differs from that of the measure. Empty: the class of the measure.

    Examples
    --------
    >>> from fedtrees import Score
    >>> Score("exact_rows", 0.25, blind=0.0).value
    0.25
    """

    key: str
    value: float | None
    blind: float | None = None
    part: str = ""
    error: float | None = None
    klass: str = ""

    @property
    def name(self) -> str:
        """Key and part, separated by a space."""
        return f"{self.key} {self.part}".strip()


@dataclass(frozen=True, eq=False)
class Case:
    """Ground truth of a run, which only the harness has: the local data, and the training.

    The *principals* are the parties of the adversary, and the *victims* are all other parties with
    data.

    Attributes
    ----------
    local_data : mapping of str to LocalData
        Local data of every party that has data.
    roles : mapping of str to str
        Role of every party by name.
    principals : tuple of str
        Names of the parties of the adversary.
    schema : Schema
        Columns of the complete table.
    streams : Streams
        Randomness of the scoring.
    threat : str
        Specification of the threat model. It also selects the randomness of the blind adversary.
    top : tuple of str
        Features of the additional score ``ra_top``. Empty: the score is not computed.
    reserve : Table or None
        Rows of the same distribution that are in no local data and are used only for the
        specificity test.
    remaining_rows : Table or None
        All rows of the same distribution that are in no local data. The non-members among the
        candidates of membership attacks are drawn from them.
    population : Table or None
        The part of these rows that an adversary without local rows has as background knowledge
        (`background`): the test rows. The reserve is not among them, because the specificity
        test compares a guess with the reserve and would be meaningless if the attack knew it.
    knows_population : bool
        Whether the principals know `population`, as in `of_population`.
    model : object or None
        Trained model. None before training.
    transcript : Transcript or None
        Messages of the training. None before training.
    grown_on : callable or None
        ``grown_on(party, round)`` returns which local rows a round of training used, bool array of
        shape (n,), or None for all rows. If the attribute is None, all rounds used all rows.
    splits : mapping of (int, int) to (str, int, float)
        Owner, column and threshold of the splits that only their owner knows, by tree and node.
    queried_rows : Table or None
        Rows that the model was asked to predict, with their labels.
    bins_of_rows : mapping of (str, int) to int64 array
        Bin of every local row, by party and column. -1 marks a missing value.
    """

    local_data: Mapping[str, LocalData]
    roles: Mapping[str, str]
    principals: tuple[str, ...]
    schema: Schema
    streams: Streams
    threat: str = ""
    top: tuple[str, ...] = ()
    reserve: Table | None = None
    remaining_rows: Table | None = None
    population: Table | None = None
    knows_population: bool = False
    model: Any = None
    transcript: Transcript | None = None
    grown_on: Callable[[str, int], NDArray[np.bool_] | None] | None = None
    splits: Mapping[tuple[int, int], tuple[str, int, float]] = field(default_factory=dict)
    queried_rows: Table | None = None
    bins_of_rows: Mapping[tuple[str, int], NDArray[np.int64]] = field(default_factory=dict)

    @property
    def victims(self) -> dict[str, LocalData]:
        """Local data of all parties except the principals, by name."""
        return {n: h for n, h in self.local_data.items() if n not in self.principals}

    @property
    def adversary(self) -> dict[str, LocalData]:
        """Local data of the principals that have data, by name."""
        return {n: self.local_data[n] for n in self.principals if n in self.local_data}

    @property
    def complete(self) -> dict[str, Table]:
        """Rows of every victim with complete rows (all features and the label), by name."""
        return {n: h.table for n, h in self.victims.items() if h.covers(self.schema)}

    @cached_property
    def knowledge(self) -> Threat | None:
        """The parsed threat model, None if it is empty."""
        return Threat.parse(self.threat) if self.threat else None

    @cached_property
    def known_labels(self) -> LocalData | None:
        """Labels that the threat model declares known to the adversary, None if there are none.

        ``sensitive`` declares all labels of the victims known, and ``labels`` a number of labels of
        random rows of the first victim with labels. The result has no feature columns.
        """
        threat = self.knowledge
        if threat is None:
            return None
        if threat.sensitive is not None:
            return _labels_of(h for h in self.victims.values() if h.y is not None)
        count = threat.labels
        labelled = next((h for h in self.victims.values() if h.y is not None), None)
        if not count or labelled is None or labelled.y is None:
            return None
        # The stream depends on the threat model only, so that all attacks know the same labels.
        rng = self.streams.child("known", self.threat).rng("labels")
        rows = np.sort(rng.permutation(len(labelled))[:count])
        none = np.zeros(0, dtype=np.intp)
        return LocalData(labelled.ids[rows], none, labelled.X[rows][:, none], labelled.y[rows])

    @cached_property
    def known_entries(self) -> KnownEntries | None:
        """Feature values that the threat model declares known, None if there are none.

        They are drawn by `fedtrees.metrics.metric`.
        """
        threat = self.knowledge
        if threat is None:
            return None
        if threat.sensitive is not None:
            return all_but(self.victims, self.schema, threat.sensitive)
        if not (threat.entries or threat.attributes):
            return None
        rng = self.streams.child("known", self.threat).rng("entries")
        if threat.attributes:
            return of_every_row(self.victims, self.schema, threat.attributes, rng)
        return draw_known_values(self.victims, threat.entries, rng)

    @cached_property
    def known_columns(self) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Columns that the threat model declares known for all rows, None if there are none.

        An int64 array of columns, shape (c,), and a float32 array of their values, shape (n, c).
        """
        threat = self.knowledge
        if threat is None or not (threat.attributes or threat.sensitive is not None):
            return None
        return None if self.known_entries is None else self.known_entries.of_all_rows

    @cached_property
    def candidates(self) -> Candidates | None:
        """Candidates of membership inference, in random order.

        Up to `MOST_CANDIDATES` rows of the victims (members) and up to as many rows that are in no
        local data (non-members). In a vertical federation whose principals have no data, the
        columns of all parties are joined to complete rows. None if there are no complete rows of
        victims or no non-members.
        """
        members, other_rows = self.victims_rows, self.remaining_rows
        # No party has complete rows, and the adversary has no data: join the columns of all
        # parties.
        if members is None and len(self.victims) == len(self.local_data):
            members = side_by_side(self.local_data.values(), self.schema)
        if members is None or not len(other_rows or ()):
            return None
        assert other_rows is not None
        rng = self.streams.child("candidates", self.threat).rng("membership")
        samples = [t.take(rng.permutation(len(t))[:MOST_CANDIDATES]) for t in (members, other_rows)]
        table, n = Table.concat(samples), len(samples[0])
        # Shuffle, so that the position of a candidate does not reveal its membership.
        order = rng.permutation(len(table))
        return Candidates(table.take(order), order < n)

    @property
    def victims_rows(self) -> Table | None:
        """Complete rows (all features and the label) of the victims, None if there are none."""
        return stacked(self.victims.values(), self.schema)

    @property
    def cuts(self) -> Cuts | None:
        """Cut points that the parties agreed on.

        None if none were announced. Also None if different ones were announced, for example for
        every tree, because the bins of a row are then not defined.
        """
        sent = [d.message for d in self.transcript or () if isinstance(d.message, CutPoints)]
        if not sent:
            return None
        cuts = sent[0].to_cuts()
        equal = (
            np.array_equal(cuts.values, m.values) and np.array_equal(cuts.offsets, m.offsets)
            for m in sent[1:]
        )
        return cuts if all(equal) else None

    def rows_in(self, name: str, round: int) -> Table:
        """Return the complete rows of one party that a round of training used.

        Parameters
        ----------
        name : str
            Name of the party.
        round : int
            Number of the round, from 0.

        Returns
        -------
        Table
            All rows of the party, or those that the subsample of the round contains.
        """
        table, used = self.local_data[name].table, self._used(name, round)
        return table if used is None else table.take(used)

    def victims_in(self, round: int) -> Table | None:
        """Return the rows of `victims_rows` that a round of training used.

        Parameters
        ----------
        round : int
            Number of the round, from 0.

        Returns
        -------
        Table or None
            None if no victim has complete rows.
        """
        # Without subsampling, these are all rows of the victims.
        if all(self._used(name, round) is None for name in self.victims):
            return self.victims_rows
        return Table.concat([self.rows_in(name, round) for name in self.victims])

    def _used(self, name: str, round: int) -> NDArray[np.bool_] | None:
        return None if self.grown_on is None else self.grown_on(name, round)

    def blind_view(self) -> View:
        """Return the view of the principals with an empty transcript.

        It contains their local data, the schema, the number of rows of every party, the knowledge
        that the threat model declares, and `population` if `knows_population` is set.
        """
        adversary_data = tuple(h for n, h in self.local_data.items() if n in self.principals)
        return View(
            principals=self.principals,
            roles=dict(self.roles),
            local_data=(*adversary_data, LocalData.of(self.population))
            if self.knows_population and self.population
            else adversary_data,
            schema=self.schema,
            protocol="",
            parameters={},
            n_rows=rows_of(self.local_data),
            defense=Composition(),
            seen=(),
            known_labels=self.known_labels,
            known_entries=self.known_entries,
        )

    @property
    def background(self) -> Table | None:
        """Rows of the population that both the population baseline and the attacks receive.

        None if the principals have local rows, from which they know the population, if the victims
        have no whole rows, or if the table has no test rows. Attacks receive the rows as
        `fedtrees.core.view.View.population`, so that the attack and its baseline differ only
        by the transcript.
        """
        own_rows = None if self.knows_population else self.blind_view().rows
        if not len(self.population or ()) or self.victims_rows is None or own_rows is not None:
            return None
        return self.population

    @property
    def of_population(self) -> Case | None:
        """The same adversary with the rows of `background` as local data, or None without them.

        Its blind guesses are the population baseline. What they get right is not information about
        the training rows: every useful model describes the population (Jayaraman and Evans 2022).
        """
        return None if self.background is None else replace(self, knows_population=True)

    def blind_rows(self, n: int, rng: np.random.Generator, draws: int = DRAWS) -> dict[str, Table]:
        """Return the blind guesses of n rows, by name (`blind_guesses`).

        If the principals have no complete rows, they are granted the number of the victims' rows of
        each class, or the mean and the standard deviation of a numeric target. These figures are
        usually public, and the first messages of most protocols contain them.

        Parameters
        ----------
        n : int
            Number of rows to guess.
        rng : numpy.random.Generator
            Randomness of the guesses.
        draws : int
            Number of samples per consensus.

        Returns
        -------
        guesses : dict of str to Table
            Tables of n rows.
        """
        adversary_rows, victims = self.blind_view().rows, self.victims_rows
        counts, target = None, None
        if (adversary_rows is None or self.knows_population) and victims is not None:
            if self.schema.classes:
                counts = np.bincount(victims.y, minlength=max(len(self.schema.classes), 2))
            else:
                target = range_of(float(victims.y.mean()), float(victims.y.std()))
        return blind_guesses(
            adversary_rows, self.schema, n, rng, counts=counts, target=target, draws=draws
        )

    def blind_rng(self) -> np.random.Generator:
        """Return the randomness of blind guesses.

        All adversaries that know the population share one stream, so that their population
        baselines are equal. Otherwise there is one stream per threat model.
        """
        if self.knows_population:
            return self.streams.child("blind", "population").rng("guesses")
        return self.streams.child("blind", self.threat).rng("guesses")


def _labels_of(parts: Iterable[LocalData]) -> LocalData:
    """Return ids and labels of rows without feature columns."""
    labelled = [h for h in parts if h.y is not None]
    ids = np.concatenate([h.ids for h in labelled])
    none = np.zeros(0, dtype=np.intp)
    y = np.concatenate([h.table.y for h in labelled])
    return LocalData(ids, none, np.zeros((len(ids), 0), dtype=np.float32), y)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidates of membership inference: n complete rows.

    Attributes
    ----------
    table : Table
        The candidates.
    member : bool array, shape (n,)
        Which candidates are rows of the victims. The remaining ones are in no local data.
    """

    table: Table
    member: NDArray[np.bool_]


class Metric(ABC, Generic[T]):
    """Base class of all metrics. A metric scores claims of one type.

    Several metrics may score the same type. Subclasses implement `truth` and `score`.

    Attributes
    ----------
    name : str
        Name of the metric, set by ``@register.metric``.
    of : type of Claim
        Type of the claims that it scores.
    before_training : bool
        Whether truth and blind baseline can be computed before training. They are then measured
        once per federation and threat model, in a separate cell.
    measures : tuple of Measure
        Scores that the metric computes. Reports show those with a phrase first, in this order.
    main : tuple of str
        Keys of the scores that a cell before training stores for every blind guess. The first one
        decides which guess is best.
    prominence : int
        Reports order the scores by decreasing prominence of their metric (`headlines`).

    Examples
    --------
    >>> from fedtrees import Metric, register
    >>> exact = register.get("metric", "records")()
    >>> isinstance(exact, Metric)
    True
    """

    name: ClassVar[str] = "metric"
    of: ClassVar[type[Claim]]
    before_training: ClassVar[bool] = False
    measures: ClassVar[tuple[Measure, ...]] = ()
    main: ClassVar[tuple[str, ...]] = ()
    prominence: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Fail at the definition of a metric, not in the middle of a bench.
        unknown = {*cls.main} - {m.key for m in cls.measures}
        if unknown:
            raise UsageError(
                f"metric {cls.__name__}: `main` names {sorted(unknown)}, of which there is no "
                "Measure in its `measures`; declare one"
            )

    @abstractmethod
    def truth(self, case: Case) -> T | None:
        """Return the truth that claims are compared with.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        truth : object or None
            None if the metric is undefined for this case. It is then not computed.
        """

    @abstractmethod
    def score(self, claims: Sequence[Any], truth: T) -> list[Score]:
        """Score all claims of type `of` in one guess.

        Parameters
        ----------
        claims : sequence of Claim
            One or more claims of type `of`.
        truth : object
            Result of `truth`.

        Returns
        -------
        scores : list of Score
            One score for every measured key and part.
        """

    def refuses(self, claims: Sequence[Any], case: Case) -> str | None:
        """Return why claims are invalid and cannot be scored, None if they can.

        The harness then raises a `ProtocolError` with the returned text.

        Parameters
        ----------
        claims : sequence of Claim
            All claims of type `of` in one guess.
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        reason : str or None
            By default None.
        """
        return None

    def counted(self, truth: T) -> int | None:
        """Return the number of rows (or cells) that the scores are shares of, None if not defined.

        Reports use it to print a count in addition to a share, for example 69 of 379 rows.

        Parameters
        ----------
        truth : object
            Result of `truth`.

        Returns
        -------
        total : int or None
            By default None.
        """
        return None

    def measure(self, score: Score) -> Measure:
        """Return the declaration of a score.

        Parameters
        ----------
        score : Score
            A score that the metric computed.

        Returns
        -------
        measure : Measure
            The entry of `measures` with its key.

        Raises
        ------
        UsageError
            If `measures` contains no measure with the key of the score, with a part if the score
            has one and without a part otherwise.
        """
        for measure in self.measures:
            if measure.key == score.key and bool(measure.part) == bool(score.part):
                return measure
        part = f" with the part {score.part!r}" if score.part else ""
        raise UsageError(
            f"metric {self.name!r} scores {score.key!r}{part}; declare a Measure in its `measures`"
        )

    def best_of(self, scored: Mapping[str, Sequence[Score]]) -> dict[str, Best]:
        """Return the best value of every score over several guesses.

        Parameters
        ----------
        scored : mapping of str to sequence of Score
            Scores of every guess by its name.

        Returns
        -------
        best : dict of str to Best
            By the name of the score. The first guess wins a tie. Undefined scores are ignored.
        """
        best: dict[str, Best] = {}
        for guess, scores in scored.items():
            for s in scores:
                # `sign` is negative for errors, for which a smaller value is better.
                sign, old = self.measure(s).sign, best.get(s.name)
                if s.value is not None and (old is None or sign * s.value > sign * old.value):
                    best[s.name] = Best(s.value, guess, s)
        return best

    def blind(self, case: Case, truth: T) -> dict[str, Sequence[Claim]]:
        """Return blind claims by the name of the guess.

        This implementation runs the attacks with the attribute `blind` that return claims of type
        `of`, on a view with an empty transcript. Subclasses add further guesses.

        Parameters
        ----------
        case : Case
            Provides the view of the adversary and its randomness.
        truth : object
            Result of `truth`. Some metrics grant the blind adversary facts from it, which makes the
            baseline optimistic and the advantage of an attack a cautious figure.

        Returns
        -------
        claims : dict of str to sequence of Claim
            Claims of every blind guess.
        """
        view, guesses = case.blind_view(), dict[str, Sequence[Claim]]()
        for name in blind_attacks(self.of):
            guess = attack_process().run(Spec(name), view).guess
            claims = () if guess is None else guess.all(self.of)
            if claims:
                guesses[name] = claims
        return guesses

    def line(self, case: Case, truth: T, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the blind baseline: the best value of every score over all blind guesses.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.
        truth : object
            Result of `truth`.
        measured : mapping of str to float
            Baselines that were measured before training for this federation and threat model.

        Returns
        -------
        baseline : dict of str to float
            By the name of the score. Scores without a baseline are missing.
        """
        scored = {
            name: self.score(claims, truth) for name, claims in self.blind(case, truth).items()
        }
        return {name: best.value for name, best in self.best_of(scored).items()}

    def completed(
        self, claims: Sequence[Any], truth: T, blind: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        """Return the claims to score, with missing parts filled from the best blind guess.

        A metric overrides it if an attack that claims only a part must not be at a disadvantage.
        This implementation returns the claims unchanged.

        Parameters
        ----------
        claims : sequence of Claim
            Claims of the attack.
        truth : object
            Result of `truth`.
        blind : callable
            Returns the claims of the best blind guess, by the first key of `main`.

        Returns
        -------
        claims : sequence of Claim
            Claims for `score`.
        """
        return claims


@dataclass(frozen=True)
class Best:
    """Best blind value of one score, and the name of the guess that reached it.

    Attributes
    ----------
    value : float
        The value.
    guess : str
        Name of the blind guess.
    score : Score
        The complete score, with its standard error.
    """

    value: float
    guess: str
    score: Score


def blind_attacks(kind: type[Claim]) -> Iterator[str]:
    """Yield the names of the attacks with the attribute `blind` that return claims of a type.

    Parameters
    ----------
    kind : type of Claim
        Type of the claims.

    Yields
    ------
    str
        Registered name of an attack.
    """
    for name in register.names("attack"):
        maker = register.get("attack", name)
        if getattr(maker, "blind", False) and kind in claims_of(maker):
            yield name


def metrics_of(kind: type[Claim]) -> list[Metric[Any]]:
    """Return the metrics that score one type of claim.

    Parameters
    ----------
    kind : type of Claim
        Type of the claims. Its subclasses and base classes have metrics of their own.

    Returns
    -------
    list of Metric
        Instances of all registered metrics whose attribute `of` is this type.
    """
    return [m for m in all_metrics() if m.of is kind]


def headlines() -> list[str]:
    """Return the keys of all scores with a phrase, ordered by the prominence of their metric."""
    ranked = sorted(all_metrics(), key=lambda m: -m.prominence)
    return [m.key for metric in ranked for m in metric.measures if m.phrase]


def all_metrics() -> list[Metric[Any]]:
    """Return all registered metrics, sorted by name."""
    return [register.get("metric", name)() for name in register.names("metric")]
