"""A job as it travels: with the tables and the finished cells that it reads. No engine here."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedtrees.bench.cells import AdversaryCell, AttackCell, BlindCell, Cell, Provenance, Setting
from fedtrees.bench.engine import Lost, Processes, Results
from fedtrees.bench.runner import Job, Runner
from fedtrees.core.errors import StoreError
from fedtrees.core.files import write_whole
from fedtrees.data.sources import SOURCES, data_directory

#: In a node's folder for temporary files; what is older than a day in it was left by the killed.
PREFIX = "fedtrees-job-"
_TABLES = "fedtrees-tables-"
_DAY = 86400.0


@dataclass(frozen=True)
class Bundle:
    """A job, what it reads, and the driver's own versions.

    `cells`: Finished cells that it reads, sealed, by id.
    `stamp`: `Provenance.stamp` of the driver.
    """

    job: Job
    runner: Runner
    cells: Mapping[str, bytes]
    stamp: Mapping[str, Any]


@dataclass(frozen=True)
class Done:
    """What came of a job: its results, or why it has none; and every cell that it finished."""

    results: Results | Lost | str
    cells: Mapping[str, bytes]


def tables_of(runner: Runner, settings: Sequence[Setting]) -> dict[str, bytes]:
    """Return the files that a plan reads, by the path that the driver has them at: plugins, too."""
    found = {path: Path(path).read_bytes() for path in runner.plugins}
    for ref in dict.fromkeys(s.data for s in settings):
        found |= {path: Path(path).read_bytes() for path in ref.files}
    folder = data_directory(runner.data_dir)
    for source in SOURCES.values():
        path = folder / source.filename
        names = {s.data.name.partition("[")[0] for s in settings if not s.data.csv}
        if names & {n for n, other in SOURCES.items() if other is source} and path.is_file():
            found[f"data/{source.filename}"] = path.read_bytes()
    return found


def reads(job: Job, provenance: Provenance) -> Iterator[str]:
    """Yield the ids of the cells that a job reads or writes."""
    yield from (cell.key(provenance) for cell in job.cells)
    for cell in job.cells:
        if isinstance(cell, AttackCell):
            yield BlindCell(cell.setting, cell.threat).key(provenance)
            yield AdversaryCell(cell.setting, cell.train, cell.threat).key(provenance)


def bundle_of(job: Job, runner: Runner) -> Bundle:
    """Return a job with the finished cells that it reads."""
    found = {}
    for key in dict.fromkeys(reads(job, runner.provenance)):
        if runner.store.read(key) is not None:
            found[key] = (runner.store.cells / f"{key}.json").read_bytes()
    return Bundle(job, runner, found, runner.provenance.stamp)


def accept(done: Done, job: Job, runner: Runner) -> None:
    """Write the cells of a job that came back sealed, and no others.

    Raises `StoreError` if one is not what was written there.
    """
    mine = {cell.key(runner.provenance) for cell in job.cells}
    for key, content in done.cells.items():
        if key in mine:
            write_whole(runner.store.cells / f"{key}.json", content, private=True)
            if runner.store.read(key) is None:
                raise StoreError(f"cell {key} came back damaged; run again with --resume")


def apart(runner: Runner, job: Job) -> Results | Lost:
    """Do a job in a process of its own, with threads and limits that hold."""
    processes = Processes(runner)
    try:
        return processes.next([processes.submit(job)])[1]
    finally:
        processes.close()


def work(
    bundle: Bundle,
    tables: Mapping[str, bytes],
    does: Callable[[Runner, Job], Results | Lost] = apart,
) -> Done:
    """Do a job on a node, in a folder that nobody else reads.

    A node of other versions does nothing, and says what differs.
    """
    own = bundle.runner.provenance.stamp
    differs = [name for name, value in bundle.stamp.items() if own[name] != value]
    if differs:
        told = "; ".join(f"{n}: {own[n]}, not {bundle.stamp[n]}" for n in differs)
        return Done(f"a node of {os.uname().nodename} runs other versions ({told})", {})
    _sweep()
    places = {path: _placed(path, content) for path, content in tables.items()}
    with tempfile.TemporaryDirectory(prefix=PREFIX) as made:
        runner, job = _here(bundle, places, Path(made))
        cells = runner.store.cells
        cells.mkdir(mode=0o700)
        for key, content in bundle.cells.items():
            write_whole(cells / f"{key}.json", content, private=True)
        results = does(runner, job)
        mine = {cell.key(runner.provenance) for cell in job.cells}
        kept = {key: cells / f"{key}.json" for key in mine}
        return Done(results, {k: p.read_bytes() for k, p in kept.items() if p.is_file()})


def _placed(path: str, content: bytes) -> Path:
    """Return where a file lies on this node, by its content; what was planted is replaced."""
    digest = hashlib.sha256(content).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"{_TABLES}{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise StoreError(f"{folder} is somebody else's; remove it")
    folder.chmod(0o700)
    own = folder / digest
    own.mkdir(mode=0o700, exist_ok=True)
    at = own / Path(path).name
    if not at.is_file() or hashlib.sha256(at.read_bytes()).hexdigest() != digest:
        write_whole(at, content, private=True)
    return at


def _here(bundle: Bundle, places: Mapping[str, Path], folder: Path) -> tuple[Runner, Job]:
    """Return runner and job with the paths of this node."""
    old = bundle.runner
    data = folder / "data"
    data.mkdir(mode=0o700)
    for path, at in places.items():
        if path.startswith("data/"):
            (data / at.name).symlink_to(at)
    moved: dict[Any, Any] = {}
    for ref in old.provenance.digests:
        files = [str(places.get(path, path)) for path in ref.files]
        moved[ref] = replace(ref, csv=",".join(files)) if files else ref
    digests = {moved[ref]: digest for ref, digest in old.provenance.digests.items()}
    runner = replace(
        old,
        folder=folder,
        provenance=replace(old.provenance, digests=digests),
        data_dir=str(data) if any(data.iterdir()) else None,
        plugins=tuple(str(places[path]) for path in old.plugins),
    )
    return runner, replace(bundle.job, cells=tuple(_moved(c, moved) for c in bundle.job.cells))


def _moved(cell: Cell, moved: Mapping[Any, Any]) -> Cell:
    found = replace(cell, setting=replace(cell.setting, data=moved[cell.setting.data]))
    if isinstance(found, (AttackCell, AdversaryCell)):
        found = replace(found, train=_moved(found.train, moved))  # type: ignore[arg-type]
    return found


def _sweep() -> None:
    """Remove folders of jobs whose worker was killed."""
    import time

    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if path.stat().st_uid == os.getuid() and time.time() - path.stat().st_mtime > _DAY:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
