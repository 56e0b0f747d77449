"""Describe a user's table: its files, its target, and how to read them.

A `TableSpec` has one field per option of the command line and per key of a table in a suite, for
example ``{csv = "patients.csv", target = "ill"}``. `fedtrees.experiments.suite.DataRef` adds the
name of the table in results.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.files import unique_labels
from fedtrees.core.specs import split_names

if TYPE_CHECKING:
    from fedtrees.data.csv_file import Reading


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """Files of a user's table, and declarations about its columns.

    Attributes
    ----------
    csv : str
        Path of a table, or the paths of one table per party, separated by commas. "" for a dataset
        of the catalogue.
    target : str
        Name of the label column.
    task, positive : str
        Kind of the target, and the class that is coded as 1. "" if they are inferred.
    id : str
        Column that joins the files of several parties.
    client_column : str
        Column that contains the client of each row.
    categorical, keep, drop : tuple of str
        Columns to treat as categories, to use, and to leave out.
    sep, decimal, sheet : str
        Format of the file (`fedtrees.data.csv_file.Reading`). "" if it is inferred.
    missing : tuple of str
        Marks of missing cells. One empty text means that only empty cells are missing values. If
        the tuple is empty, the default marks apply.
    """

    csv: str = ""
    target: str = ""
    task: str = ""
    positive: str = ""
    id: str = ""
    client_column: str = ""
    categorical: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    sep: str = ""
    decimal: str = ""
    missing: tuple[str, ...] = ()
    sheet: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the table, of which several belong to different parties."""
        single_file = not self.id and (bool(self.client_column) or os.path.exists(self.csv))
        return (self.csv,) * bool(self.csv) if single_file else tuple(self.csv.split(","))

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files, empty for a dataset of the catalogue."""
        return self.paths if self.csv else ()

    @property
    def states_clients(self) -> bool:
        """Whether the table states the client of each row: by a column, or by a file per client."""
        return bool(self.client_column) or (not self.id and len(self.files) > 1)

    @property
    def label(self) -> str:
        """Name of the table in results: the names of its files without folders."""
        return "+".join(unique_labels(self.paths))

    @property
    def reading(self) -> Reading:
        """Declared format of the files. Raises `UsageError` if a declaration is not valid."""
        from fedtrees.data.csv_file import Reading

        return Reading(
            separator=separator_of(self.sep),
            decimal=self.decimal,
            missing=self.missing or None,
            sheet=self.sheet,
        )

    def loader_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `fedtrees.data.user_tables.load_csv`."""
        return {
            "task": self.task,
            "positive": self.positive or None,
            "separator": self.sep,
            "decimal": self.decimal,
            "missing": self.missing or None,
            "sheet": self.sheet,
            "categorical": self.categorical,
            "keep": self.keep,
            "drop": self.drop,
        }


#: Names of the options that describe a user's table.
TABLE_OPTIONS = tuple(item.name for item in fields(TableSpec))
#: Options with several names, separated by commas or given several times.
NAME_LISTS = tuple(item.name for item in fields(TableSpec) if item.default == ())


def parse_table_options(options: Mapping[str, Any], data: Any = None) -> TableSpec | None:
    """Return the table that the options of a command describe, None without ``--csv``.

    Parameters
    ----------
    options : mapping of str to object
        Options by name. Names that are not in `TABLE_OPTIONS` are ignored.
    data : object
        The option ``data``, which cannot be combined with ``--csv``.

    Raises
    ------
    UsageError
        If the options contradict one another.
    """
    table_options = {name: options[name] for name in TABLE_OPTIONS if options.get(name)}
    paths = table_options.pop("csv", ())
    if not paths:
        if table_options:
            names = ", ".join("--" + name.replace("_", "-") for name in table_options)
            raise UsageError(
                f"{names}: this option describes a table of your own; give it with --csv FILE"
            )
        return None
    files = ",".join(paths)
    if not all(files.split(",")) and not os.path.exists(files):
        raise UsageError(f"--csv {files!r} lacks the name of a file; give --csv FILE for each")
    if data:
        raise UsageError(
            "give --data or --csv, not both; bench them one after the other, and give "
            "`fedtrees results table` both runs"
        )
    spec = TableSpec(csv=files, **table_options | format_options(table_options))
    if not spec.target:
        raise UsageError(f"--csv needs --target COLUMN{_list_columns(spec)}")
    return spec


def format_options(table_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a table in the form of the fields of `TableSpec`, and check them.

    Lists of names are split at commas, and a separator that is given as a word is replaced by its
    character. Options without a value are left out.

    Raises `UsageError` if the separator or the decimal mark is not valid.
    """
    fields_of_table = {name: value for name, value in table_options.items() if value}
    for name in NAME_LISTS:
        if name in fields_of_table:
            fields_of_table[name] = tuple(split_names(fields_of_table[name]))
    if "missing" in fields_of_table:
        fields_of_table["missing"] = fields_of_table["missing"] or ("",)
    if "sep" in fields_of_table:
        fields_of_table["sep"] = separator_of(fields_of_table["sep"])
    assert TableSpec(**fields_of_table).reading
    return fields_of_table


def parse_reading(
    sep: str = "", decimal: str = "", missing: Any = None, sheet: str = ""
) -> Reading:
    """Return the format of a file that the options of a command declare.

    Raises `UsageError` if one of them is not valid.
    """
    options = {"sep": sep, "decimal": decimal, "missing": missing, "sheet": sheet}
    return TableSpec(**format_options(options)).reading


def separator_of(text: str) -> str:
    """Return the character that ``--sep`` names.

    Raises `UsageError` if it is not a valid separator.
    """
    character = {"tab": "\t", "\\t": "\t", "space": " "}.get(text, text)
    if len(character) > 1 or character in ('"', "\n", "\r", "\0"):
        raise UsageError(
            f"--sep {text!r}: a separator is one character; give it, or the word tab or space"
        )
    return character


def _list_columns(spec: TableSpec) -> str:
    """List the columns from which to choose the target, "" if the file cannot be read."""
    from fedtrees.data.table_files import read_table

    try:
        names = read_table(spec.csv.split(",")[0], spec.reading).names
    except DataError:
        return ""
    return f"; the columns are {', '.join(names[:60])}" + (", ..." if len(names) > 60 else "")
