"""The keys of ``rows.csv``: unit, direction, class and wording of each, declared once."""

import csv
import io
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from fedtrees.core.errors import UsageError
from fedtrees.core.registry import register
from fedtrees.core.rows import COLUMNS

Klass = Literal["person", "guess", "group", "utility", "cost", "meta", "diagnostic"]
#: What is said of a leak last, and so of plug-ins that do not rank theirs.
LAST = 1000


@dataclass(frozen=True)
class Measure:
    """What a key measures, and how it is said.

    Attributes
    ----------
    key : str
        Its name in the column ``metric``.
    name : str
        In words.
    best : float or None
        Of a perfect guess or model: 1 for a share, 0 for an error, infinity where more is always
        better. None: neither more nor less is, as of a count.
    klass : str
        Whom a leak is about: a ``person``, as a ``guess`` at persons, a ``group``. Else
        ``utility`` of a model, ``cost``, ``meta`` (of the scoring), ``diagnostic`` (of an attack).
    part : str
        What the column ``part`` holds; "" where it is empty.
    slot : str
        Which of the facts about an adversary it can be: ``rows``, ``guess`` or ``certain``.
    short, head : str
        Name in a paper's table, and in plain words over a column; empty: `name`.
    decimals : int or None
        Of the number in a sentence; None: a share, in percent.
    counted_by : str
        Plural noun, where a sentence says how many: ``69 of 379 rows``.
    phrase : str
        What an adversary can do, with ``{}`` for how much. Scores without one are told beside the
        others, and neither in verdicts nor of the population.
    explained : str
        What the phrase means by its words: a sentence below a verdict.
    beside : tuple of str
        Keys that tell the same more plainly: where one of them leaks, this one is not said.
    severity : int
        Its place in verdicts: the least leads.
    required : bool
        Whether a recipe that lacks it, where the undefended run has it, was not tested.
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
        """Which way is better for an adversary, or of a model."""
        return "" if self.best is None else "higher" if self.best else "lower"

    @property
    def sign(self) -> float:
        """1 where more is better, else -1."""
        return -1.0 if self.better == "lower" else 1.0


#: How good a model is on held-out rows; the first that every seed has is shown.
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


# What a run's own file says of a measure, beside its key and name; and what files said.
_DESCRIBED = fields(Measure)[2:]
_read: dict[str, Measure] = {}


def measures() -> dict[str, Measure]:
    """Return every measure by its key: those of the metrics, by name, then `OTHERS`.

    Raises `UsageError` if two are of one key.
    """
    return _measures(tuple(register.names("metric")))


@cache
def _measures(metrics: tuple[str, ...]) -> dict[str, Measure]:
    found: dict[str, Measure] = {}
    owners = [(f"metric {n!r}", register.get("metric", n).measures) for n in metrics]  # type: ignore[attr-defined]
    for owner, mine in (*owners, ("the bench", OTHERS)):
        for m in mine:
            if m.key in found:
                raise UsageError(f"{owner} measures {m.key!r}, as another does; rename it")
            found[m.key] = m
    return found


def read_described(text: str) -> None:
    """Take what ``columns.csv`` of a run says of keys that are of no metric here: of a plugin's."""
    for row in csv.DictReader(io.StringIO(text)):
        if row["metric"]:
            told = {f.name: _of_text(str(f.type), row[f.name]) for f in _DESCRIBED if f.name in row}
            _read[row["metric"]] = Measure(row["metric"], row["meaning"], **told)


def _of_text(kind: str, text: str) -> Any:
    if "tuple" in kind:
        return tuple(text.split())
    if "float" in kind or "int" in kind:
        return None if text == "" else float(text) if "float" in kind else int(text)
    return text == "True" if "bool" in kind else text


def measure(key: str) -> Measure:
    """Return what a key means; of one that is not here, of a file that is not loaded, its name."""
    return measures().get(key) or _read.get(key) or Measure(key, key, decimals=2)


def described() -> str:
    """Return ``columns.csv``: what stands in each column of ``rows.csv``, and what each key is."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["column", "metric", "meaning", *(f.name for f in _DESCRIBED)])
    writer.writerows([c.name, "", c.meaning] for c in COLUMNS)
    for m in measures().values():
        writer.writerow(["metric", m.key, m.name, *(_text(getattr(m, f.name)) for f in _DESCRIBED)])
    return out.getvalue()


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
