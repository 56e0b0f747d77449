"""Download one of the known data files, and list their names, checksums and origins.

No other code of the project uses the network for data.
"""

from __future__ import annotations

import csv
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from fedtrees.core.errors import DataError, UsageError, did_you_mean

#: Environment variable with the data directory, used if no argument is given.
ENVIRONMENT = "FEDTREES_DATA"


@dataclass(frozen=True)
class Source:
    """One file of the data directory."""

    filename: str
    sha256: str  # hexadecimal digest of the copy for which the loaders were written
    url: str | None  # address of a public copy. Only the checksum decides whether it is accepted
    origin: str  # where users obtain the file by hand


def _read_sources() -> dict[str, Source]:
    """Return the data files that ``sources.csv`` lists, by name."""
    text = Path(__file__).with_name("sources.csv").read_text("utf-8")
    lines = csv.DictReader(text.splitlines())
    return {
        line["name"]: Source(line["filename"], line["sha256"], line["url"] or None, line["origin"])
        for line in lines
    }


#: Data files by name.
SOURCES = _read_sources()


def data_directory(directory: str | Path | None = None) -> Path:
    """Return the data directory: the argument, else the environment's, else the user's default.

    The default is ``fedtrees`` in ``$XDG_DATA_HOME``, or in ``~/.local/share``. It need not exist.
    """
    chosen = directory or os.environ.get(ENVIRONMENT)
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "fedtrees"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file (hexadecimal)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locate(name: str, directory: str | Path | None = None) -> Path:
    """Return the path of a known data file after verifying its checksum.

    `name` is a key of `SOURCES`, and `directory` is an argument of `data_directory`. Raises
    `DataError` if the file is missing or has another checksum.
    """
    source, folder = SOURCES[name], data_directory(directory)
    remedy = (
        f"get it with `fedtrees data fetch {name}` or from {source.origin}, "
        f"and name its folder with --data-dir or {ENVIRONMENT}"
    )
    path = folder / source.filename
    if not path.is_file():
        raise DataError(f"{name} needs {source.filename}, not found in {folder}; {remedy}")
    try:
        digest = sha256(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if digest != source.sha256:
        raise DataError(
            f"{path}: sha256 is {digest}, expected {source.sha256}; "
            f"another or a damaged copy: {remedy}"
        )
    return path


#: Seconds without an answer after which a download is aborted.
TIMEOUT = 30.0
#: Size of the largest accepted file in bytes. The known files are below 6 MB.
MAX_BYTES = 64_000_000
_CHUNK = 1 << 16


def fetch(name: str, directory: str | Path, url: str | None = None) -> Path:
    """Download a data file, and give it its final name only if its checksum is correct.

    Parameters
    ----------
    name : str
        Key of `SOURCES`.
    directory : str or Path
        Target folder, created if absent. A file in it with the right checksum is not downloaded
        again.
    url : str, optional
        Address (http, https or file). The default is the known public copy, if there is one.

    Returns
    -------
    path : Path
        The file in `directory`.

    Raises
    ------
    UsageError
        If the name is unknown, or the address has another scheme.
    DataError
        If no address is known, the server cannot be reached or refuses, the download is incomplete
        or too large, the checksum differs (the file is then deleted), or the folder cannot be
        written.
    """
    if name not in SOURCES:
        raise UsageError(f"nothing to fetch for {name!r}{did_you_mean(name, SOURCES)}")
    source = SOURCES[name]
    target = Path(directory) / source.filename
    if target.is_file() and sha256(target) == source.sha256:
        return target
    url = url or source.url
    if url is None:
        raise DataError(
            f"{name}: no public address is known; get {source.filename} from {source.origin}, "
            f"or give its address with --url"
        )
    if not url.startswith(("http://", "https://", "file:")):
        raise UsageError(f"{url!r} is not an address; use http://, https:// or file://")
    # The temporary file is in the target folder, so that `os.replace` is atomic.
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{source.filename}.")
    except OSError as error:
        raise DataError(f"{target.parent}: cannot be written ({error.strerror})") from None
    try:
        with os.fdopen(handle, "wb") as file:
            digest = _download(url, file)
        if digest != source.sha256:
            raise DataError(
                f"{url}: sha256 is {digest}, expected {source.sha256}; the file was not kept. "
                f"Get {source.filename} from {source.origin}, or give another --url"
            )
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def _download(url: str, file) -> str:  # type: ignore[no-untyped-def]
    """Write the contents of a URL to an open file, and return their SHA-256 (hexadecimal)."""
    digest, size = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            promised = answer.headers.get("Content-Length")
            while chunk := answer.read(_CHUNK):
                size += len(chunk)
                if size > MAX_BYTES:
                    raise DataError(f"{url}: more than {MAX_BYTES} bytes; not the expected file")
                digest.update(chunk)
                file.write(chunk)
    except urllib.error.HTTPError as error:
        raise DataError(f"{url}: the server answered {error.code} {error.reason}") from None
    except http.client.HTTPException as error:
        raise DataError(f"{url}: the download was cut short ({error!r}); try again") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{url}: cannot be downloaded ({reason})") from None
    if promised is not None and promised.isdigit() and size < int(promised):
        raise DataError(f"{url}: cut short, {size} of {promised} bytes; try again")
    return digest.hexdigest()
