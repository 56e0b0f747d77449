"""Define the rows that a submission contains, and refuse bundles with other rows.

A bundle is refused if it has a row that `fedtrees.report.submissions.write` cannot have written.
Examples are an unknown stage or status, a number that is not finite or exceeds the best possible
one, a unit or class that differs from that of the metric, a cost of the machine, or an advantage
that does not follow from its score.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from fedtrees.core import rows
from fedtrees.core.columns import CPU, RAREST, measure, measures
from fedtrees.core.errors import FedtreesError, StoreError, short
from fedtrees.core.threat import Threat
from fedtrees.metrics.advantage import advantage
from fedtrees.report.coverage import STOPPED_EARLY

STAGES = ("train", "cheated", "adversary", "attack", "blind", "reference")
#: Costs that a bundle contains although they depend on the machine or the data.
KEPT_COSTS = {"bytes", CPU.key, RAREST.key}
_STATUSES = ("ok", "failed", "timeout", "skipped", "no-claim")
# Classes of leaks. A row may state another class of leak than its metric.
_LEAKS = {"person", "guess", "group"}
# These columns are filled in rows of trainings only.
_OF_TRAININGS = ("claimed", "spent", "bytes_up", "bytes_down", "rounds")


def is_shared(row: Mapping[str, str]) -> bool:
    """Return whether bundles contain a row.

    They contain results, some costs (`KEPT_COSTS`), and the note that a search reached its limit.
    """
    stopped = row["part"] == STOPPED_EARLY
    return rows.is_result(row) or row["metric"] in KEPT_COSTS or stopped


def shared(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row without times of the machine and without texts of errors.

    Such texts can contain names of files.
    """
    left_out = ["seconds"]
    if row["stage"] not in ("train", "cheated"):
        left_out += _OF_TRAININGS
    # The sentence can be built from the code.
    if row["reason_code"]:
        left_out.append("reason")
    if row["status"] in ("failed", "timeout"):
        left_out += ["reason", "reason_args"]
    return {**row, **dict.fromkeys(left_out, "")}


def check_rows(where: str, text: str, records: Sequence[Mapping[str, str]]) -> None:
    """Raise `StoreError` unless `write` can have written every row of a bundle.

    The text must equal the output of a CSV writer for its records. Otherwise, two programs that
    read the same text may see different rows.

    Parameters
    ----------
    where : str
        Folder of the bundle, for the message.
    text : str
        Content of its ``rows.csv``.
    records : sequence of mapping
        The same rows as the `csv` module reads them.
    """
    names, header = [c.name for c in rows.COLUMNS], list(records[0]) if records else []
    unknown = [name for name in header if name not in names]
    if not records or unknown:
        shown = f"unknown columns {short(unknown)}" if unknown else "no rows"
        raise StoreError(f"{where} is refused: rows.csv has {shown}")
    out = io.StringIO()
    writer = csv.DictWriter(out, header, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(records)
    if out.getvalue() != text:
        raise StoreError(f"{where} is refused: rows.csv is not as fedtrees writes it; submit again")
    for at, record in enumerate(records, 1):
        for problem in _problems(record):
            raise StoreError(f"{where} is refused: record {at} of rows.csv {problem}")


def _problems(record: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons why `write` cannot have written a record."""
    for column in rows.COLUMNS:
        text = record.get(column.name, "")
        if not text.isprintable():
            yield f"has {column.name}={short(text)!r}, with characters that cannot be printed"
        if column.kind in ("number", "whole") and text and not math.isfinite(float(text)):
            yield f"has {column.name}={text}; give a finite number, or leave it empty"
    for name, allowed in (("stage", STAGES), ("status", _STATUSES)):
        if record[name] not in allowed:
            yield f"has {name}={short(record[name])!r}; known: {', '.join(allowed)}"
    yield from _problems_of_metric(record)
    if not is_shared(record):
        yield f"is a cost or detail ({short(record['metric'])}) that fedtrees submit leaves out"
    cleared = shared(record)
    for name in (name for name in cleared if cleared[name] != record.get(name, "")):
        yield f"has {name}={short(record[name])!r}, which fedtrees submit leaves empty there"
    if record["threat"] and record["stage"] != "cheated":
        try:
            threat = Threat.parse(record["threat"])
        except FedtreesError as err:
            yield f"has a threat that cannot be read: {short(err, 200)}"
            return
        for name in ("adversary", "access"):
            if record[name] not in ("", getattr(threat, name)):
                yield f"has {name}={short(record[name])!r}, and its threat is {threat}"


def _problems_of_metric(record: Mapping[str, str]) -> Iterator[str]:
    """Yield the contradictions between a record and the definition of its metric."""
    key, klass = record["metric"], record["measure_class"]
    if not key:
        return
    if key not in measures():
        yield f"measures {short(key)!r}, which no installed metric measures"
        return
    spec = measure(key)
    if record["unit"] not in ("", spec.unit):
        yield f"has {key} in {short(record['unit'])!r}; it is measured in {spec.unit!r}"
    if klass not in ("", spec.klass) and not {klass, spec.klass} <= _LEAKS:
        yield f"has {key} of the class {short(klass)!r}; it is of the class {spec.klass!r}"
    for name in ("value", "blind", "population"):
        text = record[name]
        if text and spec.best is not None and math.isfinite(spec.best):
            # For a loss, smaller values are better, and the sign is negative.
            beyond = (float(text) - spec.best) * spec.sign
            if beyond > 1e-9:
                yield f"has a {name} of {text} in {key}, beyond the best possible, {spec.best:g}"


def check_advantages(where: str, frame: pd.DataFrame) -> None:
    """Raise `StoreError` if an advantage does not follow from its score and its baseline.

    `where` is the folder of the bundle, and `frame` contains its rows as `load_rows` returns them.
    """
    scored = frame[(frame["stage"] == "attack") & frame["value"].notna()]
    for baseline, gain in (("blind", "advantage"), ("population", "beyond")):
        columns = (scored[c] for c in ("metric", "value", baseline, gain))
        for metric, value, low, stated_gain in zip(*columns, strict=True):
            computed = None if math.isnan(low) else advantage(value, low, best=measure(metric).best)
            expected = math.nan if computed is None else computed
            close = math.isclose(expected, stated_gain, rel_tol=1e-6, abs_tol=1e-6)
            if not (close or (math.isnan(expected) and math.isnan(stated_gain))):
                raise StoreError(
                    f"{where} is refused: {gain} {stated_gain:g} in {metric} does not follow from "
                    f"a score of {value:g} and a {baseline} one of {low:g}; it is {expected:g}"
                )
