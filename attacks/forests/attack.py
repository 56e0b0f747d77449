"""`draft-dp`: reconstruct rows from the noisy counts of a forest of random tests."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.informed import Enumeration
from fedtrees.attacks.forests.posterior import (
    Question,
    annealed,
    cut_short,
    posterior,
    seconds,
    share_of_work,
)
from fedtrees.attacks.forests.programs import cells_program, rows_program
from fedtrees.attacks.forests.released import sources_of, told_columns, unreadable
from fedtrees.core.attack import Attack
from fedtrees.core.errors import ProtocolError, check_known, check_positive
from fedtrees.core.guess import Guess, Records
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View

Mode = Literal["posterior", "map", "cpsat-cells", "cpsat-rows", "informed"]
MODES = get_args(Mode)


@register.attack("draft-dp")
@dataclass(frozen=True, kw_only=True)
class DraftDP(Attack):
    """Reconstruct all rows from a forest with noisy class counts (after Gorgé et al. 2025).

    The published attack uses a constraint solver to find the table under which the counts are most
    likely. This table overfits the noise. We sample tables from the posterior instead, with a prior
    that is learned at the same time, and return the table that is closest to all samples
    (docs/studies/draft-dp.md). Attributes that the threat model makes known (``attributes=``) are
    kept.

    Attributes
    ----------
    mode : {"posterior", "map", "cpsat-cells", "cpsat-rows", "informed"}
        ``map``: the most likely table, by annealing. ``cpsat-cells``: the same with a proof, if few
        rows are possible. ``cpsat-rows``: the published program, for comparison. ``informed``: the
        one row that the adversary does not know, by enumeration.
    rows : {"declared", "estimated"}
        Whether the declared number of rows is used, or an estimate from the counts.
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
        labels = reason is None and sources_of(view)[0].noise.kind == "labels"
        if labels and self.mode.startswith("cpsat"):
            return Reason("leaves-tell-labels", mode=self.mode, use="mode=map")
        if reason is None and self.mode == "cpsat-cells" and told_columns(view) is not None:
            return Reason("attributes-told", mode=self.mode, use="mode=map")
        if labels and self.rows == "estimated":
            return Reason("rows-not-told", use="rows=declared")
        if reason is None and self.mode == "informed":
            n_local = 0 if view.rows is None else len(view.rows)
            if view.n_rows - n_local != 1:
                return Reason("several-missing", missing=view.n_rows - n_local)
        return reason

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Reconstruct the rows of the victims."""
        tables, owners, expected, due = [], list[str](), 0.0, 0.0
        sources = [] if unreadable(view) else sources_of(view)
        questions = [(source, source.question(view, self.rows)) for source in sources]
        rows = sum(question.n for _, question in questions)
        early, given_columns = False, told_columns(view)
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
                if question.own is None
                else question.own
            )
            given_levels = {g: int(level[0]) for g, level in (question.known or {}).items()}
            every = Enumeration.of(question.forest)
            row, _ = every.missing_row(question.noise, local_rows, told=given_levels)
            return row[None, :], 0.0
        if self.mode == "map":
            return annealed(question, rng, work).value, 0.0
        if self.mode == "cpsat-cells":
            hint = annealed(question, rng, work).value
            solved = cells_program(question, self.limit, hint)
        else:
            solved = rows_program(question, self.limit)
        if solved.value is None:
            raise ProtocolError(
                f"mode={self.mode}: the solver found no table in {self.limit:g} s; raise limit, or "
                "take mode=map"
            )
        return solved.value, 0.0
