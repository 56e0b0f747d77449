"""`python tests/cluster/kills.py --kills 20`: a cluster loses workers and nodes at work.

A grid is run on two nodes of this machine again and again; at a random moment a worker or a node
is killed or stopped, or the driver is interrupted, and what is missing then is run without Ray. No
row may be lost, and all must be those of a run without Ray.
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

import pandas as pd

from fedtrees.bench.session import Bench
from fedtrees.bench.suite import Suite
from fedtrees.cluster.ray_engine import RayEngine

TINY = """
seeds = [0, 1]
[[grid]]
data = ["breast-cancer"]
protocols = ["fedtree-hist[trees=1,max_depth=2]"]
defenses = ["split-only", "laplace-hist[epsilon=8]"]
threats = ["client"]
attacks = ["random-leaf"]
"""


def rows_of(bench):
    """Return the rows of a run, less what is its own."""
    rows = pd.read_csv(bench.folder / "rows.csv")
    timed = rows["metric"].astype(str).str.contains("seconds")
    return rows[~timed].drop(columns=["run", "seconds"], errors="ignore").reset_index(drop=True)


def working():
    """Return the processes that are at a task: Ray calls them by it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::work"):
                found.append(int(pid))
        except OSError:
            continue
    return found


LIMIT = 10.0  # seconds a cell, by which a worker that is stopped is found to hang
WAYS = ("worker killed", "node killed", "worker stopped", "node stopped", "interrupted")


def lose(how, cluster, node, rng, after, told):
    """Lose a process some time after work began; tell which."""
    while not working():
        time.sleep(0.2)
    time.sleep(after)
    if how == "node stopped":
        pid = node.all_processes["raylet"][0].process.pid
        os.kill(pid, signal.SIGSTOP)
        told.append(pid)
    elif how == "node killed":
        told.append(node.all_processes["raylet"][0].process.pid)
        cluster.remove_node(node, allow_graceful=False)
    elif how.startswith("worker"):
        while not (pids := working()):
            time.sleep(0.2)
        told.append(rng.choice(pids))
        os.kill(told[0], signal.SIGKILL if how == "worker killed" else signal.SIGSTOP)
    else:
        told.append(os.getpid())
        os.kill(os.getpid(), signal.SIGINT)


def on_ray(bench, cluster):
    """Run what is missing of a bench on a cluster."""
    port = cluster.address.rpartition(":")[2]
    bench.run(engine=RayEngine(f"ray=127.0.0.1:{port}", bench.runner, bench.plan.settings, 2))


def main():
    """Run the campaign."""
    from ray.cluster_utils import Cluster

    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--suite", help="smoke is the spec's; by default a tiny grid")
    given = parser.parse_args()
    rng, bad = random.Random(given.seed), 0
    head = {"num_cpus": 1, "include_dashboard": False}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        suite = Suite.load(given.suite) if given.suite else Suite.parse(TINY, "tiny.toml")
        here = Bench(suite, folder / "here")
        here.open(resume=False)
        begun = time.monotonic()
        here.run()
        usual, expected = time.monotonic() - begun, rows_of(here)
        print(f"{len(expected):,} rows; {usual:.0f} s without Ray", flush=True)
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for n in range(given.kills):
            node = cluster.add_node(num_cpus=1)
            how, after, told = WAYS[n % len(WAYS)], rng.uniform(0, usual / 2), []
            limit = LIMIT if how == "worker stopped" else suite.time_limit
            there = Bench(replace(suite, time_limit=limit), folder / f"run-{n}", workers=2)
            there.open(resume=False)
            args = how, cluster, node, rng, after, told
            thread = threading.Thread(target=lose, args=args, daemon=True)
            thread.start()
            begun = time.monotonic()
            try:
                on_ray(there, cluster)
            except KeyboardInterrupt:
                there.run()
            took, kept = time.monotonic() - begun, rows_of(there)
            right = kept.equals(expected) and bool(told)
            bad += not right
            print(f"{n}: {how} after {after:.1f} s, {len(kept):,} rows in {took:.0f} s: "
                  f"{'equal' if right else 'WRONG'}{'' if told else ', nothing was lost'}",
                  flush=True)  # fmt: skip
            if how.endswith("stopped") and told:
                os.kill(told[0], signal.SIGKILL)
            if how != "node killed":
                cluster.remove_node(node, allow_graceful=False)
        cluster.shutdown()
    print(f"{given.kills} lost, {bad} went wrong")
    return bad != 0


if __name__ == "__main__":
    raise SystemExit(main())
