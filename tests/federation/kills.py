"""`python tests/federation/kills.py --kills 40`: sites and servers are killed or stopped at work.

Each run of a federation loses one process at a random moment: it must stop, name who is lost within
its deadline (of a server: say so), and leave no model anywhere. Takes about a minute a kill.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from fedtrees.cli.federate import ended
from fedtrees.federation.deployment import Deployment, job_of, started
from fedtrees.federation.site import Settings
from fedtrees.federation.trial import make_trial

DEADLINE = 20.0  # a busy machine's sites do not answer within less
# Until NVFlare tells of a lost call, and until its jobs have ended; of a server, until it is found
# to be silent.
SLACK = {"site": 30.0, "server": 100.0}


def working(kit):
    """Return the process of a startup kit's job, None if there is none."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            told = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        except OSError:
            continue
        if ("worker_process" in told or "runner_process" in told) and str(kit) in told:
            return int(pid)
    return None


class Losing:
    """Loses one process a random time after the first round."""

    def __init__(self, server, kit, signum, after):
        self.server, self.kit, self.signum, self.after = server, kit, signum, after
        self.begun = self.at = self.pid = 0

    def __call__(self, status):
        if not self.begun:
            told = (p.read_text() for p in self.server.glob("*/fedtrees/progress.txt"))
            self.begun = time.monotonic() if any("parties agree" in text for text in told) else 0
        elif not self.at and time.monotonic() - self.begun > self.after:
            self.pid = working(self.kit)
            if self.pid:
                self.at = time.monotonic()
                os.kill(self.pid, self.signum)


def one(rng, folder, admin, deployment, n):
    """Run one federation that loses a process; return what went wrong, if anything."""
    kits = admin.parent
    made = make_trial(
        folder / f"trial-{n}", "fedtree-hist[trees=400]", round_timeout=DEADLINE, noise_from="seed"
    )
    for site in made.parties.values():
        given = Settings.load(folder / f"trial-{n}" / "sites" / f"{site}.toml")
        replace(given).save(kits / site / "local" / "site.toml")
    who = rng.choice([*made.parties.values(), "localhost"])
    signum = rng.choice([signal.SIGKILL, signal.SIGSTOP])
    losing = Losing(kits / "localhost", kits / who, signum, rng.uniform(0, 20))
    out = folder / f"run-{n}"
    out.mkdir()
    (folder / f"job-{n}").mkdir()
    status = deployment.run(job_of(made, folder / f"job-{n}"), out, losing)
    took = time.monotonic() - losing.at
    if losing.pid and signum == signal.SIGSTOP:
        os.kill(losing.pid, signal.SIGKILL)
    told = ended(made, out, status)["stopped"]
    name = "the server is lost" if who == "localhost" else repr(made.party(who))
    print(
        f"{n}: {who} {signum.name} after {losing.after:.1f} s: {told!r}, {took:.1f} s", flush=True
    )
    models = [*out.rglob("model.*"), *(folder / f"trial-{n}").rglob("model.*")]
    wrong = []
    if not losing.at:
        wrong.append("nothing was lost")
    if name not in told:
        wrong.append(f"it says {told!r}")
    if models:
        wrong.append(f"{len(models)} models are left")
    if took > DEADLINE + SLACK["server" if who == "localhost" else "site"]:
        wrong.append(f"it took {took:.0f} s")
    return wrong


def main():
    """Run the campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, bad = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        first = make_trial(folder / "first")
        (folder / "nvflare").mkdir()
        with started(first, folder / "first" / "sites", folder / "nvflare") as admin:
            deployment = Deployment(admin)
            deployment.wait_for([*first.parties.values()], 300)
            for n in range(given.kills):
                for wrong in one(rng, folder, admin, deployment, n):
                    bad += 1
                    print(f"   WRONG: {wrong}", flush=True)
            deployment.close()
    print(f"{given.kills} lost, {bad} went wrong")
    return bad != 0


if __name__ == "__main__":
    raise SystemExit(main())
