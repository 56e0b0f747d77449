"""Files that are written completely or not at all, and checksums that detect changed files.

A writer writes to a temporary file and renames it. The file ``SHA256SUMS`` of a run folder lists
the checksums of its files. Locks on bytes of one lock file coordinate several processes.

`unreadable` recognises formats that cannot be read by the first bytes of a file, and suggests a
remedy.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

from fedtrees.core.errors import FedtreesError, StoreError

try:
    import fcntl
except ImportError:  # Windows has no fcntl: there, two runs in one folder may compute a cell twice
    fcntl = None  # type: ignore[assignment]

#: Name of the list of checksums in a folder, in the format of ``sha256sum -c SHA256SUMS``.
CHECKSUMS = "SHA256SUMS"
#: Number of times that an unlisted file is read before it counts as changed, because a writer may
#: be replacing it.
READINGS = 5
_LOCK = ".claims"
# The claim of a cell locks the byte whose number is the first 12 hexadecimal digits of the cell's
# name. This byte is beyond all of them.
_CHECKSUMS_BYTE = 1 << 48
_PARTIAL = re.compile(r"\..+\.([0-9]{1,9})\.partial", re.DOTALL)
_LINE = re.compile(rb"[0-9a-f]{64}  (.+)")


def write_text(path: Path, text: str) -> Path:
    """Write a text file completely or not at all. Raises the errors of `write_whole`."""
    write_whole(path, text.encode(), remedy="the stored results are unchanged")
    return path


def write_whole(
    path: Path,
    content: bytes | Callable[[IO[bytes]], object],
    *,
    error: type[FedtreesError] = StoreError,
    remedy: str = "free disk space or give permission, and try again",
    flush: bool = True,
    private: bool = False,
) -> None:
    """Write a file under a temporary name, flush it to disk, then rename it.

    Parameters
    ----------
    path : Path
        The file.
    content : bytes or callable
        Its content, or a function that writes it to an open binary file.
    error : type of FedtreesError
        Type of the exception if the disk is full or the folder cannot be written. No partial file
        remains then.
    remedy : str
        End of the error message.
    flush : bool
        False if a file that is lost in a power failure is soon written again, and a torn file is
        detected.
    private : bool
        Whether only the owner may read the file (mode 0600).
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb", opener=opens_private if private else None) as out:
            if callable(content):
                content(out)
            else:
                out.write(content)
            if flush:
                out.flush()
                os.fsync(out.fileno())
        # Renaming is atomic: a reader finds the old or the new file.
        os.replace(partial, path)
    except OSError as err:
        raise error(f"cannot write {path}: {err.strerror or err}; {remedy}") from err
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def opens_private(path: str, flags: int) -> int:
    """Open a file and create it with mode 0600. This is an ``opener`` of `open`."""
    return os.open(path, flags, 0o600)


def write_private(path: Path, text: str) -> None:
    """Write a text file that only its owner may read (`write_whole`)."""
    write_whole(path, text.encode(), private=True)


def make_private(folder: Path, inside: Path) -> None:
    """Make a folder and those between it and `inside`, mode 0700.

    `Path.mkdir(parents=True)` applies its mode to the last folder only.
    """
    for step in reversed([folder, *folder.parents]):
        if step != inside and step.is_relative_to(inside):
            step.mkdir(mode=0o700, exist_ok=True)


def append_private(path: Path, text: str) -> None:
    """Append text to a file that only its owner may read, and create it with mode 0600."""
    with open(path, "a", encoding="utf-8", opener=opens_private) as file:
        file.write(text)


def copy_private(source: Path, target: Path) -> None:
    """Copy a folder so that only the owner may read the copy: folders 0700, files 0600.

    Modes of the source are not copied, because an archive may have lost them. The target may exist.
    Files and folders that exist only in the target stay unchanged.
    """
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.chmod(0o700)
    for path in sorted(source.iterdir()):
        if path.is_dir() and not path.is_symlink():
            copy_private(path, target / path.name)
        elif path.is_file():
            write_whole(target / path.name, path.read_bytes(), private=True)


def sweep(folder: Path) -> None:
    """Remove temporary files of killed writers from a folder."""
    for path in folder.glob(".*.partial"):
        named = _PARTIAL.fullmatch(path.name)
        # The name of a temporary file contains the id of its writer.
        if named and not _process_exists(int(named[1])):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _process_exists(pid: int) -> bool:
    """Return whether another process with this id exists."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def locked(folder: Path, byte: int) -> Iterator[None]:
    """Lock one byte of a folder's lock file. Other processes that lock the same byte wait.

    The operating system releases the lock when the process ends. A process can have only one lock
    per folder at a time.
    """
    if fcntl is None:
        yield
        return
    with _open_to_write(folder / _LOCK) as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
        yield


def _open_to_write(path: Path) -> IO[bytes]:
    """Open a file for writing, or raise `StoreError` with a remedy."""
    try:
        return path.open("wb")
    except OSError as err:
        raise StoreError(
            f"cannot write {path}: {err.strerror or err}; give permission, and try again"
        ) from err


def write_listed(folder: Path, name: str, content: bytes) -> None:
    """Write a file of a folder and list its checksum.

    While the file is replaced, the list contains both the old and the new checksum. A reader
    therefore finds a listed file at every moment, also after the writer was killed.
    """
    with locked(folder, _CHECKSUMS_BYTE):
        new = f"{hashlib.sha256(content).hexdigest()}  {name}".encode()
        listed = sorted(line for line in _read_checksums(folder) or () if _LINE.fullmatch(line))
        other_lines = [line for line in listed if line[66:] != name.encode()]
        _write_lines(folder, sorted({*listed, new}))
        write_whole(folder / name, content)
        _write_lines(folder, sorted({*other_lines, new}))


def _write_lines(folder: Path, lines: list[bytes]) -> None:
    """Write the list of checksums of a folder."""
    write_whole(folder / CHECKSUMS, b"".join(line + b"\n" for line in lines))


def _read_checksums(folder: Path) -> set[bytes] | None:
    """Return the lines of the list of checksums, None if the folder has no list."""
    path = folder / CHECKSUMS
    try:
        return set(read_regular(path).splitlines())
    except FileNotFoundError:
        return None
    except OSError as err:
        raise StoreError(
            f"{path} cannot be read ({err.strerror or err}); give permission, or delete it to "
            "take the files of the folder as they are"
        ) from err


def read_regular(path: Path, limit: int | None = None, *, follow: bool = True) -> bytes:
    """Return the content of a regular file.

    Devices, pipes and folders are refused before a byte is read, because a device such as
    ``/dev/zero`` has no end and a pipe may never have a writer.

    Parameters
    ----------
    path : Path
        The file.
    limit : int, optional
        Largest size in bytes. Without a limit, files of any size are read.
    follow : bool
        Whether a symbolic link is followed. Files from an untrusted sender are read with False.

    Raises
    ------
    OSError
        If the file cannot be opened, is not regular, is a symbolic link that is not followed, or is
        larger than `limit`.
    """
    # O_NONBLOCK: opening a pipe without a writer must not block.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    with os.fdopen(os.open(path, flags), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, "it is not a regular file", str(path))
        # One byte more than allowed shows that the file is too large.
        content = file.read() if limit is None else file.read(limit + 1)
    if limit is not None and len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
    return content


def read_listed(folder: Path, name: str) -> bytes:
    """Read a file of a folder and check its checksum.

    Without a list of checksums, nothing is checked.

    Raises
    ------
    OSError
        If the file cannot be read.
    StoreError
        If its checksum is not listed.
    """
    before = _read_checksums(folder)
    for _ in range(READINGS):
        content = read_regular(folder / name)
        after = _read_checksums(folder)
        line = f"{hashlib.sha256(content).hexdigest()}  {name}".encode()
        if after is None or line in after | (before or set()):
            return content
        before = after  # a writer may have replaced the file between the two reads
    raise StoreError(
        f"{(folder / name).as_posix()!r} was changed after it was written: its sha256 is not in "
        f"{CHECKSUMS}. `fedtrees bench --resume --output {folder}` makes rows.csv, "
        "disclosure.json and suite.toml again; put any other file back, or delete "
        f"{CHECKSUMS} to take all files as they are"
    )


def parse_json(text: str | bytes, name: str, error: type[FedtreesError] = StoreError) -> Any:
    """Parse a JSON text.

    Parameters
    ----------
    text : str or bytes
        The text.
    name : str
        Name of the file, for error messages.
    error : type of FedtreesError
        Type of the exception.

    Raises
    ------
    FedtreesError
        Of the given type, if the text is not JSON or is nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise error(f"{name} is nested too deep to be read; run the suite again") from None
    except ValueError as err:
        where = f" (line {err.lineno})" if isinstance(err, json.JSONDecodeError) else ""
        raise error(f"{name} is not JSON{where}; run the suite again") from err


def unique_labels(paths: Sequence[str | Path]) -> list[str]:
    """Return a unique label for each file: its stem, with as many parent folders as necessary."""
    parts = [Path(path).absolute().with_suffix("").parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(part[-depth:]) for part in parts]
        if len({*labels}) == len(labels):
            break
    return labels


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
