"""Read tables from Excel workbooks, Parquet and Feather files as the text that they show."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedtrees.core.errors import DataError, Problem, Problems
from fedtrees.core.formats import table_format
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

#: The package that pandas needs to read a format.
_PACKAGES = {"xlsx": "openpyxl", "parquet": "pyarrow", "feather": "pyarrow"}
#: File extensions of these formats. The contents of a file decide how it is read.
_ENDINGS = {".xlsx": "xlsx", ".parquet": "parquet", ".pq": "parquet", ".feather": "feather"}


def read_table(
    path: str | Path,
    reading: Reading = UNDECLARED,
    named: Sequence[str] = (),
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
    named : sequence of str
        Columns that exist.
    values : mapping of str to sequence of str
        By column, categories that are values although they look like marks of missing cells.

    Returns
    -------
    table : TextTable
    """
    return with_empty_cells(read_uncleaned(path, reading, named), values)


def read_uncleaned(path: str | Path, reading: Reading, named: Sequence[str] = ()) -> TextTable:
    """Read a table with plain numbers, in which marks of missing cells are still text.

    The files of several clients are joined before the marks are interpreted. Cells are written as
    in a CSV file: dates as ISO dates, integers without a point, missing values as empty cells.

    Parameters
    ----------
    path : str or Path
        The file.
    reading : Reading
        Declared format of the file.
    named : sequence of str
        Columns that exist.

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
    form, ending = table_format(path), _ENDINGS.get(path.suffix.lower(), "text")
    if form == "text" != ending and path.is_file():
        raise DataError(
            f"{path}: cannot be read as {path.suffix}: its content is of another format; save the "
            "table again, or as CSV"
        )
    if form == "text":
        return with_plain_numbers(read_text(path, reading, named))
    frame, notes = _frame(path, form, reading), [f"read from {path.suffix}"]
    cells = [frame.iloc[:, k].tolist() for k in range(frame.shape[1])]
    first, names = 1, [str(name) for name in frame.columns]
    if form == "xlsx":
        rows = [list(map(_text, row)) for row in zip(*(c[:201] for c in cells), strict=True)]
        names, first = header(rows, frame.shape[1], named, notes) if rows else ([], 0)
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


def _frame(path: Path, form: str, reading: Reading) -> "pd.DataFrame":
    """Return the contents of a typed file. Raises `DataError` as `read_uncleaned`."""
    import pandas as pd

    try:
        if form != "xlsx":
            frame = pd.read_parquet(path) if form == "parquet" else pd.read_feather(path)
            return with_index_columns(frame)
        sheets = pd.read_excel(path, sheet_name=None, header=None, dtype=object, na_filter=False)
    except ImportError:
        raise DataError(
            f"{path}: reading {path.suffix} needs {_PACKAGES[form]}; pip install "
            "'fedtrees[tables]', or save the table as CSV"
        ) from None
    except Exception as error:  # parsers raise any type of error on a damaged file
        raise DataError(f"{path}: cannot be read as {path.suffix} ({error})") from None
    return _sheet(path, {str(name): sheet for name, sheet in sheets.items()}, reading.sheet)


def with_index_columns(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return a frame with its named index as a column.

    An index without a name only counts rows and is ignored.
    """
    named = any(name is not None for name in frame.index.names)
    return frame.reset_index() if named else frame


def _sheet(path: Path, sheets: Mapping[str, "pd.DataFrame"], sheet_name: str) -> "pd.DataFrame":
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
