"""The file of a capture: what crossed, in order, each with where it is from.

After eight bytes that tell the version come frames: length and CRC-32 of the rest (uint32, little
endian), length of a JSON header, the header, and a message in the transcript's own encoding
(`fedtrees.core.codec`). A frame without a message begins a run. Frames are appended and never
changed: whoever is killed loses at most the last one.
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

from fedtrees.core.codec import decode, encode
from fedtrees.core.errors import DataError, UsageError, short
from fedtrees.core.messages import Message
from fedtrees.messages import captured as captured  # whose types are read here

VERSION = 1
_MAGIC, _KNOWN = b"FTCAP", b"FTCAP%02d\n" % VERSION
_FRAME, _LENGTH = struct.Struct("<II"), struct.Struct("<I")
#: Bytes of a frame at most, so that a garbled length takes no memory.
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Run:
    """One run that was captured.

    `framework, version`: What trained, as far as it is known. `wire`: Whose bytes these are, as the
    decoders are named; empty: messages that are decoded already.
    """

    framework: str
    version: str = ""
    wire: str = ""
    started: str = ""  # ISO 8601, UTC
    told: Mapping[str, Any] = field(default_factory=dict)  # what else was known beforehand

    @staticmethod
    def of(package: str, wire: str, told: Mapping[str, Any] | None = None) -> Run:
        """Return a run that starts now, of what is installed here."""
        try:
            installed = version(package)
        except PackageNotFoundError:
            installed = ""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Run(package, installed, wire, now, told or {})


@dataclass(frozen=True, eq=False)
class Record:
    """One crossing, in the order in which it was captured."""

    run: int  # from 0, in the order in the file
    order: int  # from 0, in its run
    sender: str  # empty: not known before the bytes are decoded
    receivers: tuple[str, ...]
    message: Message
    why: str = ""


class Writer:
    """Appends a run to a capture, message by message; several threads may write.

    Raises `DataError` if the file cannot be written, or is no capture.
    """

    def __init__(self, path: str | Path, run: Run) -> None:
        self._path, self._lock, self.written = Path(path), threading.Lock(), 0
        try:
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
        self._frame({"run": vars(run) | {"told": dict(run.told)}}, b"")

    def write(
        self, message: Message, sender: str = "", receivers: tuple[str, ...] = (), why: str = ""
    ) -> None:
        """Append one crossing."""
        with self._lock:
            self._frame({"from": sender, "to": receivers, "why": why}, encode(message))
            self.written += 1

    def _frame(self, header: Mapping[str, Any], body: bytes) -> None:
        text = json.dumps(header, separators=(",", ":")).encode()
        rest = _LENGTH.pack(len(text)) + text + body
        self._append(_FRAME.pack(len(rest), zlib.crc32(rest)) + rest)

    def _append(self, blob: bytes) -> None:
        left = memoryview(blob)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as err:
            raise DataError(f"cannot write {self._path}: {err.strerror or err}") from err

    def close(self) -> None:
        """Flush to disk; nothing can be written afterwards."""
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

    Raises `DataError` if it cannot be read, is no capture, or of another version; `UsageError` if
    it has several runs and none is named.

    `run`: The one that is read.
    `cut`: int. Bytes at the end that are no whole frame: whoever wrote it was killed.
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
            raise UsageError(f"{path} holds {len(self.runs)} runs ({named}); name one: --run 0")
        self.run = 0 if run is None else run
        if not 0 <= self.run < len(self.runs):
            raise UsageError(f"--run {run}: {path} has the runs 0 to {len(self.runs) - 1}")

    @property
    def told(self) -> Run:
        """What is known of the run that is read."""
        return self.runs[self.run]

    def __iter__(self) -> Iterator[Record]:
        """Yield the crossings of the run.

        Raises `DataError` at what is garbled.
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

    def _item(self, at: int, rest: bytes) -> Run | tuple[Mapping[str, Any], bytes]:
        try:
            (size,) = _LENGTH.unpack_from(rest)
            header = json.loads(rest[_LENGTH.size : _LENGTH.size + size])
            if "run" not in header:
                return header, rest[_LENGTH.size + size :]
            told = {
                name: header["run"][name] for name in ("framework", "version", "wire", "started")
            }
            return Run(**{k: str(v) for k, v in told.items()}, told=dict(header["run"]["told"]))
        except (ValueError, KeyError, TypeError, RecursionError, struct.error) as err:
            raise self._garbled(at, f"no header ({type(err).__name__})") from err

    def _garbled(self, at: int, why: str) -> DataError:
        return DataError(
            f"{self.path}: garbled at byte {at:,}: {why}; what precedes is whole, and "
            f"`head -c {at}` keeps it"
        )


def _check_magic(begun: bytes, path: str | Path) -> None:
    if begun == _KNOWN:
        return
    if begun[: len(_MAGIC)] == _MAGIC and len(begun) == len(_KNOWN):
        version = begun[len(_MAGIC) :].decode("ascii", "replace").strip()
        raise DataError(f"{path}: a capture of version {version}; this release reads {VERSION}")
    raise DataError(f"{path} is no capture: it starts with {begun[:8]!r}")
