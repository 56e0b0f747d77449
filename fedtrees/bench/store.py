"""The run folder: cells that appear whole or not at all, and the tidy table made of them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtrees import __version__
from fedtrees.core.errors import StoreError

try:
    import fcntl
except ImportError:  # not on Windows: there, two runs in one folder may compute a cell twice
    fcntl = None  # type: ignore[assignment]

COLUMNS = (
    "run", "dataset", "partition", "protocol", "protocol_params", "defense", "defense_params",
    "threat", "attack", "attack_params", "seed", "stage", "status", "reason", "metric", "value",
    "unit", "blind", "advantage", "claimed", "spent", "measured", "bytes_up", "bytes_down",
    "rounds", "seconds", "version",
)  # fmt: skip


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to disk, then rename it.

    Raises
    ------
    StoreError
        If the disk is full or the folder cannot be written; nothing partial remains.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
    except OSError as err:
        raise StoreError(
            f"cannot write {path}: {err.strerror or err}; finished cells are safe: make room or "
            "permission, then run again with --resume"
        ) from err
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    """Tell whether a process other than this one has that number."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


class Store:
    """A run folder.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = folder / "cells"

    @property
    def name(self) -> str:
        """Name of the run: its folder's."""
        return self.folder.resolve().name

    def create(self, suite_toml: str, environment: Mapping[str, Any]) -> None:
        """Make the folder and describe the run in it."""
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise StoreError(f"cannot make {self.cells}: {err.strerror or err}") from err
        write_atomically(self.folder / "suite.toml", suite_toml.encode())
        text = json.dumps(dict(environment), indent=2, sort_keys=True)
        write_atomically(self.folder / "environment.json", text.encode())

    def exists(self) -> bool:
        """Tell whether the folder holds a run."""
        return (self.folder / "suite.toml").is_file()

    def check_version(self) -> None:
        """Refuse a run written by another version.

        Raises
        ------
        StoreError
        """
        path = self.folder / "environment.json"
        try:
            found = json.loads(path.read_text()).get("fedtrees")
        except (OSError, ValueError, AttributeError) as err:
            raise StoreError(f"{path} cannot be read ({err}); is {self.folder} a run?") from err
        if found != __version__:
            raise StoreError(
                f"{self.folder} was written by fedtrees {found}, this is {__version__}; results "
                "of two versions are not mixed: choose another --out"
            )

    def read(self, cell_id: str) -> dict[str, Any] | None:
        """Return a finished cell, None if it is missing or was cut off."""
        try:
            cell = json.loads((self.cells / f"{cell_id}.json").read_text())
        except (OSError, ValueError):
            return None
        whole = isinstance(cell, dict) and cell.get("id") == cell_id and cell.get("end") is True
        return cell if whole else None

    @contextlib.contextmanager
    def claim(self, cell_id: str) -> Iterator[None]:
        """Hold a cell while it is computed; whoever else wants it waits.

        Workers may outlive a killed run for a moment, and a second ``--resume`` may share the
        folder. The claim is a lock on one byte of one file: it ends with the process at the latest.
        One process holds one claim at a time.
        """
        if fcntl is None:
            yield
            return
        byte = int(cell_id[:12], 16)
        with (self.folder / ".claims").open("wb") as file:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
            yield

    def sweep(self) -> None:
        """Remove what writers that were killed left behind."""
        for path in self.cells.glob(".*.partial"):
            if not _alive(int(path.suffixes[-2][1:])):
                path.unlink(missing_ok=True)

    def write(self, cell: Mapping[str, Any]) -> None:
        """Write one finished cell."""
        text = json.dumps({**cell, "end": True}, allow_nan=False)
        write_atomically(self.cells / f"{cell['id']}.json", text.encode())

    def write_rows(self, cell_ids: Iterable[str]) -> int:
        """Write ``rows.csv`` from the finished cells, in the given order; return its length."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", extrasaction="raise")
        writer.writeheader()
        count = 0
        for cell_id in dict.fromkeys(cell_ids):
            cell = self.read(cell_id)
            for row in cell["rows"] if cell else ():
                writer.writerow({"run": self.name, **cell["common"], **row, "version": __version__})
                count += 1
        write_atomically(self.folder / "rows.csv", out.getvalue().encode())
        return count
