"""Recognise formats that cannot be read by the first bytes of a file, and suggest a remedy."""

import zipfile
from os import PathLike

_PICKLE = "is a Python pickle, which can run code when it is opened"
# First bytes, then the format and a way to obtain a readable file.
_SIGNATURES = (
    (b"\x1f\x8b", "is compressed with gzip: decompress it first (gunzip)"),
    (b"BZh", "is compressed with bzip2: decompress it first (bunzip2)"),
    (b"\xfd7zXZ", "is compressed with xz: decompress it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd: decompress it first (unzstd)"),
    (b"7z\xbc\xaf", "is a 7z archive: unpack it first"),
    (b"PK", "is a ZIP archive: unpack it first"),
    (b"PAR1", "is a Parquet file, and not a model or text"),
    (b"ARROW1", "is a Feather file, and not a model or text"),
    (b"FEA1", "is an old Feather file: save it as Parquet or CSV"),
    (b"\xd0\xcf\x11\xe0", "is an old Excel file (.xls): save it as .xlsx or CSV"),
    (b"\x80\x02", _PICKLE),
    (b"\x80\x03", _PICKLE),
    (b"\x80\x04", _PICKLE),
    (b"\x80\x05", _PICKLE),
    (b"SQLite format 3", "is an SQLite database: export the table as CSV"),
    (b"\x89HDF", "is an HDF5 file: save the table as Parquet or CSV"),
    (b"%PDF", "is a PDF document: save the table as CSV"),
    (b"RDX", "is an R data file: write the table with write.csv"),
    (b"$FL2", "is an SPSS file: save the table as CSV"),
)


def is_numpy_archive(path: str | PathLike[str]) -> bool:
    """Return whether a ZIP archive contains arrays only, as ``.npz`` files do."""
    try:
        with zipfile.ZipFile(path) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return True  # a damaged archive: the reader of arrays reports it


def unreadable(head: bytes, remedy: str = "") -> str:
    """Return why a file with these first bytes cannot be read, empty if the format is unknown.

    `remedy` names the format in which a pickled object should be saved.
    """
    for signature, text in _SIGNATURES:
        if head.startswith(signature):
            return f"{text}: {remedy}" if text is _PICKLE and remedy else text
    return ""


def no_local_file(path: str) -> str:
    """Return why a path is no file of this machine, empty if it may be one."""
    if path == "-":
        return "standard input is not read: save it to a file first"
    if path.partition(":/")[0] in ("http", "https", "ftp", "s3", "gs", "file"):
        return "addresses are not read: download the file first"
    return ""
