"""Columns of ``rows.csv``: their meaning, and how their values are written and read.

`fedtrees.core.columns` describes the keys in the column ``metric``.
"""

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
# Larger integers cannot be represented exactly by a float.
MOST_WHOLE = 2**53 - 1
#: Names of the baselines that each label-holding party trains on its local data: its rows
#: (horizontal) or its columns (vertical), see `Protocol.alone`.
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
    later : bool
        Whether runs of earlier releases lack the column.
    """

    name: str
    meaning: str
    kind: Kind = "text"
    later: bool = False

    def plain(self, value: Any) -> str | int | float | None:
        """Return a value as a plain JSON type, None for a missing number.

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
        raise UsageError(f"a row's {self.name!r} is {value!r}; that column holds a {self.kind}")

    def read(self, text: str) -> Value:
        """Convert the text in a file to a value.

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
    Column("run", "folder of the run"),
    Column("dataset", "table"),
    Column("partition", "how its rows or columns are spread over parties"),
    Column("protocol", "protocol; of a reference, who trains alone"),
    Column("protocol_params", "its parameters; of a reference, the protocol with them"),
    Column("defense", "defense, none for the undefended run"),
    Column("defense_params", "its parameters, by part"),
    Column("threat", "whose view is attacked, as on the command line"),
    Column("adversary", "their roles"),
    Column("access", "what they have: messages or the model; queries, collusion, known values"),
    Column("attack", "attack; blind, of who sees nothing"),
    Column("attack_params", "its parameters; of a blind row, one of several guesses"),
    Column("seed", "seed of the federation and of all randomness", "whole"),
    Column("pair_id", "equal where one federation's held-out rows score all"),
    Column(
        "stage",
        "train, cheated (somebody does), attack, blind, adversary (which attacks apply) or "
        "reference",
    ),
    Column("status", "ok, failed, timeout, skipped, or no-claim (the attack found nothing)"),
    Column(
        "state_code", "ok, skip, unfit, limit, failed, timeout, undefined or no-claim", later=True
    ),
    Column("reason_code", "why there is no value: a code of reasons.csv", later=True),
    Column("reason_args", "its arguments, as JSON", later=True),
    Column("reason", "the same as a sentence"),
    Column("blind_guess", "of a blind row, whose guess is the best", later=True),
    Column("metric", "what was measured: a key below"),
    Column("part", "of which column, type of message, operation, ..."),
    Column("value", "the measurement", "number"),
    Column("unit", "its unit"),
    Column("measure_class", "whom it is about: person, guess, group; else utility, cost, ..."),
    Column("n", "rows or cells that a share is of", "number"),
    Column("error", "standard error, where some of the rows were scored", "number"),
    Column("certain", "1 where the attack vouches for its claim, else 0", "number"),
    Column("blind", "score of the same adversary that sees nothing", "number"),
    Column("advantage", "(value - blind) / (best - blind)", "number"),
    Column("population", "score of the population baseline (held-out rows alone)", "number"),
    Column("beyond", "(value - population) / (best - population)", "number"),
    Column("ceiling", "score that no attack can exceed", "number"),
    Column("claimed", "guarantee that protocol and defense state", "guarantee"),
    Column("spent", "guarantee by the noise that was drawn", "guarantee"),
    Column("measured", "lower bound that an audit found, and the most it could have", "guarantee"),
    Column("bytes_up", "bytes to the coordinator, of the training", "number"),
    Column("bytes_down", "bytes from the coordinator, of the training", "number"),
    Column("rounds", "rounds of communication", "number"),
    Column("seconds", "wall-clock seconds of the cell", "number"),
    Column("version", "of fedtrees"),
)
_BY_NAME = {column.name: column for column in COLUMNS}


def plain(row: Mapping[str, Any]) -> dict[str, str | int | float | None]:
    """Return a row as plain JSON types.

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

    Costs, diagnostics and rows about a part may differ between repetitions.
    """
    return row["measure_class"] not in ("cost", "diagnostic") and not row["part"]


def write(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return plain rows as CSV with a header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(_BY_NAME), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
