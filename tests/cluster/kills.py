"""`python tests/cluster/kills.py --losses 20`: a cluster loses workers and nodes during a run.

A grid runs on two nodes of this machine. At random intervals, a worker or a node is killed or
stopped, or the driver is interrupted and resumes. Cells that failed because they were lost twice
run without Ray at the end. No row may be missing, and all rows must equal those of a run without
Ray. The grid runs again until the given number of losses is reached.
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
    """Return the rows of a run without run names and times."""
    rows = read_records(bench.folder)
    is_time = rows["metric"].astype(str).str.contains("seconds")
    return rows[~is_time].drop(columns=["run", "seconds"], errors="ignore").reset_index(drop=True)


def task_processes():
    """Return the processes that work on a task, which have its name in Ray."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if command_line.startswith(b"ray::work") and state != "T":
            pids.append(int(pid))
    return pids


class Losing(threading.Thread):
    """Repeatedly lose a part of a cluster while a grid runs there.

    `most` is the maximum number of losses, after which the grid can finish. `lost` lists the losses
    so far.
    """

    def __init__(self, cluster, rng, gap, most, ways):
        super().__init__(daemon=True)
        self.cluster, self.rng, self.gap, self.most, self.ways = cluster, rng, gap, most, ways
        self.lost, self.is_over, self.stopped = [], threading.Event(), []
        self.node = self.add_node()

    def add_node(self):
        """Return a new node; on a busy machine some nodes do not start in time."""
        while True:
            try:
                return self.cluster.add_node(num_cpus=1)
            except Exception as error:  # of the engine
                print(f"   no node: {error}", flush=True)

    def run(self):
        """Cause losses until the run is over."""
        while len(self.lost) < self.most and not self.is_over.wait(self.rng.uniform(0, self.gap)):
            while not (pids := task_processes()):
                if self.is_over.wait(0.2):
                    return
            self.lose(self.ways[len(self.lost) % len(self.ways)], pids)

    def lose(self, way, pids):
        """Lose a worker or the second node, or interrupt the driver."""
        self.lost.append(way)
        print(f"   {way}", flush=True)
        if way.startswith("worker"):
            pid = self.rng.choice(pids)
            os.kill(pid, signal.SIGKILL if way == "worker killed" else signal.SIGSTOP)
            self.stopped += [pid] * (way == "worker stopped")
        elif way == "node killed":
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = self.add_node()
        elif way == "node stopped":
            raylet = self.node.all_processes["raylet"][0].process.pid
            os.kill(raylet, signal.SIGSTOP)
            self.stopped.append(raylet)
            self.node = self.add_node()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    def end(self):
        """Cause no further losses, and kill the stopped processes."""
        self.is_over.set()
        self.join()
        for pid in self.stopped:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def run_on_ray(bench, port):
    """Run a benchmark on a cluster, and resume it when it is interrupted; return the counts."""
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
    arguments = parser.parse_args()
    ways = [way for way in WAYS if arguments.limit or way != "worker stopped"]
    rng, n_bad, n_lost = random.Random(arguments.seed), 0, 0
    with tempfile.TemporaryDirectory() as folder_name:
        folder, suite = Path(arguments.out or folder_name), Suite.load(arguments.suite)
        local_bench = BenchSession(suite, folder / "here", workers=2)
        local_bench.open(resume=True)
        start = time.monotonic()
        local_bench.run()
        expected = rows_of(local_bench)
        seconds = time.monotonic() - start
        print(f"{len(expected):,} rows; {seconds:.0f} s without Ray", flush=True)
        head_options = {"num_cpus": 1, "include_dashboard": False}
        # A thread that adds nodes must not set signal handlers.
        cluster = Cluster(initialize_head=True, head_node_args=head_options, shutdown_at_exit=False)
        number = 0
        try:
            while n_lost < arguments.losses:
                number += 1
                ray_bench = BenchSession(
                    replace(suite, time_limit=arguments.limit), folder / f"run-{number}", workers=2
                )
                ray_bench.open(resume=True)
                losing = Losing(cluster, rng, arguments.gap, arguments.losses - n_lost, ways)
                start = time.monotonic()
                losing.start()
                counts = run_on_ray(ray_bench, cluster.address.rpartition(":")[2])
                losing.end()
                cluster.remove_node(losing.node, allow_graceful=False)
                n_repeated = BenchSession(suite, ray_bench.folder, workers=2).run().total()
                rows, seconds = rows_of(ray_bench), time.monotonic() - start
                is_equal = rows.equals(expected)
                n_bad, n_lost = n_bad + (not is_equal), n_lost + len(losing.lost)
                summary = (
                    f"{number}: {len(losing.lost)} lost, {dict(counts)} cells, "
                    f"{n_repeated} again without Ray"
                )
                is_so = "equal" if is_equal else "WRONG"
                print(f"{summary}, {len(rows):,} rows in {seconds:.0f} s: {is_so}", flush=True)
        finally:
            cluster.shutdown()
    print(f"{n_lost} lost in {number} runs, {n_bad} went wrong")
    return n_bad != 0


if __name__ == "__main__":
    raise SystemExit(main())
