"""Download one known data file. The only code of the project that uses the network."""

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from fedtrees.core.errors import DataError, UsageError, did_you_mean
from fedtrees.data.sources import SOURCES, sha256

#: Seconds without an answer before a download is given up.
TIMEOUT = 30.0
#: Largest file accepted, bytes; the known ones are below 6 MB.
MAX_BYTES = 64_000_000
_CHUNK = 1 << 16


def fetch(name: str, directory: str | Path, url: str | None = None) -> Path:
    """Download a data file, check it, and only then give it its name.

    Raises `UsageError`: unknown name. Raises `DataError`: no address known, the server cannot be
    reached or refuses, the download is cut short or too large, the checksum differs (nothing is
    kept then), or the folder cannot be written.

    `name`: Key of `SOURCES`.
    `directory`: Created if absent. A file there that already has the right checksum is kept.
    `url`: Where to download from (http, https or file); default the known public copy, if any.

    Returns: The file in `directory`.
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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{source.filename}.")
    except OSError as error:
        raise DataError(f"{target.parent}: cannot be written ({error.strerror})") from None
    try:
        with os.fdopen(handle, "wb") as file:
            found = _download(url, file)
        if found != source.sha256:
            raise DataError(
                f"{url}: sha256 is {found}, expected {source.sha256}; the file was not kept. "
                f"Get {source.filename} from {source.origin}, or give another --url"
            )
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def _download(url: str, file) -> str:  # type: ignore[no-untyped-def]
    """Write what `url` serves into an open file; return its sha256, hex."""
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
