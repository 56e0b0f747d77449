"""Kill a benchmark, or fill its disk, and compare its rows with those of an undisturbed run.

``python tests/bench/kills.py --kills 120 --disks 6`` kills the driver of a benchmark, a worker, the
attack process or all of them, after a random time or a random number of files, and resumes the run
until it is complete. In further runs the disk fills up or is read-only for a while. Moments and
victims follow from ``--seed``, but how far a run has got by then does not.
"""

import argparse
import ctypes
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from result_rows import read_rows

from fedtrees.core.errors import StoreError, UsageError
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.session import BenchSession, read_suite_of_run
from fedtrees.experiments.suite import Suite
from fedtrees.report.results import load_rows

SUITE = """
name = "killed"
seeds = [{seeds}]
[[grid]]
data = ["wine"]
protocols = ["fedtree-hist[trees=2,max_depth=2,max_bin=8]"]
defenses = ["laplace-hist[epsilon=8]"]
attacks = ["random-leaf"]
"""
LONGEST = 600.0  # seconds until a bench that does not end is one that hangs
PROMPT = 30.0  # seconds within which the processes that a killed driver leaves behind must end
MOST = 6  # kills of one run
FAILED, REFUSED = 1, 3  # exit statuses: any error, and one of the store's


def bench(folder, seeds, workers=1):
    """Make the bench of a folder."""
    text = SUITE.format(seeds=", ".join(map(str, range(seeds))))
    return BenchSession(Suite.parse(text, "killed"), folder, workers)


def start_bench(folder, seeds, workers=1, prepare=lambda: None):
    """Start or resume a benchmark in a forked process; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        prepare()
        run = bench(folder, seeds, workers)
        run.open(resume=True)
        run.run()
        status = 0
    except StoreError:
        status = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def exit_status_of(pid, patience=LONGEST):
    """Return the exit status of a child process, or None if it runs longer than `patience`."""
    limit = time.monotonic() + patience
    while not (waited := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() >= limit:
            return None
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(waited[1])


def command_of(pid):
    """Return the command line of a process, or an empty one if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants_of(pid):
    """Return all descendants of a process with their command lines."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry.name))
    descendants, unvisited = [], [pid]
    while unvisited:
        direct_children = children.get(unvisited.pop(), [])
        descendants, unvisited = descendants + direct_children, unvisited + direct_children
    return {child: command_of(child) for child in descendants}


def kill(pid, rng):
    """Kill the driver, one of its descendants, or all of them; return which."""
    descendants = descendants_of(pid)
    kinds = {"driver": [pid], "all": [pid, *descendants]}
    for name, fragment in (("worker", b"popen_loky"), ("attacks", b"fedtrees.isolation")):
        if processes := [
            process for process, command in descendants.items() if fragment in command
        ]:
            kinds[name] = [int(rng.choice(processes))]
    target = str(rng.choice(list(kinds)))
    for victim in kinds[target]:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return target


def wait(folder, rng, length):
    """Wait for a random share of a run's time, or until a random number of files was written."""
    if rng.random() < 0.5:
        time.sleep(rng.random() * length)
        return
    n_writes, limit, previous_times = int(rng.integers(1, 60)), time.monotonic() + length, None
    while n_writes and time.monotonic() < limit:
        times = [
            path.stat().st_mtime_ns if path.exists() else 0 for path in (folder, folder / "cells")
        ]
        n_writes -= times != previous_times
        previous_times = times
        time.sleep(0.0005)
    time.sleep(rng.random() * 0.003)


def rows_of(folder):
    """Return the rows of a run without run names and times."""
    rows = [row for row in read_rows(folder) if row["metric"] != "cpu_seconds"]
    return [
        {key: value for key, value in row.items() if key not in ("run", "seconds")} for row in rows
    ]


class Study:
    """Disturbed benchmarks, counts of the disturbances, and the deviations that were noticed."""

    def __init__(self, folder, seeds, workers):
        self.folder, self.seeds, self.workers = folder, seeds, workers
        self.deviations, self.count, self.length = [], Counter(), {}
        for setting in bench(folder, seeds).plan.federation_configs:
            federation_of(
                setting, None
            )  # Loading a data set once before is not part of the measured time.
        for n_workers in range(1, workers + 1):
            began = time.monotonic()
            assert exit_status_of(start_bench(folder / f"whole-{n_workers}", seeds, n_workers)) == 0
            self.length[n_workers] = time.monotonic() - began
        self.expected = rows_of(folder / "whole-1")

    def cells(self, run):
        """Return the contents of the finished cells of a run by file name."""
        store = bench(run, self.seeds).store
        paths = [p for p in (run / "cells").glob("*.json") if store.read(p.stem)]
        return {p.name: p.read_bytes() for p in paths if store.read(p.stem)["status"] == "ok"}

    def inspect(self, run):
        """Record the errors of a reader of a disturbed run; return the finished cells."""
        try:
            read_suite_of_run(run)
            if (run / "rows.csv").exists():
                load_rows(run)
        except UsageError:
            self.count["before there was a run"] += 1
        except StoreError as error:
            self.deviations.append(f"{run.name}: {error}")
        self.count["in the middle of a file"] += any(run.glob("**/.*.partial"))
        return self.cells(run)

    def check(self, run, kept_cells):
        """Record how a finished run differs from the undisturbed one."""
        rows, finished = rows_of(run), self.cells(run)
        deviations = [f"{len(rows)} rows for {len(self.expected)}"] * (rows != self.expected)
        deviations += [
            f"{name} was made again"
            for name in kept_cells
            if finished.get(name) != kept_cells[name]
        ]
        deviations += [
            f"{path.name} is left" for path in run.glob("cells/*") if path.name not in finished
        ]
        deviations += [f"{path.name} is left" for path in run.glob(".*.partial")]
        deviations += ["something remains"] * any(bench(run, self.seeds).remaining())
        self.deviations += [f"{run.name}: {deviation}" for deviation in deviations]
        self.count["rows"] += len(rows)
        self.count["runs"] += 1

    def kill_and_resume(self, number, rng, kills):
        """Kill one run at most `kills` times and resume it until it ends; count the kills."""
        run, workers = self.folder / f"killed-{number}", int(rng.integers(self.workers)) + 1
        kills_at_start, kept_cells, descendants, status = kills, {}, {}, -signal.SIGKILL
        while status == -signal.SIGKILL:
            pid, status = start_bench(run, self.seeds, workers), None
            while kills and status is None:
                wait(run, rng, self.length[workers])
                descendants |= descendants_of(pid)
                if (status := exit_status_of(pid, 0)) is None:
                    target = kill(pid, rng)
                    self.count[target] += 1
                    kills -= 1
                    status = exit_status_of(pid) if target in ("driver", "all") else None
            status = exit_status_of(pid) if status is None else status
            kept_cells = self.inspect(run) | kept_cells
        # A cell whose process was killed twice has failed.
        if status != 0 or exit_status_of(start_bench(run, self.seeds)) != 0:
            self.deviations.append(f"{run.name}: ended with {status}")
        else:
            self.check(run, kept_cells)
        limit = time.monotonic() + PROMPT
        while still_running := [
            process
            for process, command in descendants.items()
            if command and command_of(process) == command
        ]:
            if time.monotonic() > limit:
                self.deviations += [
                    f"{run.name}: {descendants[process]} runs on" for process in still_running
                ]
                break
            time.sleep(0.1)
        shutil.rmtree(run)
        return kills_at_start - kills

    def limit_file_size(self, number, rng):
        """Limit the length of files, and triple the limit until the run ends."""
        run, kept_cells, status = self.folder / f"short-{number}", {}, REFUSED
        size = int(rng.integers(200, 2000))
        while status == REFUSED and size < 1 << 30:
            set_limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
            status = exit_status_of(start_bench(run, self.seeds, prepare=set_limit))
            self.count["files too long"] += status == REFUSED
            kept_cells, size = self.inspect(run) | kept_cells, 3 * size
        self.deviations += [f"{run.name}: ended with {status}"] * (status != 0)
        self.check(run, kept_cells)

    def fill_disk(self, number, rng):
        """Run on a small disk that fills up and is read-only in between, and triple its size."""
        mount_point = self.folder / f"disk-{number}"
        mount_point.mkdir()
        run, kept_cells, status, size = (
            mount_point / "run",
            {},
            REFUSED,
            int(rng.integers(8, 100)) << 10,
        )
        if not _mounted(mount_point, size):
            self.count["no disk"] += 1
            return
        try:
            while status == REFUSED:
                status = exit_status_of(start_bench(run, self.seeds))
                self.count["disk full"] += status == REFUSED
                kept_cells, size = self.inspect(run) | kept_cells, 3 * size
                _mounted(mount_point, size, "ro")
                refused = exit_status_of(start_bench(run, self.seeds)) == REFUSED
                self.count["disk read-only"] += refused
                self.deviations += [f"{run}: a read-only disk was taken"] * (not refused)
                _mounted(mount_point, size, "rw")
            self.deviations += [f"{run}: ended with {status}"] * (status != 0)
            self.check(run, kept_cells)
        finally:
            ctypes.CDLL(None).umount2(str(mount_point).encode(), 2)


def _mounted(mount_point, size, remount_as=""):
    """Mount a disk of `size` bytes that only this process sees; return whether it worked."""
    libc, flags = (
        ctypes.CDLL(None),
        {"": 0, "rw": 32, "ro": 33}[remount_as],
    )  # MS_REMOUNT, MS_RDONLY
    target, data = str(mount_point).encode(), f"size={size}".encode()
    if not remount_as and libc.unshare(0x20000):  # CLONE_NEWNS
        return False
    libc.mount(b"none", b"/", None, 0x44000, None)  # MS_PRIVATE, MS_REC
    return libc.mount(b"tmpfs", target, b"tmpfs", flags, data) == 0


def main():
    """Run the disturbances of the command line; the exit status is the number of deviations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=0, help="how often something is killed")
    parser.add_argument("--disks", type=int, default=0, help="runs that have too little disk")
    parser.add_argument("--workers", type=int, default=2, help="processes of a run, at most")
    parser.add_argument("--seeds", type=int, default=2, help="how long a run is")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, kills_left, number = np.random.default_rng(arguments.seed), arguments.kills, 0
    with TemporaryDirectory() as name:
        study = Study(Path(name), arguments.seeds, arguments.workers)
        while kills_left:
            kills_left -= study.kill_and_resume(number, rng, min(kills_left, MOST))
            number += 1
        for disk in range(arguments.disks):
            study.limit_file_size(disk, rng)
            study.fill_disk(disk, rng)
    for deviation in study.deviations:
        print(deviation)
    print(", ".join(f"{event}: {count}" for event, count in sorted(study.count.items())))
    cpu = sum(os.times()[:4])
    print(f"{arguments.kills} kills, {len(study.deviations)} went wrong; {cpu:.0f} s CPU")
    return min(len(study.deviations), 100)


if __name__ == "__main__":
    sys.exit(main())
