"""`python tests/federation/kills.py --kills 24`: parties and servers are lost at work.

Each run of a federation loses one at a random moment, in turn: the process of a site's job or of
the server's, or all that NVFlare runs at a site or as the server; killed, or stopped. Within the
deadline the owner must be told who is lost and the other sites must have stopped, and no model may
be left anywhere. One deployment serves all, so that each run also shows that the losses before it
left it whole.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from fedtrees.cli.federate import summarise_run
from fedtrees.federation.deployment import Deployment, _start, _wait_for, end, job_of, started
from fedtrees.federation.trial import make_trial

DEADLINE = 20.0  # a busy machine's sites do not answer within less
WAYS = [(who, what, signum) for what in ("job", "all") for who in ("site", "server")
        for signum in (signal.SIGKILL, signal.SIGSTOP)]  # fmt: skip


def processes(kit, *, job):
    """Return the process groups that run at a startup kit: its job's, or its NVFlare's."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            told = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
            at_job = "worker_process" in told or "runner_process" in told
            if str(kit) in told and (at_job or not job):
                found.append(int(pid))
    return found


class Losing:
    """Loses processes a random time after the parties of a federation have agreed."""

    def __init__(self, kit, made, what, signum, after):
        self.kit, self.made, self.what, self.signum, self.after = kit, made, what, signum, after
        self.begun = self.at = self.named = 0
        self.pids = []

    def __call__(self, status, said):
        if said and said[-1].startswith(("stopped", "the server is lost")) and not self.named:
            self.named = time.time()
        if not self.begun:
            agreed = f"parties agree on {self.made.hash}"
            self.begun = time.monotonic() if any(agreed in line for line in said) else 0
        elif not self.at and time.monotonic() - self.begun > self.after:
            pids = processes(self.kit, job=True)
            if pids:
                self.pids = pids if self.what == "job" else processes(self.kit, job=False)
                self.at = time.time()
                self.each(self.signum)

    def each(self, signum):
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)


class Campaign:
    """A deployment, and what is lost of it."""

    def __init__(self, folder, first, admin):
        self.folder, self.first, self.admin, self.kits = folder, first, admin, admin.parent
        self.again, self.deployment = [], self.connected()

    def connected(self):
        deployment = Deployment(self.admin)
        deployment.wait_for([*self.first.parties.values()], 300)
        return deployment

    def restore(self, kit):
        """Start what was lost with all of its processes."""
        is_server = kit.name == "localhost"
        if is_server:
            with suppress(Exception):  # of the engine: its server is gone
                self.deployment.close()
        self.again.append(_start(kit, server=is_server))
        if is_server:
            _wait_for(kit, self.again[-1])
            self.deployment = self.connected()
        else:
            time.sleep(5)  # else the server still counts the one before
            self.deployment.wait_for([kit.name], 300)

    def left(self, logs, at):
        """Return how long after a loss a site has ended its run; inf if it has not."""
        while True:
            for status in logs.glob("*/status.json"):
                return status.stat().st_mtime - at
            if time.time() > at + DEADLINE + 5:
                return float("inf")
            time.sleep(0.2)

    def one(self, rng, n):
        """Run one federation that loses somebody; return what went wrong, if anything."""
        folder, out = self.folder / f"trial-{n}", self.folder / f"run-{n}"
        given = {"protocol": "fedtree-hist[trees=400]", "round_timeout": DEADLINE}
        made = make_trial(folder, **given, noise_from="seed")
        for site in made.parties.values():
            settings = (folder / "sites" / f"{site}.toml").read_bytes()
            (self.kits / site / "local" / "site.toml").write_bytes(settings)
        who, what, signum = WAYS[n % len(WAYS)]
        lost = rng.choice([*made.parties.values()]) if who == "site" else "localhost"
        losing = Losing(self.kits / lost, made, what, signum, rng.uniform(0, 20))
        out.mkdir()
        (self.folder / f"job-{n}").mkdir()
        job = job_of(made, self.folder / f"job-{n}")
        status = self.deployment.run(job, out, losing, made.patience)
        took, ended_after = (t - losing.at for t in (losing.named or time.time(), time.time()))
        others = [s for s in made.parties.values() if s != lost]
        left = {s: self.left(folder / "logs" / s, losing.at) for s in others}
        losing.each(signal.SIGKILL)
        told = summarise_run(made, out, status)["stopped"]
        name = "the server is lost" if who == "server" else repr(made.party(lost))
        print(f"{n}: {lost}, {what}, {signum.name} after {losing.after:.1f} s: {told!r}, "
              f"named after {took:.1f} s, others stop after {max(left.values()):.1f} s, "
              f"the job after {ended_after:.1f} s", flush=True)  # fmt: skip
        if what == "all" and losing.at:
            self.restore(self.kits / lost)
        models = [*out.rglob("model.*"), *folder.rglob("model.*")]
        wrong = {
            "nothing was lost": not losing.at,
            f"it does not say {name}": name not in told,
            f"{len(models)} models are left": models,
            f"it took {took:.1f} s": took > DEADLINE,
            f"sites stop after {left}": max(left.values()) > DEADLINE,
        }
        found = [text for text, is_so in wrong.items() if is_so]
        if found:
            kept = [*out.rglob("*"), *self.kits.glob("localhost/*/fedtrees/*")]
            print(*(f"   {path}" for path in kept if path.is_file()), sep="\n")
        return found


def main():
    """Run the campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, bad = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        first = make_trial(folder / "first")
        (folder / "nvflare").mkdir()
        with started(first, folder / "first" / "sites", folder / "nvflare") as admin:
            campaign = Campaign(folder, first, admin)
            try:
                for n in range(given.kills):
                    wrong = campaign.one(rng, n)
                    bad += bool(wrong)
                    for text in wrong:
                        print(f"   WRONG: {text}", flush=True)
            finally:
                end(campaign.again)
            campaign.deployment.close()
    print(f"{given.kills} lost, {bad} went wrong")
    return bad != 0


if __name__ == "__main__":
    raise SystemExit(main())
