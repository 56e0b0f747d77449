"""`python tests/cluster/kills.py --losses 20`: a cluster loses workers and nodes at work.

A grid is run on two nodes of this machine. In turn, each a random time after the one before, a
worker or a node is killed or stopped, or the driver is interrupted and resumes. What failed for it
was lost twice is run at last without Ray. No row may be missing, and all must be those of a run
without Ray. The grid is run again until so many were lost.
"""

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from fedtrees.cluster import RayEngine
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.report.results import read_records

WAYS = ("worker killed", "node killed", "worker stopped", "node stopped", "interrupted")


def rows_of(bench):
    """Return the rows of a run, less what is its own."""
    rows = read_records(bench.folder)
    timed = rows["metric"].astype(str).str.contains("seconds")
    return rows[~timed].drop(columns=["run", "seconds"], errors="ignore").reset_index(drop=True)


def working():
    """Return the processes that are at a task: Ray calls them by it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            told = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if told.startswith(b"ray::work") and state != "T":
            found.append(int(pid))
    return found


class Losing(threading.Thread):
    """Loses something of a cluster again and again while a grid is run there.

    `most`: How often; then the grid can come to its end.
    `lost`: What was, so far.
    """

    def __init__(self, cluster, rng, gap, most, ways):
        super().__init__(daemon=True)
        self.cluster, self.rng, self.gap, self.most, self.ways = cluster, rng, gap, most, ways
        self.lost, self.over, self.stopped = [], threading.Event(), []
        self.node = self.added()

    def added(self):
        """Return a new node; on a busy machine some do not start in time."""
        while True:
            try:
                return self.cluster.add_node(num_cpus=1)
            except Exception as err:  # of the engine
                print(f"   no node: {err}", flush=True)

    def run(self):
        """Lose one after another until it is over."""
        while len(self.lost) < self.most and not self.over.wait(self.rng.uniform(0, self.gap)):
            while not (pids := working()):
                if self.over.wait(0.2):
                    return
            self.lose(self.ways[len(self.lost) % len(self.ways)], pids)

    def lose(self, how, pids):
        """Lose a worker, the second node, or the driver's patience."""
        self.lost.append(how)
        print(f"   {how}", flush=True)
        if how.startswith("worker"):
            pid = self.rng.choice(pids)
            os.kill(pid, signal.SIGKILL if how == "worker killed" else signal.SIGSTOP)
            self.stopped += [pid] * (how == "worker stopped")
        elif how == "node killed":
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = self.added()
        elif how == "node stopped":
            raylet = self.node.all_processes["raylet"][0].process.pid
            os.kill(raylet, signal.SIGSTOP)
            self.stopped.append(raylet)
            self.node = self.added()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    def end(self):
        """Lose no more, and end what is stopped."""
        self.over.set()
        self.join()
        for pid in self.stopped:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def on_ray(bench, port):
    """Run a bench on a cluster, and go on where it is interrupted; return what it says of cells."""
    while True:
        try:
            engine = RayEngine(
                f"ray=127.0.0.1:{port}", bench.runner, bench.plan.federation_configs, 2
            )
            return bench.run(engine=engine)
        except KeyboardInterrupt:
            continue


def main():
    """Run the campaign."""
    from ray.cluster_utils import Cluster

    parser = argparse.ArgumentParser()
    parser.add_argument("--losses", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gap", type=float, default=30.0, help="seconds between two, at most")
    parser.add_argument("--suite", default="smoke")
    parser.add_argument("--limit", type=float, default=10.0,
                        help="seconds a cell, by which a stopped worker is found to hang; too few "
                        "for a busy machine, and 0: none is stopped")  # fmt: skip
    parser.add_argument("--out", help="folder of the runs, which go on if they are there")
    given = parser.parse_args()
    ways = [way for way in WAYS if given.limit or way != "worker stopped"]
    rng, bad, lost = random.Random(given.seed), 0, 0
    with tempfile.TemporaryDirectory() as made:
        folder, suite = Path(given.out or made), Suite.load(given.suite)
        here = BenchSession(suite, folder / "here", workers=2)
        here.open(resume=True)
        begun = time.monotonic()
        here.run()
        expected = rows_of(here)
        took = time.monotonic() - begun
        print(f"{len(expected):,} rows; {took:.0f} s without Ray", flush=True)
        head = {"num_cpus": 1, "include_dashboard": False}
        # A thread adds nodes, which sets no handler of signals.
        cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        n = 0
        try:
            while lost < given.losses:
                n += 1
                there = BenchSession(
                    replace(suite, time_limit=given.limit), folder / f"run-{n}", workers=2
                )
                there.open(resume=True)
                losing = Losing(cluster, rng, given.gap, given.losses - lost, ways)
                begun = time.monotonic()
                losing.start()
                counts = on_ray(there, cluster.address.rpartition(":")[2])
                losing.end()
                cluster.remove_node(losing.node, allow_graceful=False)
                again = BenchSession(suite, there.folder, workers=2).run().total()
                kept, took = rows_of(there), time.monotonic() - begun
                right = kept.equals(expected)
                bad, lost = bad + (not right), lost + len(losing.lost)
                told = (
                    f"{n}: {len(losing.lost)} lost, {dict(counts)} cells, {again} again without Ray"
                )
                is_so = "equal" if right else "WRONG"
                print(f"{told}, {len(kept):,} rows in {took:.0f} s: {is_so}", flush=True)
        finally:
            cluster.shutdown()
    print(f"{lost} lost in {n} runs, {bad} went wrong")
    return bad != 0


if __name__ == "__main__":
    raise SystemExit(main())
