"""The attack `draft-dp`: reconstruct rows from the noisy counts of a forest of random tests.

The attack reads the forests of a view and formulates the reconstruction problems.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.chain import weighable
from fedtrees.attacks.forests.posterior import (
    Question,
    anneal,
    cut_short,
    posterior,
    seconds,
    share_of_work,
)
from fedtrees.attacks.forests.solvers import Enumeration, distance_costs, rows_program
from fedtrees.attacks.forests.structure import (
    MOST_DEPTH,
    MOST_LEVELS,
    Noise,
    NoisyForest,
    Variables,
)
from fedtrees.core.attack import Attack
from fedtrees.core.channel import Mechanism, Share, chained
from fedtrees.core.claims import Guess, Records
from fedtrees.core.errors import ProtocolError, check_known, check_positive
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.forests import LeafClassCounts, PrivateForest, RandomTests
from fedtrees.privacy.noise import Laplace, TruncatedLaplace


@dataclass(frozen=True, eq=False)
class NoisyLeafCounts:
    """Tests, counts of their leaves, and the noise on the counts.

    Attributes
    ----------
    tests : PrivateForest or RandomTests
        Tests of the trees.
    counts : int64 array, shape (T, 2^depth, K)
        Counts of the leaves.
    noise : Noise
        Noise on the counts.
    owner : str or None
        Client whose rows are counted. None means all clients.
    rows : int
        Announced number of this client's rows, 0 if unknown.
    """

    tests: PrivateForest | RandomTests
    counts: NDArray[np.int64]  # shape (T, 2^depth, K)
    noise: Noise
    owner: str | None = None
    rows: int = 0

    def question(self, view: View, rows: Literal["declared", "estimated"]) -> Question:
        """Return the reconstruction problem for one client's rows, or for all victims' rows.

        If attributes of all these rows are known, so is their number. Rows of the population enter
        the prior, unless only labels were released or the weights of latent classes would overflow.
        """
        feature, threshold = self.tests.feature, self.tests.threshold
        thresholds = [np.unique(threshold[feature == j]) for j in range(len(view.schema.features))]
        own_rows = None if view.rows is None or not len(view.rows) else view.rows
        likely = view.prior_rows if view.prior_rows is not None and len(view.prior_rows) else None
        values = None if likely is None else likely.X
        variables = Variables.of_schema(view.schema, thresholds, values)
        coded = None if likely is None else np.column_stack([variables.encode(likely.X), likely.y])
        forest = NoisyForest.of(variables, feature, self.counts, threshold)
        prior = None
        if (
            own_rows is None
            and coded is not None
            and self.noise.kind != "labels"
            and weighable(len(variables) + 1, view.n_rows + len(coded))
        ):
            prior = coded.astype(np.int16)
        if self.owner is not None:
            n = self.rows or forest.estimated_rows()
            return Question(forest, self.noise, n, population=prior)
        n_own, known_columns = 0 if own_rows is None else len(own_rows), read_known_columns(view)
        declared = rows == "declared" or known_columns is not None
        total = view.n_rows if declared else forest.estimated_rows(n_own + 1)
        own_levels = None if own_rows is None else coded
        return Question(
            forest, self.noise, max(1, total - n_own),
            local_rows=None if own_levels is None else own_levels.astype(np.int16),
            known_levels=None if known_columns is None else _levels(variables, *known_columns),
            population=prior,
        )  # fmt: skip


def read_known_columns(view: View) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    """Return known columns of all victims' rows, and the values, or None.

    They belong to the background knowledge of the threat model.
    """
    if view.known_entries is None:
        return None
    columns, X = view.known_entries.of_all_rows
    n_others = view.n_rows - (0 if view.rows is None else len(view.rows))
    return (columns, X) if len(columns) and len(X) == n_others else None


def _levels(
    variables: Variables, columns: NDArray[np.int64], X: NDArray[np.float32]
) -> dict[int, NDArray[np.int16]]:
    """Return the levels of variables whose columns are all known."""
    rows = variables.decode(np.zeros((len(X), len(variables)), dtype=np.int16))
    rows[:, columns] = X
    coded, known_columns = variables.encode(rows), {*columns.tolist()}
    return {
        g: coded[:, g] for g, of in enumerate(variables.columns) if known_columns.issuperset(of)
    }


def read_leaf_counts(view: View) -> list[NoisyLeafCounts]:
    """Return the best available counts: of single clients, else their sum, else the release.

    If some values of each row are known, the sum is used, because the owners of these rows are
    unknown.
    """
    tests = next((m for _, m in view.messages(RandomTests)), None)
    messages = [(seen, m) for seen, m in view.messages(LeafClassCounts)]
    from_others = [(s, m) for s, m in messages if s.sender not in view.principals]
    opened = [(s, m) for s, m in messages if s.opened]
    distributed = any(isinstance(c, Share) for c in view.changes(LeafClassCounts, "counts"))
    if tests is not None and from_others and not distributed:
        exact = Noise("exact")
        if read_known_columns(view) is not None:
            return [
                NoisyLeafCounts(
                    tests, sum((m.counts for _, m in messages), 0 * messages[0][1].counts), exact
                )
            ]
        return [
            NoisyLeafCounts(tests, m.counts, exact, s.sender, int(m.rows[0]))
            for s, m in from_others
        ]
    if tests is not None and opened and not distributed:
        return [NoisyLeafCounts(tests, opened[-1][1].counts, Noise("exact"))]
    released = [m for _, m in view.messages(PrivateForest)]
    noise = _noise(view) if released else None
    return [] if noise is None else [NoisyLeafCounts(released[-1], released[-1].counts, noise)]


def unreadable(view: View) -> Reason | None:
    """Return the reason if a view has no counts from which rows can be inferred, else None."""
    sources = read_leaf_counts(view)
    if not sources:
        return Reason("no-random-tests")
    tests = sources[0].tests
    if not weighable(len(view.schema.features) + 1, view.n_rows):
        return Reason("many-latent-classes", rows=view.n_rows)
    if tests.feature.shape[1].bit_length() > MOST_DEPTH:
        return Reason("deep-trees", most=MOST_DEPTH)
    for j, feature in enumerate(view.schema.features):
        levels = len(feature.categories) or 1 + len(np.unique(tests.threshold[tests.feature == j]))
        if levels > MOST_LEVELS:
            tests_of = {"column": feature.name, "thresholds": levels - 1, "most": MOST_LEVELS - 1}
            return Reason("many-thresholds", **tests_of)
    return None


def _noise(view: View) -> Noise | None:
    """Return the noise on released counts or labels, None if it is of an unknown kind."""
    changes, epsilon = view.changes(PrivateForest, "counts", "server"), view.parameters["epsilon"]
    if any(isinstance(c, Mechanism) for c in changes):
        return Noise.of("labels", float(epsilon), int(view.parameters["trees"]))
    law = chained(changes)
    if law is None:
        return Noise("exact")
    if not isinstance(law, Laplace) or not isinstance(law.scale, float):
        return None
    cut = isinstance(law, TruncatedLaplace)
    return Noise("truncated-laplace" if cut else "geometric", law.scale, law.draws)


Mode = Literal["posterior", "map", "cpsat-rows", "informed", "informed-cp"]
MODES = get_args(Mode)


@register.attack("draft-dp")
@dataclass(frozen=True, kw_only=True)
class DraftDP(Attack):
    """Reconstruct all rows from a forest with noisy class counts (after Gorgé et al. 2026).

    The published attack uses a constraint solver to find the table under which the counts are most
    likely. This table overfits the noise. We sample tables from the posterior instead, with a prior
    that is learned at the same time, and return the table that is closest to all samples
    (docs/studies/draft-dp.md). Attributes that the threat model makes known (``attributes=``) are
    kept.

    Attributes
    ----------
    mode : {"posterior", "map", "cpsat-rows", "informed", "informed-cp"}
        ``map``: the most likely table, by annealing. ``cpsat-rows``: the published program, for
        comparison. ``informed``: the one row that the adversary does not know, by enumeration.
        ``informed-cp``: the published program for this row (Equation 20), for comparison.
    rows : {"declared", "estimated"}
        Whether the declared number of rows is used, or an estimate from the counts. With
        ``cpsat-rows``, the number is a variable of the program within its 95 % confidence interval
        (Equations 10 to 16).
    work : float
        Number of moves, as a multiple of the default (8 million for 100 rows: 2 CPU seconds). With
        many rows, each row gets fewer moves, and the note ``stopped_early`` is set.
    limit : float
        Time limit of a solver in seconds.
    """

    claims = (Records,)

    mode: Mode = "posterior"
    rows: Literal["declared", "estimated"] = "declared"
    work: float = 1.0
    limit: float = 60.0

    def __post_init__(self) -> None:
        check_known("mode", self.mode, MODES)
        check_known("rows", self.rows, ("declared", "estimated"))
        check_positive("work", self.work)
        check_positive("limit", self.limit)

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if there are no usable counts or the mode does not fit, else None."""
        reason = unreadable(view)
        labels = reason is None and read_leaf_counts(view)[0].noise.kind == "labels"
        if labels and self.mode in ("cpsat-rows", "informed-cp"):
            return Reason("leaves-tell-labels", mode=self.mode, use="mode=map")
        if labels and self.rows == "estimated":
            return Reason("rows-not-told", use="rows=declared")
        if reason is None and self.mode.startswith("informed"):
            n_local = 0 if view.rows is None else len(view.rows)
            if view.n_rows - n_local != 1:
                return Reason("several-missing", missing=view.n_rows - n_local)
        return reason

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Reconstruct the rows of the victims."""
        tables, owners, expected, due = [], list[str](), 0.0, 0.0
        sources = [] if unreadable(view) else read_leaf_counts(view)
        questions = [(source, source.question(view, self.rows)) for source in sources]
        rows = sum(question.n for _, question in questions)
        early, given_columns = False, read_known_columns(view)
        for source, question in questions:
            work = self.work * (share_of_work(question, rows) if len(questions) > 1 else 1.0)
            value, spread = self._answer(question, rng, work)
            early |= self.mode == "posterior" and cut_short(question, work)
            variables = question.forest.variables
            X = variables.decode(value[:, :-1])
            if given_columns is not None:
                X[:, given_columns[0]] = given_columns[1]
            tables.append(Table(X, value[:, -1].astype(np.int64)))
            owners += [source.owner or ""] * len(value)
            expected += spread * len(value)
            due += seconds(question, work)
        if not tables:
            return Guess.none(self.inapplicable(view) or Reason("no-victim-rows"))
        named = tuple(owners) if all(owners) else None
        notes = {
            "expected_error": expected / len(owners),
            "seconds_expected": due,
            "stopped_early": float(early),
        }
        return Guess((Records(Table.concat(tables), owner=named),), notes)

    def _answer(
        self, question: Question, rng: np.random.Generator, work: float
    ) -> tuple[NDArray[np.int16], float]:
        """Return rows and their expected error, which is 0 if it is unknown."""
        if self.mode == "posterior":
            answer = posterior(question, rng, work)
            return answer.value, answer.spread
        if self.mode == "informed":
            local_rows = (
                np.zeros((0, len(question.sizes)), np.int16)
                if question.local_rows is None
                else question.local_rows
            )
            given_levels = {g: int(level[0]) for g, level in (question.known_levels or {}).items()}
            every = Enumeration.of(question.forest)
            row, _ = every.missing_row(question.noise, local_rows, known_values=given_levels)
            return row[None, :], 0.0
        if self.mode == "map":
            return anneal(question, rng, work).value, 0.0
        if self.mode == "informed-cp":
            solved = rows_program(question, self.limit, level_costs=distance_costs(question))
        else:
            smallest = question.n
            if self.rows == "estimated" and not question.known_levels:
                n_local = 0 if question.local_rows is None else len(question.local_rows)
                limits = question.forest.row_interval(question.noise)
                smallest, largest = (max(1, number - n_local) for number in limits)
                question = replace(question, n=largest)
            solved = rows_program(question, self.limit, smallest)
        if solved is None:
            raise ProtocolError(
                f"mode={self.mode}: the solver found no table in {self.limit:g} s; raise limit, or "
                "take mode=map"
            )
        return solved[0], 0.0
