"""The rows that a submission may contain: what is left out, and which rows are refused.

A bundle of a stranger is refused if it has a row that `fedtrees.report.submissions.write` cannot
have written: another stage or status, numbers that are not finite or beyond the best possible, a
unit or class that is not the one of the metric, costs of the machine, or an advantage that does not
follow from its score.
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
#: Costs that a bundle contains although they depend on the machine.
KEPT_COSTS = {"bytes", CPU.key, RAREST.key}
_STATUSES = ("ok", "failed", "timeout", "skipped", "no-claim")
_LEAKS = {"person", "guess", "group"}  # classes of measures that a score may replace by another
# Written in the rows of trainings only.
_OF_TRAININGS = ("claimed", "spent", "bytes_up", "bytes_down", "rounds")


def is_shared(row: Mapping[str, str]) -> bool:
    """Return whether bundles contain a row: a result, a kept cost, or a search cut short."""
    stopped = row["part"] == STOPPED_EARLY
    return rows.is_result(row) or row["metric"] in KEPT_COSTS or stopped


def shared(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row without times of the machine and texts of errors, which may name files."""
    left_out = ["seconds"]
    if row["stage"] not in ("train", "cheated"):
        left_out += _OF_TRAININGS
    if row["reason_code"]:  # the sentence follows from the code
        left_out.append("reason")
    if row["status"] in ("failed", "timeout"):
        left_out += ["reason", "reason_args"]
    return {**row, **dict.fromkeys(left_out, "")}


def check_rows(where: str, text: str, records: Sequence[Mapping[str, str]]) -> None:
    """Raise `StoreError` unless `write` can have written every row of a bundle.

    The text has to be the one that a CSV writer makes of its records. Otherwise two readers of the
    same text may see different rows.

    Parameters
    ----------
    where : str
        Folder of the bundle, for the message.
    text : str
        Content of its ``rows.csv``.
    records : sequence of mapping
        The same as the `csv` module reads it.
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
    """Yield why `write` cannot have written a record."""
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
    """Yield what contradicts the definition of a record's metric."""
    key, stated = record["metric"], record["measure_class"]
    if not key:
        return
    if key not in measures():
        yield f"measures {short(key)!r}, which no installed metric measures"
        return
    what = measure(key)
    if record["unit"] not in ("", what.unit):
        yield f"has {key} in {short(record['unit'])!r}; it is measured in {what.unit!r}"
    if stated not in ("", what.klass) and not {stated, what.klass} <= _LEAKS:
        yield f"has {key} of the class {short(stated)!r}; it is of the class {what.klass!r}"
    for name in ("value", "blind", "population"):
        text = record[name]
        if text and what.best is not None and math.isfinite(what.best):
            beyond = (float(text) - what.best) * what.sign
            if beyond > 1e-9:
                yield f"has a {name} of {text} in {key}, beyond the best possible, {what.best:g}"


def check_advantages(where: str, frame: pd.DataFrame) -> None:
    """Raise `StoreError` if an advantage does not follow from its score and its baseline.

    `where`: Folder of the bundle. `frame`: Its rows as `load_rows` returns them.
    """
    scored = frame[(frame["stage"] == "attack") & frame["value"].notna()]
    for line, gain in (("blind", "advantage"), ("population", "beyond")):
        columns = (scored[c] for c in ("metric", "value", line, gain))
        for metric, value, low, stated in zip(*columns, strict=True):
            computed = None if math.isnan(low) else advantage(value, low, best=measure(metric).best)
            right = math.nan if computed is None else computed
            close = math.isclose(right, stated, rel_tol=1e-6, abs_tol=1e-6)
            if not (close or (math.isnan(right) and math.isnan(stated))):
                raise StoreError(
                    f"{where} is refused: {gain} {stated:g} in {metric} does not follow from "
                    f"a score of {value:g} and a {line} one of {low:g}; it is {right:g}"
                )
