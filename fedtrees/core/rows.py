"""The columns of ``rows.csv``: what each one holds, how it is written and how it is read."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Guarantee, join, parse

Value = str | float | tuple[Guarantee, ...] | None
Kind = Literal["text", "whole", "number", "guarantee"]
# Larger whole numbers do not survive being read as a float.
MOST_WHOLE = 2**53 - 1
POPULATION = "population:"  # scores of a blind cell: of who knows other rows of the population
#: References of who holds labels and trains with nobody else (`Protocol.alone`): rows, or columns.
LOCAL_ONLY, ACTIVE_ONLY = ALONE = ("local-only", "active-only")


@dataclass(frozen=True)
class Column:
    """One column.

    `kind`: ``text``; ``whole``, a whole number that every row has; ``number``, NaN where there is
    none; ``guarantee``, a sequence of `Guarantee`, None where nothing is stated. `later`: Runs of
    before do not have it.
    """

    name: str
    kind: Kind = "text"
    later: bool = False

    def plain(self, value: Any) -> str | int | float | None:
        """Return a value as a plain JSON type, None for a number that is not there.

        Raises `UsageError` if the column holds something else.
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
        raise UsageError(f"a row's {self.name!r} is {value!r}; that column holds a {self.kind}")

    def read(self, text: str) -> Value:
        """Return the value that stands in a file.

        Raises `UsageError` if the text is not of the column's kind.
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


#: What a spreadsheet takes for the beginning of a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

COLUMNS = (
    Column("run"), Column("dataset"), Column("partition"), Column("protocol"),
    Column("protocol_params"), Column("defense"), Column("defense_params"), Column("threat"),
    Column("attack"), Column("attack_params"), Column("seed", "whole"), Column("stage"),
    Column("status"), Column("state_code", later=True), Column("reason_code", later=True),
    Column("reason_args", later=True), Column("reason"), Column("blind_guess", later=True),
    Column("metric"), Column("value", "number"),
    Column("unit"), Column("blind", "number"), Column("advantage", "number"),
    Column("population", "number"), Column("beyond", "number"),
    Column("claimed", "guarantee"), Column("spent", "guarantee"), Column("measured", "guarantee"),
    Column("bytes_up", "number"), Column("bytes_down", "number"), Column("rounds", "number"),
    Column("seconds", "number"), Column("version"),
)  # fmt: skip
_BY_NAME = {column.name: column for column in COLUMNS}


def plain(row: Mapping[str, Any]) -> dict[str, str | int | float | None]:
    """Return a row as plain JSON types.

    Raises `UsageError` if it has a column that is not known, or a value of the wrong kind.
    """
    for name in row:
        if name not in _BY_NAME:
            raise UsageError(f"a row has no column {name!r}; it has {', '.join(_BY_NAME)}")
    return {name: _BY_NAME[name].plain(value) for name, value in row.items()}


def write(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return plain rows as CSV, the header first."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(_BY_NAME), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
