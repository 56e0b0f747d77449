"""The file format of a capture: all recorded messages in their order, with sender and receivers.

The file begins with eight bytes that contain the version. Frames follow: length and CRC-32 of the
remaining frame (uint32, little endian), length of a JSON header, the header, and a message in the
encoding of the transcript (`fedtrees.core.wire`). A frame without a message begins a run. Frames
are appended and never changed, so that a writer that is killed loses at most its last frame.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from fedtrees.core.errors import DataError, UsageError, short
from fedtrees.core.messages import Message
from fedtrees.core.wire import decode, encode
from fedtrees.messages import captured as captured  # defines the message types to decode

VERSION = 1
_MAGIC, _KNOWN = b"FTCAP", b"FTCAP%02d\n" % VERSION
_FRAME, _LENGTH = struct.Struct("<II"), struct.Struct("<I")
#: Largest size of a frame in bytes, so that a damaged length cannot exhaust the memory.
MOST_BYTES = 64 << 20
# Fields of a run that the file stores as text.
_RUN_FIELDS = ("framework", "version", "wire", "started")


@dataclass(frozen=True)
class Run:
    """One captured run.

    Attributes
    ----------
    framework, version : str
        The package that trained, and its version if it is known.
    wire : str
        Key of the decoder in `fedtrees.capture.formats.WIRES`. Empty if the messages are decoded
        already.
    started : str
        Start time (ISO 8601, UTC).
    details : mapping of str to object
        Further information that was known before the run, for example the parameters of the job.
    """

    framework: str
    version: str = ""
    wire: str = ""
    started: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(package: str, wire: str, details: Mapping[str, Any] | None = None) -> Run:
        """Return a run that starts now, with the version of the package that is installed here.

        `package` is the framework's package, `wire` the key of the decoder, and the last argument
        contains further information that is known before the run.
        """
        try:
            installed = version(package)
        except PackageNotFoundError:
            installed = ""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Run(package, installed, wire, now, details or {})


@dataclass(frozen=True, eq=False)
class Record:
    """One message with its sender and receivers, in the order of the capture."""

    run: int  # number of the run, from 0 in the order of the file
    order: int  # position in the run, from 0
    sender: str  # empty if it is not known before the bytes are decoded
    receivers: tuple[str, ...]
    message: Message
    why: str = ""


class Writer:
    """Appends a run to a capture, message by message. Several threads may write.

    Raises `DataError` if the file cannot be written, or is not a capture.
    """

    def __init__(self, path: str | Path, run: Run) -> None:
        self._path, self._lock, self.written = Path(path), threading.Lock(), 0
        try:
            # The capture contains data of all parties. Only the user may read it.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            self._file = os.open(path, flags, 0o600)
            begun = os.pread(self._file, len(_KNOWN), 0)
            if not begun:
                os.fchmod(self._file, 0o600)
                self._append(_KNOWN)
            elif begun != _KNOWN:
                _check_magic(begun, path)
        except OSError as err:
            raise DataError(f"cannot write {path}: {err.strerror or err}; give permission") from err
        facts = {name: getattr(run, name) for name in _RUN_FIELDS}
        # The file calls the details "told".
        self._frame({"run": facts | {"told": dict(run.details)}}, b"")

    def write(
        self, message: Message, sender: str = "", receivers: tuple[str, ...] = (), why: str = ""
    ) -> None:
        """Append one message.

        Parameters
        ----------
        message : Message
            The message.
        sender : str
            The party that sent it, empty if it is not known yet.
        receivers : tuple of str
            The parties that received it.
        why : str
            Purpose of the message, for reports.
        """
        # Threads of several connections write, and their frames must not overlap.
        with self._lock:
            self._frame({"from": sender, "to": receivers, "why": why}, encode(message))
            self.written += 1

    def _frame(self, header: Mapping[str, Any], body: bytes) -> None:
        """Append a frame with a header and the bytes of a message."""
        text = json.dumps(header, separators=(",", ":")).encode()
        rest = _LENGTH.pack(len(text)) + text + body
        self._append(_FRAME.pack(len(rest), zlib.crc32(rest)) + rest)

    def _append(self, blob: bytes) -> None:
        """Write all bytes. Raises `DataError` if the disk refuses them."""
        left = memoryview(blob)
        try:
            # `os.write` may write only a part of the bytes.
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as err:
            raise DataError(f"cannot write {self._path}: {err.strerror or err}") from err

    def close(self) -> None:
        """Flush the capture to the disk and close it."""
        os.fsync(self._file)
        os.close(self._file)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Capture:
    """A capture that is read frame by frame.

    Parameters
    ----------
    path : str or Path
        The file.
    run : int, optional
        Number of the run to read. It is required if the capture contains several runs.

    Attributes
    ----------
    cut : int
        Number of bytes at the end that are not a complete frame, because the writer was killed.

    Raises
    ------
    DataError
        If the file cannot be read, is not a capture, or has another version.
    UsageError
        If it contains several runs and none is selected, or the selected run does not exist.
    """

    def __init__(self, path: str | Path, run: int | None = None) -> None:
        self.path, self.cut = Path(path), 0
        self.runs: list[Run] = [item for _, item in self._frames() if isinstance(item, Run)]
        if not self.runs:
            raise DataError(
                f"{path}: the capture is cut off before its first run; capture it again"
            )
        if run is None and len(self.runs) > 1:
            named = ", ".join(
                f"{i}: {r.framework} {r.started}" for i, r in enumerate(self.runs[:9])
            )
            raise UsageError(
                f"{path} contains {len(self.runs)} runs ({named}); choose one: --run 0"
            )
        self.run = 0 if run is None else run
        if not 0 <= self.run < len(self.runs):
            raise UsageError(f"--run {run}: {path} has the runs 0 to {len(self.runs) - 1}")

    @property
    def run_facts(self) -> Run:
        """Information about the run that is read."""
        return self.runs[self.run]

    def __iter__(self) -> Iterator[Record]:
        """Yield the records of the run.

        Raises `DataError` at the first damaged frame.
        """
        run, order = -1, 0
        for at, item in self._frames():
            if isinstance(item, Run):
                run, order = run + 1, 0
                continue
            if run != self.run:
                continue
            header, body = item
            try:
                message = decode(body)
                to = tuple(map(str, header["to"]))
                yield Record(run, order, str(header["from"]), to, message, str(header["why"]))
            except (DataError, KeyError, TypeError) as err:
                raise self._garbled(at, short(err, 120)) from err
            order += 1

    def _frames(self) -> Iterator[tuple[int, Run | tuple[Mapping[str, Any], bytes]]]:
        """Yield the frames of all runs with their positions in the file."""
        try:
            with self.path.open("rb") as file:
                _check_magic(file.read(len(_KNOWN)), self.path)
                begun = False
                while head := file.read(_FRAME.size):
                    at = file.tell() - len(head)
                    length, check = _FRAME.unpack(head) if len(head) == _FRAME.size else (0, 0)
                    if length > MOST_BYTES:
                        raise self._garbled(at, f"a frame of {length:,} bytes")
                    rest = file.read(length)
                    # An incomplete frame at the end is not an error, because the writer may have
                    # been killed. A wrong checksum is one.
                    if len(head) < _FRAME.size or len(rest) < length:
                        self.cut = len(head) + len(rest)
                        return
                    if zlib.crc32(rest) != check:
                        raise self._garbled(at, "its checksum is another")
                    item = self._item(at, rest)
                    if not begun and not isinstance(item, Run):
                        raise self._garbled(at, "no run has begun")
                    begun = True
                    yield at, item
        except OSError as err:
            raise DataError(f"cannot read {self.path}: {err.strerror or err}") from err

    def _item(self, at: int, payload: bytes) -> Run | tuple[Mapping[str, Any], bytes]:
        """Return the contents of a frame: a run, or the header and bytes of a message."""
        try:
            (size,) = _LENGTH.unpack_from(payload)
            header = json.loads(payload[_LENGTH.size : _LENGTH.size + size])
            if "run" not in header:
                return header, payload[_LENGTH.size + size :]
            facts = header["run"]
            values = {name: str(facts[name]) for name in _RUN_FIELDS}
            return Run(**values, details=dict(facts["told"]))
        except (ValueError, KeyError, TypeError, RecursionError, struct.error) as err:
            raise self._garbled(at, f"no header ({type(err).__name__})") from err

    def _garbled(self, at: int, why: str) -> DataError:
        return DataError(
            f"{self.path}: garbled at byte {at:,}: {why}; the bytes before are complete, and "
            f"`head -c {at}` keeps them"
        )


def _check_magic(begun: bytes, path: str | Path) -> None:
    """Raise `DataError` if the first bytes are not those of a capture of this version."""
    if begun == _KNOWN:
        return
    if begun[: len(_MAGIC)] == _MAGIC and len(begun) == len(_KNOWN):
        version = begun[len(_MAGIC) :].decode("ascii", "replace").strip()
        raise DataError(f"{path}: a capture of version {version}; this release reads {VERSION}")
    raise DataError(f"{path} is no capture: it starts with {begun[:8]!r}")
