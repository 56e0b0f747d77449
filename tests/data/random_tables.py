"""Random tables as pandas, Excel and R write them, and a check of the values that are read.

``python tests/data/random_tables.py 3000`` prints the figures of the page about users' tables. A
column is equal, left out with a note, asked about, or different with a note. Any other column is a
silent difference.
"""

import argparse
import csv
import io
import sys
import tempfile
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from fedtrees.core.errors import DataError, Problems
from fedtrees.data.client_tables import load_clients
from fedtrees.data.user_tables import load_csv

TARGET = "outcome"
_EPOCH = date(1970, 1, 1)
_WORDS = (
    ["low", "mid", "high"], ["Bern", "Zürich", "Genève"], ["A+", "B-", "0"], ["none", "mild"],
    ["NA", "CH", "DE"], ["+", "-"], ["a b", "a, b", 'a "b"'], ["Ko\u0308ln", "Bonn"], ["N/A", "x"],
    ["007", "7", "70"], ["1-2", "3-4"], ["x;y", "x|y"], ["Male", "female"], ["I", "II", "III"],
)  # fmt: skip
_TRUTH_WORDS = (("True", "False"), ("TRUE", "FALSE"), ("yes", "no"), ("ja", "nein"), ("1", "0"))


@dataclass
class Column:
    """A column of a random table: its values, and how their cells are spelled."""

    kind: str  # number, text, truth, date or code
    values: list  # None: missing
    decimals: int = 0
    unit: str = ""


@dataclass
class Writer:
    """How a program writes a table."""

    name: str
    sep: str = ","
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    na: str = ""
    quoting: int = csv.QUOTE_MINIMAL
    row_names: str = ""  # "": none; "named": below an empty name; "unnamed": without a name
    line_end: str = "\n"
    date_form: str = "%Y-%m-%d"
    truth: tuple = ("True", "False")
    typed: str = ""  # xlsx or parquet


@dataclass
class Outcome:
    """Counts of the outcomes of the columns of one table, and its silent differences."""

    counts: Counter = field(default_factory=Counter)
    silent: list = field(default_factory=list)


def random_column(rng, n_rows):
    """Return a column of one of the kinds."""
    kind = rng.choice(["number", "number", "number", "text", "text", "truth", "date", "code"])
    if kind == "number":
        decimals = int(rng.choice([0, 0, 1, 2, 3, 3, 6]))
        low, high = [(0, 1), (1, 9), (-50, 50), (20, 90), (0, 5_000), (1e5, 9e6)][rng.integers(6)]
        repeated_values = (
            rng.integers(low, high + 1, 4) if decimals == 0 else rng.uniform(low, high, 6)
        )
        draws = (
            rng.choice(repeated_values, n_rows)
            if rng.random() < 0.3
            else rng.uniform(low, high, n_rows)
        )
        unit = str(rng.choice(["", "", "", "", "$", "€", "%", "()"]))
        values = [round(float(value), decimals) for value in draws]
        return Column(kind, values, decimals, unit)
    if kind == "text":
        words = _WORDS[rng.integers(len(_WORDS))]
        return Column(kind, [str(value) for value in rng.choice(words, n_rows)])
    if kind == "truth":
        return Column(kind, [bool(value) for value in rng.integers(0, 2, n_rows)])
    if kind == "date":
        return Column(
            kind, [_EPOCH + timedelta(int(days)) for days in rng.integers(9_000, 19_000, n_rows)]
        )
    start, width = [(2**53, 16), (0, 5), (10**11, 12)][rng.integers(3)]
    repeated_values = [str(start + int(code)).zfill(width) for code in rng.integers(0, 99, 5)]
    return Column(kind, [str(value) for value in rng.choice(repeated_values, n_rows)])


def random_writer(rng):
    """Return a program with its settings."""
    names = ["pandas", "excel-de", "excel-us", "r-csv", "r-csv2", "r-table", "typed"]
    name = str(rng.choice(names))
    pick = lambda *options: options[rng.integers(len(options))]  # noqa: E731
    if name == "pandas":
        return Writer(
            name, pick(",", ";", "\t", "|"), pick(".", ".", ","),
            encoding=pick("utf-8", "utf-8-sig", "utf-16", "utf-8"),
            na=pick("", "", "NaN", "NA", "-", "?", "None"), quoting=pick(0, 1, 2),
            row_names=pick("", "named"), truth=pick(*_TRUTH_WORDS),
        )  # fmt: skip
    if name == "excel-de":
        return Writer(
            name, ";", ",", pick("", "", "."), pick("utf-8-sig", "cp1252"), pick("", "#N/A", "NA"),
            line_end="\r\n", date_form="%d.%m.%Y", truth=pick(("WAHR", "FALSCH"), ("ja", "nein")),
        )  # fmt: skip
    if name == "excel-us":
        return Writer(
            name, pick(",", "\t"), ".", pick("", ","), pick("utf-8-sig", "cp1252"),
            pick("", "#N/A"), line_end="\r\n", date_form="%m/%d/%Y", truth=("TRUE", "FALSE"),
        )  # fmt: skip
    if name == "typed":
        return Writer(name, typed=pick("xlsx", "parquet"))
    csv2 = name == "r-csv2"
    return Writer(
        name, {"r-csv": ",", "r-csv2": ";", "r-table": " "}[name], "," if csv2 else ".", na="NA",
        quoting=csv.QUOTE_STRINGS if hasattr(csv, "QUOTE_STRINGS") else csv.QUOTE_NONNUMERIC,
        row_names="unnamed" if name == "r-table" else pick("", "named"), truth=("TRUE", "FALSE"),
    )  # fmt: skip


def cell_of(value, column, writer):
    """Return the text of a cell."""
    if value is None:
        return writer.na
    if column.kind == "truth":
        return writer.truth[0 if value else 1]
    if column.kind == "date":
        return value.strftime(writer.date_form)
    if column.kind != "number":
        return value
    plain = f"{abs(value):,.{column.decimals}f}"
    plain = plain.translate({ord(","): writer.thousands, ord("."): writer.decimal})
    is_negative = value < 0
    if column.unit == "()" and writer.name.startswith("excel"):
        return f"({plain})" if is_negative else plain
    text = f"-{plain}" if is_negative else plain
    if not writer.name.startswith("excel") or column.unit in ("", "()"):
        return text
    return f"${text}" if column.unit == "$" else f"{text} {column.unit}".replace(" %", "%")


def write(path, columns, writer):
    """Write the columns as the program does, and return the path."""
    if writer.typed:
        cells = {name: _typed(column) for name, column in columns.items()}
        frame = pd.DataFrame(cells)
        path = path.with_suffix(f".{writer.typed}")
        frame.to_parquet(path) if writer.typed == "parquet" else frame.to_excel(path, index=False)
        return path
    buffer = io.StringIO(newline="")
    csv_writer = csv.writer(
        buffer, delimiter=writer.sep, lineterminator=writer.line_end,
        quoting=csv.QUOTE_ALL if writer.quoting == csv.QUOTE_ALL else csv.QUOTE_MINIMAL,
    )  # fmt: skip
    quotes_text = writer.quoting not in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    rows = [list(columns)]
    rows += zip(
        *([cell_of(value, c, writer) for value in c.values] for c in columns.values()), strict=True
    )
    for number, row in enumerate(rows):
        row = [cell if number else str(cell) for cell in row]
        if writer.row_names and (number or writer.row_names == "named"):
            row.insert(0, str(number) if number else "")
        if quotes_text:  # R quotes all text and no numbers
            texts = [c.kind in ("text", "code") for c in columns.values()]
            texts = [True] * (len(row) - len(texts)) + texts
            cells = [
                '"' + cell.replace('"', '""') + '"'
                if cell != writer.na and (text or not number or writer.sep in cell)
                else cell
                for cell, text in zip(row, texts, strict=True)
            ]
            buffer.write(writer.sep.join(cells) + writer.line_end)
        else:
            csv_writer.writerow(row)
    path = path.with_suffix(".csv")
    text = buffer.getvalue()
    if writer.encoding == "cp1252":  # which has no combining characters
        text = unicodedata.normalize("NFC", text)
    path.write_bytes(text.encode(writer.encoding))
    return path


def _typed(column):
    """Return the values of a column as a typed format keeps them."""
    if column.kind == "number" and column.decimals == 0 and None not in column.values:
        return [int(v) for v in column.values]
    return column.values


def truth_of(column):
    """Return the values of a column as a reader should see them: numbers, or text."""
    if column.kind == "date":
        return [None if v is None else float((v - _EPOCH).days) for v in column.values]
    if column.kind == "text":
        return [None if v is None else unicodedata.normalize("NFC", v) for v in column.values]
    return column.values


def random_table(rng):
    """Return the columns of a table with a target, some cells missing."""
    n = int(rng.integers(30, 80))
    columns = {f"c{k}": random_column(rng, n) for k in range(int(rng.integers(2, 6)))}
    for column in columns.values():
        if rng.random() < 0.4:
            for i in rng.integers(0, n, int(rng.integers(1, 6))):
                column.values[i] = None
    labels = [["yes", "no"], ["0", "1"], ["benign", "malignant"]][rng.integers(3)]
    columns[TARGET] = Column("text", [labels[i % 2] for i in range(n)])
    return columns


def check(seed, folder):
    """Write one random table, read it, and return the outcomes of its columns."""
    rng = np.random.default_rng(seed)
    columns, outcome = random_table(rng), Outcome()
    sites = 1 if rng.random() < 0.7 else int(rng.integers(2, 4))
    writers = [random_writer(rng) for _ in range(sites)]
    names_of_rows = writers[0].row_names
    for writer in writers[1:]:  # files of one federation have the same columns
        writer.row_names = writer.row_names or names_of_rows if names_of_rows else ""
    n_rows = len(columns[TARGET].values)
    paths = []
    for number, rows in enumerate(np.array_split(np.arange(n_rows), sites)):
        part = {name: _take(column, rows) for name, column in columns.items()}
        paths.append(write(Path(folder) / f"t{seed}s{number}", part, writers[number]))
    keep = [name for name in columns if name != TARGET] if rng.random() < 0.5 else []
    outcome.counts.update(tables=1, columns=len(columns), **{f"writer {writers[0].name}": 1})
    data = _read(paths, columns, writers, keep, outcome)
    if data is not None:
        _compare(data, columns, outcome, (seed, [w.name for w in writers]))
    return outcome


def _take(column, rows):
    return Column(column.kind, [column.values[i] for i in rows], column.decimals, column.unit)


def _read(paths, columns, writers, keep, outcome):
    """Return the dataset after answering the questions of the reader; None if it refuses."""
    options = {"keep": keep}
    for _ in range(6):
        try:
            if len(paths) == 1:
                return load_csv(paths[0], TARGET, **options)
            return load_clients(paths, TARGET, **options)
        except Problems as error:
            for problem in error.problems:
                if problem.option == "decimal" and len({writer.decimal for writer in writers}) == 1:
                    outcome.counts["asked for the decimal mark"] += 1
                    options["decimal"] = writers[0].decimal
                    continue
                named_columns = [name for name in columns if f"{name!r}" in problem.text]
                outcome.counts["refused with a reason"] += 1
                drop = [*options.get("drop", ()), *(named_columns or ())]
                options["drop"] = [name for name in drop if name != TARGET]
                options["keep"] = [name for name in keep if name not in drop]
                if not named_columns or TARGET in named_columns:
                    return None
        except DataError:
            outcome.counts["refused with a reason"] += 1
            return None
    return None


def _compare(data, columns, outcome, place):
    """Count the outcome of every column of a dataset."""
    for name, column in columns.items():
        truth = truth_of(column)
        if name == TARGET:
            values_read = [data.schema.classes[c] for c in data.table.y]
        elif name in data.schema.names:
            position = data.schema.names.index(name)
            values_read = _decoded(data.table.X[:, position], data.schema.features[position])
        else:
            is_noted = any(name in note for note in data.notes if note.startswith("left out: "))
            outcome.counts["left out with a note" if is_noted else "silently left out"] += 1
            if not is_noted:
                outcome.silent.append((*place, name, "left out without a note"))
            continue
        differences = [
            (written_value, read_value)
            for written_value, read_value in zip(truth, values_read, strict=True)
            if not _equal(written_value, read_value, column)
        ]
        if not differences:
            outcome.counts["equal"] += 1
        elif _reported(name, differences, data.notes):
            outcome.counts["different with a note"] += 1
        else:
            outcome.counts["silently different"] += 1
            outcome.silent.append((*place, name, column.kind, differences[:3]))


def _reported(name, differences, notes):
    """Return whether the notes report that values of a column differ from those in the file.

    A cell that became missing is reported with its mark, and any other change by a note of the
    column.
    """
    marks = {written_value for written_value, read_value in differences if read_value is None}
    missing = " ".join(note for note in notes if note.startswith("missing: "))
    listed = name in missing and all(repr(mark) in missing for mark in marks)
    has_note = any(note.startswith(f"{name}: ") for note in notes)
    return has_note or (
        listed and len(marks) > 0 and all(read_value is None for _, read_value in differences)
    )


def _decoded(values, feature):
    """Return the cells of a column of a dataset: names of categories, or numbers."""
    if feature.kind != "categorical":
        return [None if np.isnan(v) else v for v in values]
    return [None if np.isnan(v) else feature.categories[int(v)] for v in values]


def _equal(written, value_read, column):
    """Return whether a value was read as it was written."""
    if written is None or value_read is None:
        return written is value_read is None
    if column.kind == "truth":
        return str(value_read).casefold() in (_YES if written else _NO) or value_read == float(
            written
        )
    if column.kind in ("text", "code"):
        return value_read == written or (
            not isinstance(value_read, str) and value_read == np.float32(written)
        )
    return np.float32(value_read) == np.float32(written)


_YES = {"true", "yes", "ja", "1", "wahr", "t"}
_NO = {"false", "no", "nein", "0", "falsch", "f"}


def campaign(seeds):
    """Return the combined outcome of many tables."""
    total = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            outcome = check(seed, folder)
            total.counts += outcome.counts
            total.silent += outcome.silent
            for path in Path(folder).iterdir():
                path.unlink()
    return total


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("tables", type=int)
    options.add_argument("--first", type=int, default=0, help="seed of the first table")
    arguments = options.parse_args()
    result = campaign(range(arguments.first, arguments.first + arguments.tables))
    for line in result.silent[:40]:
        print("silent:", *line)
    for name, count in sorted(result.counts.items()):
        print(f"{count:7} {name}")
    sys.exit(bool(result.silent))
