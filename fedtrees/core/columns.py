"""Measures: the keys of ``rows.csv``, each with its unit, direction, class and wording."""

import csv
import io
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from fedtrees.core.errors import UsageError
from fedtrees.core.registry import register
from fedtrees.core.rows import COLUMNS

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
    beside : tuple of str
        Keys that express the same leak more plainly. If one of them leaks, this one is not
        reported.
    severity : int
        Rank in verdicts. The smallest number comes first.
    required : bool
        Whether a recipe counts as untested if it lacks this measure and the undefended run has it.
    margin : float
        Factor of the margin of states (`fedtrees.report.states.MARGIN`). It is 2 for an AUC: its
        baseline is 0.5, so that an advantage is twice the difference of two AUCs.
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
    beside: tuple[str, ...] = ()
    severity: int = LAST
    required: bool = False
    margin: float = 1.0

    def __post_init__(self) -> None:
        if ":" in self.key or not self.key:
            raise UsageError(f"measure {self.key!r}: a key is a word; what it is of is a part")
        for name in ("short", "head"):
            object.__setattr__(self, name, getattr(self, name) or self.name)

    @property
    def better(self) -> Literal["higher", "lower", ""]:
        """Better direction for an adversary or a model: "higher", "lower", or "" for neither."""
        return "" if self.best is None else "higher" if self.best else "lower"

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
RAREST = Measure("rarest", "held-out rows of the rarest class", "rows", None, "cost")
APPLIES = Measure("applies", "whether an attack applies", "0 or 1", None, "meta")
BYTES_UP = Measure("bytes_up", "bytes up", "bytes", 0.0, "cost", "message type")
BYTES_DOWN = Measure("bytes_down", "bytes down", "bytes", 0.0, "cost", "message type")
CPU = Measure("cpu_seconds", "processor time", "seconds", 0.0, "cost")
CIPHERTEXTS = Measure("ciphertexts", "ciphertexts sent", "ciphertexts", 0.0, "cost")
OPERATIONS = Measure("operations", "operations of cryptography", "operations", 0.0, "cost",
                     "operation")  # fmt: skip
DETECTION = Measure(
    "detection", "an honest party refused to go on", "0 or 1", None, "meta", "what it said"
)
NOTE = Measure("note", "what an attack notes", "", None, "diagnostic", "note")
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
    Measure("queries", "rows that an attack asked for", "rows", None, "cost"),
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
    """Return the measure of a key. A key of a plug-in that is not loaded is its name."""
    return measures().get(key) or _read.get(key) or Measure(key, key, decimals=2)


def described() -> str:
    """Return ``columns.csv``: the meaning of each column of ``rows.csv``, and of each key."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["column", "metric", "meaning", *(f.name for f in _DESCRIBED)])
    writer.writerows([c.name, "", c.meaning] for c in COLUMNS)
    for m in measures().values():
        writer.writerow(["metric", m.key, m.name, *(_text(getattr(m, f.name)) for f in _DESCRIBED)])
    return out.getvalue()


def _text(value: Any) -> str:
    """Return the text of a field."""
    if isinstance(value, tuple):
        return " ".join(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
