"""Metrics of reconstructed rows: `records`, `specificity`, `returned-rows` and `every-record`.

Attacks claim rows of the victims as `Records` or `EveryRecord`. The scores are computed in
`fedtrees.metrics.records`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.conditional import insert_known_values, nearest_guesses
from fedtrees.blind_baselines.rows import MOST_ROWS, Tolerance, row_budget, take_evenly
from fedtrees.core.claims import Claim, EveryRecord, Records
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.metrics.records import (
    RecordScores,
    inliers,
    nearest_row,
    row_errors,
    score_records,
    score_returned_rows,
    specificity,
)
from fedtrees.trees.binning import Cuts


def unscorable(claims: Sequence[Records], case: Case) -> str | None:
    """Return why guessed rows cannot be compared with rows of the table.

    Parameters
    ----------
    claims : sequence of Records
        The claim of one guess.
    case : Case
        Local data of all parties and the training.

    Returns
    -------
    str or None
        The first violated rule, as a part of a sentence. None if the rows can be compared.
    """
    if len(claims) > 1:
        return "it claimed rows more than once"
    table, n_features = claims[0].table, len(case.schema.features)
    if table.X.shape[1] != n_features:
        return f"it guessed {table.X.shape[1]} columns; the schema has {n_features}"
    if np.isinf(table.X).any():
        return "it guessed infinite values; rows must be finite"
    if not case.schema.classes:
        return None if np.isfinite(table.y).all() else "it guessed targets that are not finite"
    classes = max(len(case.schema.classes), 2)
    if not np.isin(table.y, np.arange(classes)).all():
        allowed = "0 and 1" if classes == 2 else f"0 to {classes - 1}"
        return f"it guessed labels other than {allowed}"
    return None


#: If the victims have more than `MOST_SCORED` rows, a random sample of `SCORED` rows is scored,
#: because time and memory of the matching grow with the square of the number of rows.
MOST_SCORED, SCORED = MOST_ROWS, 2000

# Cache of blind guesses by the local data of the first victim. All attacks are compared with them.
_blind_cache: WeakKeyDictionary[LocalData, dict[tuple[Any, ...], dict[str, Table]]] = (
    WeakKeyDictionary()
)


def _scored_sample(rows: Table, case: Case) -> Table:
    """Return the scored rows: all, or a sample that depends on the seed only."""
    if len(rows) <= MOST_SCORED:
        return rows
    # The stream does not depend on the attack, so that all attacks are scored on the same sample.
    rng = case.streams.child("scores").rng("victims")
    return rows.take(np.sort(rng.permutation(len(rows))[:SCORED]))


@dataclass(frozen=True, eq=False)
class VictimsRows:
    """The victims' rows that are scored.

    Attributes
    ----------
    rows : Table
        Scored rows: all rows of the victims, or a sample.
    schema : Schema
        Columns of the rows.
    top : tuple of str
        Features of the score ``ra_top``.
    n_rows : int
        Number of all rows of the victims.
    known_columns : tuple of int
        Columns that the threat model declares known.
    """

    rows: Table
    schema: Schema
    top: tuple[str, ...]
    n_rows: int
    known_columns: tuple[int, ...] = ()

    @property
    def guessed(self) -> int:
        """Number of guessed rows that are scored if the attack is not certain of its rows."""
        return row_budget(self.n_rows)

    @staticmethod
    def draw(rows: Table, case: Case) -> VictimsRows:
        """Return the truth for the rows of the victims, or for a sample of them.

        Parameters
        ----------
        rows : Table
            All rows of the victims.
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        VictimsRows
            With all rows, or a sample of `MOST_SCORED` rows.
        """
        known_columns = () if case.known_columns is None else tuple(case.known_columns[0].tolist())
        return VictimsRows(
            _scored_sample(rows, case), case.schema, case.top, len(rows), known_columns
        )

    @property
    def sampled(self) -> bool:
        """Whether only a sample of the rows is scored."""
        return len(self.rows) < self.n_rows

    @cached_property
    def inlier(self) -> NDArray[np.bool_] | None:
        """Which rows are inliers, bool (n,). None if a column is numeric or rows are sampled."""
        codes = self.schema.categorical.all() and not self.sampled
        return inliers(self.rows) if codes else None


def _insert_known_columns(
    blind_guesses: Mapping[str, Table], case: Case, n: int
) -> dict[str, Table]:
    """Insert the known columns into blind guesses, and add guesses from similar local rows."""
    assert case.known_columns is not None
    assert case.victims_rows is not None
    columns, known_values = case.known_columns
    # If fewer rows are guessed than exist, use the known values of n evenly spaced rows.
    known_values = known_values[((np.arange(n) + 0.5) * len(known_values) / n).astype(np.intp)]
    # The tolerances come from the true rows, but only those of known columns are used, which the
    # adversary can compute.
    width = Tolerance.of(case.victims_rows, case.schema).width
    guesses = {
        name: insert_known_values(rows, columns, known_values, width)
        for name, rows in blind_guesses.items()
    }
    adversary_rows, rng = case.blind_view().rows, case.streams.child("blind").rng("told")
    if adversary_rows is not None and len(adversary_rows):
        guesses |= nearest_guesses(adversary_rows, case.schema, columns, known_values, width, rng)
    return guesses


@register.metric("records")
class RecordMetric(Metric[VictimsRows]):
    """Reconstruction accuracy, exact rows and distances of rows after matching with the true rows.

    Guessed and true rows are matched one to one (`fedtrees.metrics.records.score_records`). A
    number agrees if its error is at most 0.319 standard deviations, and a category or class if it
    is equal. ``ra`` is the share of cells that agree, and ``exact_rows`` the share of rows that
    agree in every column. The Gower distance has no threshold. If all columns are categorical,
    ``right_rows``, ``row_error`` and the further errors are computed for features only, after a
    matching without labels.

    An attack may return only rows that it is certain of (with a confidence). These are completed by
    the best blind guess before they are scored, so that such an attack is not at a disadvantage.

    If the victims have more than `MOST_SCORED` rows, a sample of them is scored (``scored_rows``).
    Attack and blind baseline then guess the number of rows in `fedtrees.blind_baselines.rows`, and
    an attack adds all rows that it is certain of. Because fewer true rows compete for the guesses,
    the reconstruction accuracy and the share of close rows are higher than for the complete table,
    and so is the blind baseline. Reports widen confidence intervals by the standard errors.

    Columns that the threat model declares known are correct in every blind guess. ``row_error`` and
    the further errors exclude them (Gorgé et al. 2026).
    """

    of: ClassVar[type[Claim]] = Records
    before_training: ClassVar[bool] = True
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("ra", "reconstruction accuracy", "share of cells", slot="guess", short="RA",
                head="cells guessed", severity=80, phrase="guess {} of the values right",
                required=True),
        Measure("exact_rows", "exact rows", "share of rows", klass="person", slot="rows",
                head="rows reconstructed", counted_by="rows", severity=10, required=True,
                phrase="reconstruct {} in every column",
                explained="A row is reconstructed if every category is right and every number "
                          "is within 0.319 standard deviations."),
        Measure("close_rows", "rows right in 90% of columns", "share of rows", klass="person",
                short="close rows", counted_by="rows", severity=170,
                phrase="reconstruct {} in 90% of the columns", covered_by=("exact_rows", "ra")),
        Measure("bit_exact_rows", "rows right in every bit", "share of rows", klass="person"),
        Measure("right_rows", "rows right in every feature", "share of rows", klass="person"),
        Measure("ra_top", "reconstruction accuracy, named columns", "share of cells"),
        Measure("ra_of", "reconstruction accuracy of a column", "share of rows", part="column"),
        Measure("target_error", "error of numeric targets", "share of the range", 0.0),
        Measure("gower", "Gower distance", "distance", 0.0),
        Measure("hamming", "Hamming distance", "distance", 0.0),
        Measure("row_error", "wrong features", "share of cells", 0.0),
        Measure("worst_row", "wrong features of the worst row", "share of cells", 0.0),
        Measure("inlier_error", "wrong features of ordinary rows", "share of cells", 0.0),
        Measure("outlier_error", "wrong features of odd rows", "share of cells", 0.0),
        Measure("scored_rows", "rows that were scored", "rows", None, "meta"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("ra", "ra_top", "exact_rows")
    prominence: ClassVar[int] = 2

    def truth(self, case: Case) -> VictimsRows | None:
        """Return the victims' rows.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        VictimsRows or None
            None if no victim has complete rows.
        """
        rows = case.victims_rows
        return None if rows is None else VictimsRows.draw(rows, case)

    def refuses(self, claims: Sequence[Records], case: Case) -> str | None:
        """Return why guessed rows do not fit the schema.

        Parameters
        ----------
        claims : sequence of Records
            The claim of one guess.
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        str or None
            Result of `unscorable`.
        """
        return unscorable(claims, case)

    def counted(self, truth: VictimsRows) -> int:
        """Return the number of all rows of the victims, also if only a sample is scored.

        Parameters
        ----------
        truth : VictimsRows
            Result of `truth`.

        Returns
        -------
        int
            Number of rows.
        """
        return truth.n_rows

    def blind(self, case: Case, truth: VictimsRows) -> dict[str, Sequence[Claim]]:
        """Return the guesses of `fedtrees.blind_baselines.guesses`, and claims of blind attacks.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.
        truth : VictimsRows
            Result of `truth`.

        Returns
        -------
        dict of str to sequence of Claim
            Claims by the name of the guess. Columns that the threat model declares known are
            correct.
        """
        rng, first_victim = case.blind_rng(), next(iter(case.victims.values()))
        # The guesses depend on the principals (or on the population), the number of rows and the
        # seed.
        key = (
            case.knows_population or case.principals,
            truth.guessed,
            str(rng.bit_generator.state),
        )
        cached = _blind_cache.setdefault(first_victim, {})
        if key not in cached:
            cached[key] = case.blind_rows(truth.guessed, rng)
        tables = cached[key]
        if case.known_columns is not None:
            tables = _insert_known_columns(tables, case, truth.guessed)
        guesses = {name: [Records(table)] for name, table in tables.items()}
        return {**guesses, **super().blind(case, truth)}

    def completed(
        self,
        claims: Sequence[Records],
        truth: VictimsRows,
        blind: Callable[[], Sequence[Records]],
    ) -> Sequence[Records]:
        """Append rows of the best blind guess to rows that the attack is certain of.

        Claims without a confidence are limited to the number of guessed rows instead.

        Parameters
        ----------
        claims : sequence of Records
            The claim of one guess.
        truth : VictimsRows
            Result of `truth`.
        blind : callable
            Returns the claim of the best blind guess, computed only if rows are missing.

        Returns
        -------
        sequence of Records
            The claim that is scored.
        """
        claim = claims[0]
        if claim.confidence is None:
            is_complete = truth.guessed == truth.n_rows
            table = claim.table if is_complete else take_evenly(claim.table, truth.guessed)
            return claims if table is claim.table else [Records(table)]
        scaled_missing = truth.guessed * (truth.n_rows - len(claim.table))
        # The share of missing rows times the number of guessed rows, rounded up with integers, so
        # that it never exceeds the number of rows of the blind guess.
        missing = -(-scaled_missing // truth.n_rows)
        if missing <= 0:
            return claims
        blind_claims = blind()
        if not blind_claims:
            return claims
        return [
            Records(Table.concat([claim.table, blind_claims[0].table.take(np.arange(missing))]))
        ]

    def score(self, claims: Sequence[Records], truth: VictimsRows) -> list[Score]:
        """Compute all scores of the guessed rows.

        Parameters
        ----------
        claims : sequence of Records
            The claim of one guess.
        truth : VictimsRows
            Result of `truth`.

        Returns
        -------
        list of Score
            One per measure, and one per column for ``ra_of``. Measures that do not apply to the
            table, such as ``target_error`` of a table with classes, are left out.
        """
        result = score_records(
            claims[0].table, truth.rows, truth.schema, truth.top, limit=truth.n_rows
        )
        keys = ["ra", "ra_top", "exact_rows", "close_rows", "bit_exact_rows", "target_error",
                "gower", "hamming"]  # fmt: skip
        if result.target_error is None:
            keys.remove("target_error")
        values: dict[str, float | None] = {key: getattr(result, key) for key in keys}
        if truth.inlier is not None:
            values |= row_errors(claims[0].table, truth.rows, truth.inlier, truth.known_columns)
        scores = [Score(key, value) for key, value in values.items()]
        scores += [Score("ra_of", share, part=name) for name, share in result.per_feature.items()]
        if not truth.sampled:
            return scores
        n_scored = Score("scored_rows", float(len(truth.rows)))
        return [n_scored, *(replace(s, error=result.errors.get(s.name)) for s in scores)]


@dataclass(frozen=True, eq=False)
class Strangers:
    """The victims' rows, and rows of the same distribution that are in no local data.

    Attributes
    ----------
    rows : Table
        Rows of the victims, or a sample of them.
    reserve : Table
        Rows that no party has, or a sample of them.
    schema : Schema
        Columns of the table.
    streams : Streams
        Source of the draws of the two tests.
    """

    rows: Table
    reserve: Table
    schema: Schema
    streams: Streams


@register.metric("specificity")
class SpecificityMetric(Metric[Strangers]):
    """Test whether a guess is closer to the victims' rows than to fresh rows of the distribution.

    ``specificity_z`` compares the reconstruction accuracy on the victims' rows with that on fresh
    samples, and ``nearest_row`` is the share of guessed rows whose nearest neighbour is a victim's
    row (Gorgé et al. 2026, App. D). ``leak_cdf`` is the probability that the accuracy on a fresh
    sample is at least as high, from a normal approximation. 0.5 means no specific information. The
    test needs a reserve of fresh rows, which exists for tables of 5,000 rows or more.
    """

    of: ClassVar[type[Claim]] = Records
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("specificity_z", "specificity", "z", inf, "person", decimals=2),
        Measure("leak_cdf", "chance of fresh rows as close", "share", 0.0, "person"),
        Measure("nearest_row", "guesses nearer to victims than to fresh rows", klass="person"),
    )  # fmt: skip

    def truth(self, case: Case) -> Strangers | None:
        """Return victims' and reserve rows.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        Strangers or None
            None if either is missing, or if the threat model declares columns of the victims known,
            which would bring a guess closer to the victims' rows only.
        """
        rows = case.victims_rows
        if rows is None or case.reserve is None or case.known_columns is not None:
            return None  # known columns would bring a guess closer to the victims' rows only
        reserve = _scored_sample(case.reserve, case)
        return Strangers(_scored_sample(rows, case), reserve, case.schema, case.streams)

    def score(self, claims: Sequence[Records], truth: Strangers) -> list[Score]:
        """Compute the three scores.

        Parameters
        ----------
        claims : sequence of Records
            The claim of one guess.
        truth : Strangers
            Result of `truth`.

        Returns
        -------
        list of Score
            Empty if no row is guessed.
        """
        guess, rng = claims[0].table, truth.streams.child("scores").rng("reserve")
        if not len(guess):
            return []
        # Both tests use one stream in this order, so that results are reproducible.
        test = specificity(guess, truth.rows, truth.reserve, truth.schema, rng)
        nearest = nearest_row(guess, truth.rows, truth.reserve, truth.schema, rng)
        return [
            Score("specificity_z", test.z),
            Score("leak_cdf", test.tail),
            Score("nearest_row", nearest),
        ]

    def line(self, case: Case, truth: Strangers, measured: Mapping[str, float]) -> dict[str, float]:
        """Return chance level for ``leak_cdf`` and ``nearest_row``.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.
        truth : Strangers
            Result of `truth`.
        measured : mapping of str to float
            Baselines that were measured before training for this federation and threat model.

        Returns
        -------
        dict of str to float
            0.5 for both scores, by key.
        """
        return {"leak_cdf": 0.5, "nearest_row": 0.5}


@dataclass(frozen=True, eq=False)
class BinnedVictims:
    """Rows of every victim, and the bins of the training.

    Attributes
    ----------
    rows_by_victim : dict of str to Table
        Complete rows of each victim.
    cuts : Cuts
        Cut points that all parties used.
    """

    rows_by_victim: dict[str, Table]
    cuts: Cuts


@register.metric("returned-rows")
class ReturnedRowsMetric(Metric[BinnedVictims]):
    """Share of the victims' rows that an attack returns as certain, correct in all bins.

    Only claims with a confidence are scored. ``returned_right`` is the share of the victims' rows
    that were returned with the right bin in every column and the right label, ``returned_owned``
    also with the right owner, and ``returned_wrong`` is the share of returned rows that match no
    row. The blind baseline is the best single sample of the blind adversary.
    """

    of: ClassVar[type[Claim]] = Records
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("returned_right", "rows returned, right in every bin", "share of rows",
                klass="person", slot="certain", short="returned rows right",
                head="certain rows", counted_by="rows", severity=20,
                phrase="reconstruct {} with certainty, right in every bin",
                explained="Rows that the attack itself marks as certain, each in the right bin of "
                "every column. A bin can be wider than the tolerance of a reconstructed row, so "
                "that this number can be the larger one.",
                covered_by=("exact_rows",)),
        Measure("returned_owned", "rows returned with their owner", "share of rows",
                klass="person"),
        Measure("returned_wrong", "returned rows that are wrong", "share of returned", 0.0,
                "person"),
        Measure("returned_rows", "rows returned", "rows", None, "meta"),
    )  # fmt: skip

    def truth(self, case: Case) -> BinnedVictims | None:
        """Return the victims' rows and the cut points.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        BinnedVictims or None
            None if no common cut points were announced or no victim has complete rows.
        """
        cuts, tables = case.cuts, case.complete
        return None if cuts is None or not tables else BinnedVictims(tables, cuts)

    def counted(self, truth: BinnedVictims) -> int:
        """Return the number of the victims' rows.

        Parameters
        ----------
        truth : BinnedVictims
            Result of `truth`.

        Returns
        -------
        int
            Number of rows of all victims.
        """
        return sum(map(len, truth.rows_by_victim.values()))

    def score(self, claims: Sequence[Records], truth: BinnedVictims) -> list[Score]:
        """Compute the scores of rows with a confidence.

        Parameters
        ----------
        claims : sequence of Records
            The claim of one guess.
        truth : BinnedVictims
            Result of `truth`.

        Returns
        -------
        list of Score
            Empty if the claim has no confidence.
        """
        claim = claims[0]
        if claim.confidence is None:
            return []
        result = score_returned_rows(claim.table, truth.rows_by_victim, truth.cuts, claim.owner)
        return [Score(key, value) for key, value in result.items()]

    def line(
        self, case: Case, truth: BinnedVictims, measured: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the scores of the best single sample of the blind adversary.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.
        truth : BinnedVictims
            Result of `truth`.
        measured : mapping of str to float
            Baselines that were measured before training for this federation and threat model.

        Returns
        -------
        dict of str to float
            Baselines by key. A random owner is right with a probability of one over the number of
            victims.
        """
        rng = case.streams.child("blind").rng("returned-rows")
        guesses = case.blind_rows(row_budget(self.counted(truth)), rng, draws=1)
        scored = [
            score_returned_rows(g, truth.rows_by_victim, truth.cuts) for g in guesses.values()
        ]
        best = max(scored, key=lambda s: s["returned_right"])
        baseline = {key: best[key] for key in ("returned_right", "returned_wrong")}
        # A random owner is right with a probability of one over the number of victims.
        baseline["returned_owned"] = best["returned_right"] / len(truth.rows_by_victim)
        return {name: value for name, value in baseline.items() if value is not None}


@dataclass(frozen=True, eq=False)
class Everybody:
    """Local data of all parties with complete rows, and the number of such rows of principals.

    Attributes
    ----------
    local_data : dict of str to LocalData
        Data of each party with complete rows.
    n_local_rows : int
        Number of these rows that belong to the principals.
    case : Case
        Facts about the training.
    """

    local_data: dict[str, LocalData]
    n_local_rows: int
    case: Case


@register.metric("every-record")
class EveryRecordMetric(Metric[Everybody]):
    """Reconstruction accuracy over the rows of all parties, comparable with published figures.

    Di Gennaro et al. (2025) score the rows in this way. ``ra_union`` is computed if the claim names
    no owners. The local rows of the adversary are among the scored ones. The blind adversary knows
    these and guesses the remaining rows. ``ra_owner`` is computed if rows have owners. It is the
    accuracy on the rows of the largest claimed owner, with a blind baseline for the same rows.
    ``ra_union_top`` and ``ra_owner_top`` are the same shares over the named columns of the data set
    and the label (Tables 5, 7 and 9). Rows are matched anew on these columns, as the authors do.

    Shares are taken over the columns of the table. If no column is categorical, the published
    figures contain an additional column that is always correct
    (`fedtrees.benchmarks.papers.timberstrike`).
    """

    of: ClassVar[type[Claim]] = EveryRecord
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("ra_union", "reconstruction accuracy over all rows", "share of cells"),
        Measure("ra_owner", "reconstruction accuracy of the largest owner", "share of cells"),
        Measure("ra_union_top", "reconstruction accuracy over all rows, named columns",
                "share of cells"),
        Measure("ra_owner_top", "reconstruction accuracy of the largest owner, named columns",
                "share of cells"),
    )  # fmt: skip

    def truth(self, case: Case) -> Everybody | None:
        """Return the local data with complete rows.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        Everybody or None
            None if no victim has complete rows.
        """
        if case.victims_rows is None:
            return None
        # A party without labels, for example a client without rows, has no rows to score.
        complete = {n: h for n, h in case.local_data.items() if h.covers(case.schema)}
        adversary_count = sum(len(h) for n, h in complete.items() if n in case.principals)
        return Everybody(complete, adversary_count, case)

    def refuses(self, claims: Sequence[EveryRecord], case: Case) -> str | None:
        """Return why guessed rows do not fit the schema.

        Parameters
        ----------
        claims : sequence of EveryRecord
            The claim of one guess.
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        str or None
            Result of `unscorable`.
        """
        return unscorable(claims, case)

    def score(self, claims: Sequence[EveryRecord], truth: Everybody) -> list[Score]:
        """Compute the accuracy over the rows of all parties, or over those of one owner.

        Parameters
        ----------
        claims : sequence of EveryRecord
            The claim of one guess.
        truth : Everybody
            Result of `truth`.

        Returns
        -------
        list of Score
            ``ra_union`` for a claim without owners, otherwise ``ra_owner``, each also over the
            named columns. Empty if no claimed owner is a party.
        """
        claim, schema = claims[0], truth.case.schema
        if claim.owner is None:
            # The adversary knows its local rows. They are scored like reconstructed rows.
            case = truth.case
            adversary_first = sorted(truth.local_data, key=lambda n: n not in case.principals)
            everyone = Table.concat([truth.local_data[n].table for n in adversary_first])
            n_rows = len(everyone)
            result = score_records(
                claim.table, _scored_sample(everyone, case), schema, case.top, limit=n_rows
            )
            return [
                Score(f"ra_union{ending}", value) for ending, value in _accuracies(result).items()
            ]
        # Sort, so that a tie between owners is resolved by name.
        named = sorted(set(claim.owner) & set(truth.local_data))
        if not named:
            return []
        name = max(named, key=lambda n: len(truth.local_data[n]))
        rows = claim.table.take(np.array(claim.owner) == name)
        owner_table = truth.local_data[name].table
        rng, n = truth.case.streams.child("blind").rng("owners"), row_budget(len(owner_table))
        guesses = truth.case.blind_rows(n, rng)
        guessed_rows = take_evenly(rows, n) if n < len(owner_table) else rows
        sample = _scored_sample(owner_table, truth.case)
        top = truth.case.top
        blind = [
            _accuracies(score_records(g, sample, schema, top, limit=n)) for g in guesses.values()
        ]
        measured = _accuracies(score_records(guessed_rows, sample, schema, top, limit=n))
        return [
            Score(f"ra_owner{ending}", value, blind=max(scores[ending] for scores in blind))
            for ending, value in measured.items()
        ]

    def line(self, case: Case, truth: Everybody, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the blind baselines of both union scores, from those of ``ra`` and ``ra_top``.

        The rows of the principals are known, and the blind accuracy applies to the remaining rows.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.
        truth : Everybody
            Result of `truth`.
        measured : mapping of str to float
            Baselines that were measured before training for this federation and threat model.

        Returns
        -------
        dict of str to float
            Baselines by key.
        """
        # The rows of the principals are correct, and the remaining rows have the blind accuracy.
        share = truth.n_local_rows / sum(map(len, truth.local_data.values()))
        return {
            f"ra_union{ending}": share + (1 - share) * measured[f"ra{ending}"]
            for ending in ("", "_top")
            if f"ra{ending}" in measured
        }


def _accuracies(scores: RecordScores) -> dict[str, float]:
    """Return the reconstruction accuracies by the ending of their key."""
    return {"": scores.ra} | ({} if scores.ra_top is None else {"_top": scores.ra_top})
