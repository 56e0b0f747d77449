"""The format of the results of a run, one measurement per row.

`COLUMNS` describes the columns, and how their values are written and read. `Measure` describes one
key of the column ``metric``: its unit, its direction, the class of the leak, and its wording in
reports. `measures` returns all measures by key, those of metrics included.

A run stores its results in three files (`write_tables`), because most columns repeat long texts.
``rows.csv`` has the measurements. ``contexts.csv`` has one record for each different combination of
the columns that many measurements share, for example the parameters of a training and the privacy
budget that it spent. The column ``context`` joins the two:
``pandas.merge(rows, contexts, on="context")``. ``columns.csv`` describes all columns, and states
unit and class of each key. `fedtrees.report.results.load_rows` returns the complete table.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

import numpy as np

from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Guarantee, join, parse
from fedtrees.core.registry import register

Value = str | float | tuple[Guarantee, ...] | None
Kind = Literal["text", "whole", "number", "guarantee"]
Place = Literal["rows", "contexts", "columns"]
#: Columns of ``rows.csv``. The values of most other columns are equal for many measurements.
IN_ROWS = frozenset({
    "context", "protocol", "defense", "attack", "metric", "part", "value", "n", "error", "certain",
    "blind", "advantage", "population", "beyond", "ceiling", "blind_guess",
})  # fmt: skip
# Larger integers cannot be represented exactly by a float.
MOST_WHOLE = 2**53 - 1
#: Names of the baselines that each label-holding party trains on its local data: its rows
#: (horizontal) or its columns (vertical), see `ProtocolInfo.local_reference`.
LOCAL_ONLY, ACTIVE_ONLY = ALONE = ("local-only", "active-only")


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes
    ----------
    name, meaning : str
        Name of the column, and its description.
    kind : {"text", "whole", "number", "guarantee"}
        ``whole`` is an integer that every row has. A missing ``number`` is NaN. ``guarantee`` is a
        sequence of `Guarantee`, None if nothing is claimed.
    added_after_first_release : bool
        Whether runs of earlier releases lack the column.
    """

    name: str
    meaning: str
    kind: Kind = "text"
    added_after_first_release: bool = False

    @property
    def place(self) -> Place:
        """File that contains its values.

        It is ``columns.csv`` if the value follows from the key of the measure.
        """
        if self.name in ("unit", "measure_class"):
            return "columns"
        return "rows" if self.name in IN_ROWS else "contexts"

    def plain(self, value: Any) -> str | int | float | None:
        """Return a value as a plain JSON type.

        Parameters
        ----------
        value : object
            Value of the column, possibly a numpy scalar.

        Returns
        -------
        str, int, float or None
            None for a missing or infinite number, and an empty text for a missing text.

        Raises
        ------
        UsageError
            If the value is not of the column's kind.
        """
        if value is None or value == "":
            return None if self.kind in ("whole", "number") else ""
        if self.kind in ("whole", "number"):
            if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
                return int(value)
            if isinstance(value, (float, np.floating)) and self.kind == "number":
                return float(value) if math.isfinite(value) else None
        elif isinstance(value, str):
            return value
        elif self.kind == "guarantee" and isinstance(value, (tuple, list)):
            return join(value)
        raise UsageError(
            f"the column {self.name!r} of a row is {value!r}; it must be of the kind {self.kind}"
        )

    def read(self, text: str) -> Value:
        """Convert the text in a file to a value.

        Parameters
        ----------
        text : str
            Content of a cell.

        Returns
        -------
        str, float, tuple of Guarantee, or None
            NaN for a missing number, and None for a missing guarantee.

        Raises
        ------
        UsageError
            If the text is not of the column's kind.
        """
        try:
            if self.kind == "guarantee":
                return parse(text) or None
            if self.kind == "number":
                return float(text) if text else math.nan
            if self.kind == "whole":
                number = float(text)
                if number != int(number) or abs(number) > MOST_WHOLE:
                    raise ValueError
                return number
        except UsageError:
            raise
        except (ValueError, OverflowError):
            rule = "not a whole number" if self.kind == "whole" else "not a number"
            raise UsageError(f"{self.name} is {text!r}, {rule}") from None
        return text


#: First characters of a cell that a spreadsheet interprets as a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

COLUMNS = (
    Column("run", "name of the run folder"),
    Column("dataset", "name of the table"),
    Column("partition", "how rows or columns are distributed over the parties"),
    Column("protocol", "protocol; of a reference, the name of the baseline"),
    Column("protocol_params", "its parameters; of a reference, the protocol with its parameters"),
    Column("defense", "defense, or none for the undefended run"),
    Column("defense_params", "its parameters, separated by ; for the parts of a composition"),
    Column("threat", "the adversary, as on the command line"),
    Column("adversary", "roles of the adversary"),
    Column("access", "its access: messages or the model; queries, collusion, known values"),
    Column("attack", "attack, or blind for the blind baseline"),
    Column("attack_params", "its parameters; of a blind row, the name of one of several guesses"),
    Column("seed", "seed of the federation and of all randomness", "whole"),
    Column("pair_id", "equal for all rows that are scored on the same test rows"),
    Column(
        "stage",
        "train, cheated (by a party), attack, blind, adversary (which attacks apply), reference",
    ),
    Column("status", "ok, failed, timeout, skipped, or no-claim (the attack submitted no guess)"),
    Column(
        "state_code",
        "ok, skip, unfit, limit, failed, timeout, undefined, void, gap, no-claim",
        added_after_first_release=True,
    ),
    Column(
        "reason_code",
        "why there is no value: a code of reasons.csv",
        added_after_first_release=True,
    ),
    Column("reason_args", "arguments of the code, as JSON", added_after_first_release=True),
    Column("reason", "the same reason as a sentence"),
    Column(
        "blind_guess",
        "of a blind row, the name of the guess with the best value",
        added_after_first_release=True,
    ),
    Column("metric", "key of the measured quantity, see below"),
    Column("part", "column, type of message, operation, ... that the value is about"),
    Column("value", "the measurement", "number"),
    Column("unit", "unit of the value"),
    Column(
        "measure_class", "of a leak: person, guess or group; else utility, cost, meta or diagnostic"
    ),
    Column("n", "number of rows or cells that a share refers to", "number"),
    Column("error", "standard error, if only a sample of the rows was scored", "number"),
    Column("certain", "1 if the attack declares its claim as certain, else 0", "number"),
    Column("blind", "score of the same adversary with an empty transcript", "number"),
    Column("advantage", "(value - blind) / (best - blind)", "number"),
    Column("population", "score of the population baseline (from test rows only)", "number"),
    Column("beyond", "(value - population) / (best - population)", "number"),
    Column("ceiling", "score that no attack can exceed", "number"),
    Column("claimed", "guarantee that protocol and defense state", "guarantee"),
    Column("spent", "guarantee that follows from the noise that was drawn", "guarantee"),
    Column(
        "measured",
        "lower bound that an audit measured, and the largest that it could measure",
        "guarantee",
    ),
    Column("bytes_up", "bytes sent to the coordinator during the training", "number"),
    Column("bytes_down", "bytes sent by the coordinator during the training", "number"),
    Column("rounds", "rounds of communication", "number"),
    Column("seconds", "wall-clock seconds of the training or the attack", "number"),
    Column("version", "version of fedtrees"),
)
#: Column of ``rows.csv`` and ``contexts.csv`` that joins them.
CONTEXT = Column("context", "name of a record of contexts.csv")
_BY_NAME = {column.name: column for column in COLUMNS}


def plain(row: Mapping[str, Any]) -> dict[str, str | int | float | None]:
    """Return a row as plain JSON types.

    Parameters
    ----------
    row : mapping of str to object
        Values by the name of the column.

    Returns
    -------
    dict of str to object
        The same values as `Column.plain` returns them.

    Raises
    ------
    UsageError
        If the row has an unknown column, or a value of the wrong kind.
    """
    for name in row:
        if name not in _BY_NAME:
            raise UsageError(f"a row has no column {name!r}; it has {', '.join(_BY_NAME)}")
    return {name: _BY_NAME[name].plain(value) for name, value in row.items()}


def is_result(row: Mapping[str, Any]) -> bool:
    """Return whether a repeated run must reproduce a row.

    Parameters
    ----------
    row : mapping of str to object
        Values by the name of the column.

    Returns
    -------
    bool
        False for costs, diagnostics and rows about a part, which may differ between repetitions.
    """
    return row["measure_class"] not in ("cost", "diagnostic") and not row["part"]


def write(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return plain rows as one table in CSV with a header, as a submission contains it.

    Parameters
    ----------
    rows : iterable of mapping
        Results of `plain`.

    Returns
    -------
    str
        Text with all columns of `COLUMNS`.
    """
    return _write_csv([column.name for column in COLUMNS], rows)


def _write_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the named columns of rows as CSV with a header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write_tables(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the files in which a run stores plain rows, by name.

    A column that belongs to ``columns.csv`` is written to ``rows.csv`` if a value differs from the
    one that its key declares.

    Parameters
    ----------
    rows : iterable of mapping
        Results of `plain`.

    Returns
    -------
    texts : dict of str to str
        The contents of ``contexts.csv``, ``rows.csv`` and ``columns.csv``, in the order in which
        they must be written: every context of a row exists before the row.
    """
    full_rows = [{**dict.fromkeys(_BY_NAME), **row} for row in rows]
    of_keys = {key: (m.unit, m.klass) for key, m in measures().items()} | {"": ("", "")}
    follows = all(
        (row["unit"] or "", row["measure_class"] or "") == of_keys.get(row["metric"] or "")
        for row in full_rows
    )
    in_rows = [
        c.name for c in COLUMNS if c.place == "rows" or (c.place == "columns" and not follows)
    ]
    shared = [c.name for c in COLUMNS if c.place == "contexts"]
    keys = [tuple(row[name] for name in shared) for row in full_rows]
    names = _name_contexts(dict.fromkeys(keys))
    contexts = [{"context": names[key], **dict(zip(shared, key, strict=True))} for key in names]
    for row, key in zip(full_rows, keys, strict=True):
        row["context"] = names[key]
    return {
        "contexts.csv": _write_csv(["context", *shared], contexts),
        "rows.csv": _write_csv(["context", *in_rows], full_rows),
        "columns.csv": described(),
    }


def _name_contexts(contexts: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], str]:
    """Return a short name for each context.

    The name is a digest of the values, so that a record of ``rows.csv`` never refers to another
    context of an older ``contexts.csv``. It has letters only, because programs that guess the types
    of columns take some digests for numbers.
    """
    letters = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
    digests = {
        context: hashlib.sha256(repr(context).encode()).hexdigest().translate(letters)
        for context in contexts
    }
    length = 6
    while len({digest[:length] for digest in digests.values()}) < len(digests):
        length += 1
    return {context: digest[:length] for context, digest in digests.items()}


Klass = Literal["person", "guess", "group", "utility", "cost", "meta", "diagnostic"]
#: Severity of measures that declare none, for example those of plug-ins. They are reported last.
LAST = 1000


@dataclass(frozen=True)
class Measure:
    """Meaning of one key of ``rows.csv``, and its wording in reports.

    Attributes
    ----------
    key : str
        Value of the column ``metric``.
    name : str
        Name in words.
    unit : str
        Unit of the value.
    best : float or None
        Value of a perfect guess or model: 1 for a share, 0 for an error, infinity if a higher value
        is always better. None if no direction is better, for example for a count.
    klass : str
        For a leak, the subject of the leaked information: a ``person``, a ``guess`` about persons,
        or a ``group``. Other measures are the ``utility`` of a model, a ``cost``, ``meta`` (about
        the scoring) or ``diagnostic`` (about an attack).
    part : str
        Meaning of the column ``part``, "" if it is empty.
    slot : str
        Fact about an adversary that the measure can supply: ``rows``, ``guess`` or ``certain``.
    short, head : str
        Name in the table of a paper, and in plain words as a column heading. Empty: `name`.
    decimals : int or None
        Decimal places in a sentence. None for a share, which is written as a percentage.
    counted_by : str
        Plural noun for sentences with a count, for example ``69 of 379 rows``.
    phrase : str
        Ability of an adversary, with ``{}`` for the quantity. Measures without a phrase are
        reported next to the remaining scores, but neither in verdicts nor in sentences about the
        population.
    explained : str
        Explanation of the phrase: a sentence below a verdict.
    covered_by : tuple of str
        Keys that express the same leak more plainly. If one of them leaks, this one is not
        reported.
    severity : int
        Rank in verdicts. The smallest number comes first.
    required : bool
        Whether a recipe counts as untested if it lacks this measure and the undefended run has it.
    margin : float
        Factor of the margin of states (`fedtrees.report.leakage.MARGIN`). It is 2 for an AUC: its
        baseline is 0.5, so that an advantage is twice the difference of two AUCs.

    Examples
    --------
    >>> from fedtrees import Measure
    >>> Measure("column_means", "mean error of the column means", best=0.0, klass="group").best
    0.0
    """

    key: str
    name: str
    unit: str = "share"
    best: float | None = 1.0
    klass: Klass = "guess"
    part: str = ""
    slot: Literal["rows", "guess", "certain", ""] = ""
    short: str = ""
    head: str = ""
    decimals: int | None = None
    counted_by: str = ""
    phrase: str = ""
    explained: str = ""
    covered_by: tuple[str, ...] = ()
    severity: int = LAST
    required: bool = False
    margin: float = 1.0

    def __post_init__(self) -> None:
        if ":" in self.key or not self.key:
            raise UsageError(
                f"measure {self.key!r}: a key is one word; name the column or type in `part`"
            )
        for name in ("short", "head"):
            object.__setattr__(self, name, getattr(self, name) or self.name)

    @property
    def better(self) -> Literal["higher", "lower", ""]:
        """Better direction for an adversary or a model: "higher", "lower", or "" for neither."""
        return "" if self.best is None else "higher" if self.best else "lower"

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest possible value, infinite if it is not bounded.

        A share and an AUC are between 0 and 1, an error is at least 0, and no value exceeds a
        perfect one. Nothing is known about a measure without a unit.
        """
        within_one = self.unit == "AUC" or self.unit.startswith("share")
        low = 0.0 if self.best == 0 or within_one else -math.inf
        return low, 1.0 if self.best == 1 and self.unit else math.inf

    @property
    def sign(self) -> float:
        """Sign of an improvement: -1 if a lower value is better, else 1."""
        return -1.0 if self.better == "lower" else 1.0


#: Quality of a model on test rows. Reports show the first measure that every seed has.
UTILITY = (
    Measure("auc", "AUC", "AUC", klass="utility", decimals=3),
    Measure("log_loss", "log-loss", "nats", 0.0, "utility", decimals=3),
    Measure("r2", "R²", "ratio", klass="utility", decimals=3),
    Measure("rmse", "RMSE", "units of the target", 0.0, "utility", decimals=3),
    Measure("accuracy", "accuracy", "share of rows", klass="utility", decimals=3),
    Measure("f1", "F1", klass="utility", decimals=3),
)
RAREST = Measure("rarest", "test rows of the rarest class", "rows", None, "cost")
APPLIES = Measure("applies", "whether an attack applies", "0 or 1", None, "meta")
BYTES_UP = Measure("bytes_up", "bytes up", "bytes", 0.0, "cost", "message type")
BYTES_DOWN = Measure("bytes_down", "bytes down", "bytes", 0.0, "cost", "message type")
CPU = Measure("cpu_seconds", "processor time", "seconds", 0.0, "cost")
CIPHERTEXTS = Measure("ciphertexts", "ciphertexts sent", "ciphertexts", 0.0, "cost")
OPERATIONS = Measure("operations", "operations of cryptography", "operations", 0.0, "cost",
                     "operation")  # fmt: skip
DETECTION = Measure(
    "detection", "an honest party refused to continue", "0 or 1", None, "meta", "error message"
)
NOTE = Measure("note", "diagnostics of an attack", "", None, "diagnostic", "note")
#: Keys that no metric declares.
OTHERS = (
    *UTILITY, RAREST, APPLIES, BYTES_UP, BYTES_DOWN, CPU, CIPHERTEXTS, OPERATIONS, NOTE, DETECTION,
    Measure("bytes", "bytes in both directions", "bytes", 0.0, "cost"),
    Measure("cpu_seconds_of", "processor time of an operation", "seconds", 0.0, "cost",
            "operation"),
    Measure("ciphertexts_of", "ciphertexts sent in a type of message", "ciphertexts", 0.0, "cost",
            "message type"),
    Measure("operations_of", "operations of one party", "operations", 0.0, "cost",
            "operation by party"),
    Measure("queries", "rows that an attack requested", "rows", None, "cost"),
    Measure("query_batches", "requests of an attack", "requests", None, "cost"),
)  # fmt: skip


# Fields of a measure in ``columns.csv``, after key and name.
_DESCRIBED = fields(Measure)[2:]
_read: dict[str, Measure] = {}


def measures() -> dict[str, Measure]:
    """Return every measure by its key: those of the metrics in order of their names, then `OTHERS`.

    Raises
    ------
    UsageError
        If two measures have the same key.
    """
    return _measures(tuple(register.names("metric")))


@cache
def _measures(metrics: tuple[str, ...]) -> dict[str, Measure]:
    """Return every measure by its key. The names of the metrics are the key of the cache."""
    by_key: dict[str, Measure] = {}
    owners = [(f"metric {n!r}", register.get("metric", n).measures) for n in metrics]  # type: ignore[attr-defined]
    for owner, declared in (*owners, ("the bench", OTHERS)):
        for m in declared:
            if m.key in by_key:
                raise UsageError(f"{owner} measures {m.key!r}, as another does; rename it")
            by_key[m.key] = m
    return by_key


def read_described(text: str) -> None:
    """Read the measures of a run's ``columns.csv``.

    They are used for the keys of plug-ins that no loaded metric declares.

    Parameters
    ----------
    text : str
        Content of the file.
    """
    for row in csv.DictReader(io.StringIO(text)):
        if row["metric"]:
            described_fields = {
                f.name: _of_text(str(f.type), row[f.name]) for f in _DESCRIBED if f.name in row
            }
            _read[row["metric"]] = Measure(row["metric"], row["meaning"], **described_fields)


def _of_text(kind: str, text: str) -> Any:
    """Convert the text of a field to its declared type."""
    if "tuple" in kind:
        return tuple(text.split())
    if "float" in kind or "int" in kind:
        return None if text == "" else float(text) if "float" in kind else int(text)
    return text == "True" if "bool" in kind else text


def measure(key: str) -> Measure:
    """Return the measure of a key.

    Parameters
    ----------
    key : str
        Value of the column ``metric``, for example ``ra``.

    Returns
    -------
    Measure
        Declaration of a loaded metric, or of the run that was read last. A key that neither
        declares is displayed by its name.
    """
    return measures().get(key) or _read.get(key) or Measure(key, key, unit="", decimals=2)


def described() -> str:
    """Return ``columns.csv``: the meaning of each column of the results, and of each key."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["column", "metric", "meaning", *(f.name for f in _DESCRIBED)])
    writer.writerows([c.name, "", c.meaning] for c in (CONTEXT, *COLUMNS))
    for m in measures().values():
        writer.writerow(["metric", m.key, m.name, *(_text(getattr(m, f.name)) for f in _DESCRIBED)])
    return out.getvalue()


def _text(value: Any) -> str:
    """Return the text of a field."""
    if isinstance(value, tuple):
        return " ".join(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
