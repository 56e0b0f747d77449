"""Read tables from text files, Excel workbooks, Parquet and Feather files.

The contents of a file decide how it is read, and its file extension must agree. `FORMATS` has one
record per format that is not text. All later steps work on the `TextTable` that this module
returns: cells are text, as a CSV file would show them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedtrees.core.errors import DataError, Problem, Problems
from fedtrees.data.cleaning import with_composed_cells, with_empty_cells, with_plain_numbers
from fedtrees.data.csv_file import (
    UNDECLARED,
    Reading,
    TextTable,
    cells_as_text,
    header,
    read_text,
    twice_named,
    unique_names,
)

if TYPE_CHECKING:
    import pandas as pd


def read_table(
    path: str | Path,
    reading: Reading = UNDECLARED,
    required: Sequence[str] = (),
    values: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> TextTable:
    """Read a text file, an Excel workbook, a Parquet or a Feather file, and clean its cells.

    Raises `DataError` as `read_uncleaned`.

    Parameters
    ----------
    path : str or Path
        The file.
    reading : Reading
        Declared format of the file.
    required : sequence of str
        Columns that the table must contain, for example the target. A first line that contains one
        of them is a header.
    values : mapping of str to sequence of str
        By column, categories that are values although they look like marks of missing cells.

    Returns
    -------
    table : TextTable
    """
    return with_empty_cells(read_uncleaned(path, reading, required), values)


def read_uncleaned(path: str | Path, reading: Reading, required: Sequence[str] = ()) -> TextTable:
    """Read a table with plain numbers, in which marks of missing cells are still text.

    The files of several clients are joined before the marks are interpreted. Cells are written as
    in a CSV file: dates as ISO dates, integers without a point, missing values as empty cells.

    Parameters
    ----------
    path : str or Path
        The file.
    reading : Reading
        Declared format of the file.
    required : sequence of str
        Columns that the table must contain, for example the target. A first line that contains one
        of them is a header.

    Returns
    -------
    table : TextTable

    Raises
    ------
    DataError
        As `read_text`, and if the contents do not match the extension, or if the package that reads
        the format is not installed.
    """
    path = Path(path)
    table_format = find_format(path)
    of_extension = next((f for f in FORMATS if path.suffix.lower() in f.extensions), None)
    if table_format is None and of_extension is not None and path.is_file():
        raise DataError(
            f"{path}: cannot be read as {path.suffix}: its content is of another format; save the "
            "table again, or as CSV"
        )
    if table_format is None:
        return with_plain_numbers(read_text(path, reading, required))
    frame, notes = _read_frame(path, table_format, reading), [f"read from {path.suffix}"]
    cells = [frame.iloc[:, k].tolist() for k in range(frame.shape[1])]
    first, names = 1, [str(name) for name in frame.columns]
    if table_format.names_in_cells:
        rows = [list(map(_text, row)) for row in zip(*(c[:201] for c in cells), strict=True)]
        names, first = header(rows, frame.shape[1], required, notes) if rows else ([], 0)
        twice = twice_named(rows[0]) if first else frozenset()
        cells = [column[first:] for column in cells]
    else:
        twice, names = twice_named(names), unique_names(names, notes)
    count = len(cells[0]) if cells else 0
    if not count:
        raise DataError(f"{path}: the table has no rows; it needs names of columns and rows")
    table = TextTable(
        path,
        tuple(names),
        tuple(cells_as_text(map(_text, column)) for column in cells),
        [first + 1 + i for i in range(count)],
        ",",
        tuple(notes),
        reading,
        twice,
        typed_format=True,
        typed=frozenset(n for n, c in zip(names, cells, strict=True) if not _has_text(c)),
    )
    return with_plain_numbers(with_composed_cells(table))


def _read_frame(path: Path, table_format: TableFormat, reading: Reading) -> pd.DataFrame:
    """Return the contents of a file. Raises `DataError` as `read_uncleaned`."""
    try:
        return table_format.read(path, reading)
    except ImportError:
        raise DataError(
            f"{path}: reading {path.suffix} needs {table_format.package}; pip install "
            "'fedtrees[tables]', or save the table as CSV"
        ) from None
    except Problems:
        raise
    except Exception as error:  # parsers raise any type of error on a damaged file
        raise DataError(f"{path}: cannot be read as {path.suffix} ({error})") from None


def _read_workbook(path: Path, reading: Reading) -> pd.DataFrame:
    """Return the cells of one sheet of an Excel workbook, including the row with the names."""
    import pandas as pd

    sheets = pd.read_excel(path, sheet_name=None, header=None, dtype=object, na_filter=False)
    return _sheet(path, {str(name): sheet for name, sheet in sheets.items()}, reading.sheet)


def _read_parquet(path: Path, reading: Reading) -> pd.DataFrame:
    import pandas as pd

    return with_index_columns(pd.read_parquet(path))


def _read_feather(path: Path, reading: Reading) -> pd.DataFrame:
    import pandas as pd

    return with_index_columns(pd.read_feather(path))


@dataclass(frozen=True)
class TableFormat:
    """A format of tables that is not text.

    Attributes
    ----------
    extensions : tuple of str
        File extensions in lower case, with the dot.
    signature : bytes
        First bytes of the file.
    package : str
        Package that pandas needs to read the format.
    read : callable
        ``read(path, reading)`` returns the table as a data frame.
    member : str
        File that the ZIP archive contains, empty if the format is no ZIP archive.
    names_in_cells : bool
        Whether the names of the columns are cells of the table, so that they must be recognised.
    """

    extensions: tuple[str, ...]
    signature: bytes
    package: str
    read: Callable[[Path, Reading], pd.DataFrame]
    member: str = ""
    names_in_cells: bool = False

    def matches(self, path: Path) -> bool:
        """Return whether a file has this format. False if it cannot be read."""
        try:
            with path.open("rb") as file:
                if file.read(len(self.signature)) != self.signature:
                    return False
            if not self.member:
                return True
            with zipfile.ZipFile(path) as archive:
                return self.member in archive.namelist()
        except (OSError, zipfile.BadZipFile):
            return False


#: The supported formats. To add one, add a record.
FORMATS = (
    TableFormat(
        (".xlsx",), b"PK", "openpyxl", _read_workbook, "xl/workbook.xml", names_in_cells=True
    ),
    TableFormat((".parquet", ".pq"), b"PAR1", "pyarrow", _read_parquet),
    TableFormat((".feather",), b"ARROW1", "pyarrow", _read_feather),
)


def find_format(path: Path) -> TableFormat | None:
    """Return the format of a table file by its contents, None if it is text."""
    return next((table_format for table_format in FORMATS if table_format.matches(path)), None)


def with_index_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with its named index as a column.

    An index without a name only counts rows and is ignored.
    """
    named = any(name is not None for name in frame.index.names)
    return frame.reset_index() if named else frame


def _sheet(path: Path, sheets: Mapping[str, pd.DataFrame], sheet_name: str) -> pd.DataFrame:
    """Return the requested sheet of a workbook, or the only sheet that is not empty.

    Raises `Problems` if there is no such sheet, or if several sheets are not empty.
    """
    names = list(sheets)
    if sheet_name:
        if sheet_name in sheets:
            return sheets[sheet_name]
        if sheet_name.isdigit() and 0 < int(sheet_name) <= len(names):
            return sheets[names[int(sheet_name) - 1]]
        text = f"no sheet {sheet_name!r}; the sheets are {', '.join(map(repr, names))}"
        raise Problems(str(path), [Problem(text, "sheet", names[0])])
    filled = [name for name in names if sheets[name].size]
    if len(filled) > 1:
        shown = ", ".join(map(repr, filled))
        text = f"the workbook has {len(filled)} sheets ({shown}); name the one to read"
        raise Problems(str(path), [Problem(text, "sheet", filled[0])])
    return sheets[filled[0] if filled else names[0]]


def _has_text(cells: Sequence[Any]) -> bool:
    """Return whether a column contains text other than empty strings."""
    return any(isinstance(value, str) and value != "" for value in cells)


def _text(value: Any) -> str:
    """Return the text of a cell as in a CSV file."""
    # Missing values of pandas have several types, which agree only in their text.
    if not isinstance(value, str) and str(value) in ("None", "<NA>", "NaT", "nan"):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if hasattr(value, "isoformat"):
        text = str(value.isoformat())
        return text.removesuffix("T00:00:00")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return " ".join(str(value).replace("\0", " ").split())
