"""A bench that is killed, or runs out of disk, ends in the rows of one that nobody disturbed.

``python tests/bench/kills.py --kills 120 --disks 6`` kills the driver of a bench, a worker, the
process of attacks or all of them, after a random time or a random number of files, and resumes
until it is done; then the disk fills up, or can only be read, on the way. Moments and victims
follow from ``--seed``; how far a run is by then does not.
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
PROMPT = 30.0  # seconds in which what a killed driver leaves running ends
MOST = 6  # kills of one run
FAILED, REFUSED = 1, 3  # exit statuses: any error, and one of the store's


def bench(folder, seeds, workers=1):
    """Make the bench of a folder."""
    text = SUITE.format(seeds=", ".join(map(str, range(seeds))))
    return BenchSession(Suite.parse(text, "killed"), folder, workers)


def begun(folder, seeds, workers=1, before=lambda: None):
    """Begin or resume a bench in a process of its own, warm as this one; return its id."""
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        before()
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


def ended(pid, patience=LONGEST):
    """Return the exit status of a child; None if it has none yet."""
    limit = time.monotonic() + patience
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() >= limit:
            return None
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(done[1])


def command_of(pid):
    """Return what a process was started as."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def below(pid):
    """Return the processes under one, and what each was started as."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        more = children.get(left.pop(), [])
        found, left = found + more, left + more
    return {child: command_of(child) for child in found}


def kill(pid, rng):
    """Kill the driver, one of its processes, or all; return which."""
    under = below(pid)
    kinds = {"driver": [pid], "all": [pid, *under]}
    for name, part in (("worker", b"popen_loky"), ("attacks", b"fedtrees.isolation")):
        if found := [p for p, command in under.items() if part in command]:
            kinds[name] = [int(rng.choice(found))]
    who = str(rng.choice(list(kinds)))
    for victim in kinds[who]:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return who


def wait(folder, rng, length):
    """Wait for the moment: a share of a run's time, or just after files were written."""
    if rng.random() < 0.5:
        time.sleep(rng.random() * length)
        return
    writes, limit, before = int(rng.integers(1, 60)), time.monotonic() + length, None
    while writes and time.monotonic() < limit:
        now = [p.stat().st_mtime_ns if p.exists() else 0 for p in (folder, folder / "cells")]
        writes -= now != before
        before = now
        time.sleep(0.0005)
    time.sleep(rng.random() * 0.003)


def rows_of(folder):
    """Return all that a run's table says, but how long it took."""
    rows = [r for r in read_rows(folder) if r["metric"] != "cpu_seconds"]
    return [{k: v for k, v in r.items() if k not in ("run", "seconds")} for r in rows]


class Study:
    """Benches, what became of them, and what is wrong with that."""

    def __init__(self, folder, seeds, workers):
        self.folder, self.seeds, self.workers = folder, seeds, workers
        self.found, self.count, self.length = [], Counter(), {}
        for setting in bench(folder, seeds).plan.federation_configs:
            federation_of(setting, None)  # read once: it is no part of a run
        for n in range(1, workers + 1):
            began = time.monotonic()
            assert ended(begun(folder / f"whole-{n}", seeds, n)) == 0
            self.length[n] = time.monotonic() - began
        self.expected = rows_of(folder / "whole-1")

    def cells(self, run):
        """Return the content of the finished cells."""
        store = bench(run, self.seeds).store
        paths = [p for p in (run / "cells").glob("*.json") if store.read(p.stem)]
        return {p.name: p.read_bytes() for p in paths if store.read(p.stem)["status"] == "ok"}

    def look(self, run):
        """Note what a reader of a disturbed run finds amiss; return its finished cells."""
        try:
            read_suite_of_run(run)
            if (run / "rows.csv").exists():
                load_rows(run)
        except UsageError:
            self.count["before there was a run"] += 1
        except StoreError as error:
            self.found.append(f"{run.name}: {error}")
        self.count["in the middle of a file"] += any(run.glob("**/.*.partial"))
        return self.cells(run)

    def check(self, run, kept):
        """Note how a finished run differs from one that nobody disturbed."""
        rows, finished = rows_of(run), self.cells(run)
        wrong = [f"{len(rows)} rows for {len(self.expected)}"] * (rows != self.expected)
        wrong += [f"{name} was made again" for name in kept if finished.get(name) != kept[name]]
        wrong += [f"{p.name} is left" for p in run.glob("cells/*") if p.name not in finished]
        wrong += [f"{p.name} is left" for p in run.glob(".*.partial")]
        wrong += ["something remains"] * any(bench(run, self.seeds).remaining())
        self.found += [f"{run.name}: {what}" for what in wrong]
        self.count["rows"] += len(rows)
        self.count["runs"] += 1

    def killed(self, number, rng, kills):
        """Kill one run, at most so often, and resume it till it is done; return how often."""
        run, workers = self.folder / f"killed-{number}", int(rng.integers(self.workers)) + 1
        most, kept, under, status = kills, {}, {}, -signal.SIGKILL
        while status == -signal.SIGKILL:
            pid, status = begun(run, self.seeds, workers), None
            while kills and status is None:
                wait(run, rng, self.length[workers])
                under |= below(pid)
                if (status := ended(pid, 0)) is None:
                    who = kill(pid, rng)
                    self.count[who] += 1
                    kills -= 1
                    status = ended(pid) if who in ("driver", "all") else None
            status = ended(pid) if status is None else status
            kept = self.look(run) | kept
        if status != 0 or ended(begun(run, self.seeds)) != 0:  # killed twice, a cell has failed
            self.found.append(f"{run.name}: ended with {status}")
        else:
            self.check(run, kept)
        limit = time.monotonic() + PROMPT
        while left := [p for p, command in under.items() if command and command_of(p) == command]:
            if time.monotonic() > limit:
                self.found += [f"{run.name}: {under[p]} runs on" for p in left]
                break
            time.sleep(0.1)
        shutil.rmtree(run)
        return most - kills

    def short(self, number, rng):
        """Let no file be longer than so many bytes, then three times as many, and so on."""
        run, kept, status = self.folder / f"short-{number}", {}, REFUSED
        size = int(rng.integers(200, 2000))
        while status == REFUSED and size < 1 << 30:
            short = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
            status = ended(begun(run, self.seeds, before=short))
            self.count["files too long"] += status == REFUSED
            kept, size = self.look(run) | kept, 3 * size
        self.found += [f"{run.name}: ended with {status}"] * (status != 0)
        self.check(run, kept)

    def full(self, number, rng):
        """Let a disk fill up and be read-only, then larger, and so on, where one can be mounted."""
        where = self.folder / f"disk-{number}"
        where.mkdir()
        run, kept, status, size = where / "run", {}, REFUSED, int(rng.integers(8, 100)) << 10
        if not _mounted(where, size):
            self.count["no disk"] += 1
            return
        try:
            while status == REFUSED:
                status = ended(begun(run, self.seeds))
                self.count["disk full"] += status == REFUSED
                kept, size = self.look(run) | kept, 3 * size
                _mounted(where, size, "ro")
                refused = ended(begun(run, self.seeds)) == REFUSED
                self.count["disk read-only"] += refused
                self.found += [f"{run}: a read-only disk was taken"] * (not refused)
                _mounted(where, size, "rw")
            self.found += [f"{run}: ended with {status}"] * (status != 0)
            self.check(run, kept)
        finally:
            ctypes.CDLL(None).umount2(str(where).encode(), 2)


def _mounted(where, size, again=""):
    """Mount a disk of so many bytes, which no other process sees; tell whether it could be."""
    libc, flags = ctypes.CDLL(None), {"": 0, "rw": 32, "ro": 33}[again]  # MS_REMOUNT, MS_RDONLY
    target, data = str(where).encode(), f"size={size}".encode()
    if not again and libc.unshare(0x20000):  # CLONE_NEWNS
        return False
    libc.mount(b"none", b"/", None, 0x44000, None)  # MS_PRIVATE, MS_REC
    return libc.mount(b"tmpfs", target, b"tmpfs", flags, data) == 0


def main():
    """Run what the command line says; the exit status is the number of findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=0, help="how often something is killed")
    parser.add_argument("--disks", type=int, default=0, help="runs that have too little disk")
    parser.add_argument("--workers", type=int, default=2, help="processes of a run, at most")
    parser.add_argument("--seeds", type=int, default=2, help="how long a run is")
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    rng, left, number = np.random.default_rng(said.seed), said.kills, 0
    with TemporaryDirectory() as name:
        study = Study(Path(name), said.seeds, said.workers)
        while left:
            left -= study.killed(number, rng, min(left, MOST))
            number += 1
        for disk in range(said.disks):
            study.short(disk, rng)
            study.full(disk, rng)
    for one in study.found:
        print(one)
    print(", ".join(f"{what}: {n}" for what, n in sorted(study.count.items())))
    cpu = sum(os.times()[:4])
    print(f"{said.kills} kills, {len(study.found)} went wrong; {cpu:.0f} s CPU")
    return min(len(study.found), 100)


if __name__ == "__main__":
    sys.exit(main())
