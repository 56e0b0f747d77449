"""Tables in other files than text: Excel workbooks and Parquet, read as the text they show."""

from pathlib import Path
from typing import Any

from fedtrees.core.errors import DataError
from fedtrees.data.csv_file import TextTable, cells_as_text, header, read_csv

#: What reads a file, by its ending: pandas' function and what has to be installed for it.
READERS = {
    ".xlsx": ("read_excel", "openpyxl"),
    ".parquet": ("read_parquet", "pyarrow"),
}


def read_table(path: str | Path, separator: str = "", named: tuple[str, ...] = ()) -> TextTable:
    """Read a table, by its ending an Excel workbook (its first sheet), Parquet, or text.

    Cells are kept as they would stand in a CSV file: dates as ISO dates, whole numbers without a
    point, nothing for what is missing.

    Raises `DataError` as `read_csv`; or the file is none of its kind, or what reads it is not
    installed.
    """
    path = Path(path)
    if path.suffix.lower() not in READERS:
        return read_csv(path, separator, named)
    import pandas as pd

    function, needed = READERS[path.suffix.lower()]
    options: dict[str, Any] = {"header": None, "dtype": object} if needed == "openpyxl" else {}
    try:
        frame = getattr(pd, function)(path, **options)
    except ImportError:
        raise DataError(
            f"{path}: reading {path.suffix} needs {needed}; pip install "
            "'fedtrees[tables]', or save the table as CSV"
        ) from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:  # whatever a damaged file makes of a parser
        raise DataError(f"{path}: cannot be read as {path.suffix} ({error})") from None
    columns = [[_text(v) for v in frame.iloc[:, k].tolist()] for k in range(frame.shape[1])]
    notes = [f"read from {path.suffix}"]
    if needed == "openpyxl":
        rows = [list(row) for row in zip(*columns, strict=True)]
        names, first = header(rows, frame.shape[1], named, notes) if rows else ([], 0)
        columns = [column[first:] for column in columns]
    else:
        names, first = [str(n) for n in frame.columns], 1
    count = len(columns[0]) if columns else 0
    if not count:
        raise DataError(f"{path}: the table has no rows; it needs names of columns and rows")
    lines = [first + 1 + i for i in range(count)]
    return TextTable(path, tuple(names), tuple(map(cells_as_text, columns)), lines, ",",
                     tuple(notes))  # fmt: skip


def _text(value: Any) -> str:
    """Write a cell as it stands in a CSV file."""
    if value is None or str(value) in ("<NA>", "NaT", "nan"):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if hasattr(value, "isoformat"):
        text = str(value.isoformat())
        return text.removesuffix("T00:00:00")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return " ".join(str(value).replace("\0", " ").split())
