"""`python tests/federation/kills.py --kills 24`: lose parties and servers of a federation.

Each run of a federation loses one process group at a random moment: the job of a site or of the
server, or all processes of NVFlare at one of them. It is killed or stopped. Before the deadline,
the owner must receive the name of the lost party, the other sites must have stopped, and no model
may exist anywhere. One deployment serves all runs, so each run also shows that the earlier losses
did not damage it.
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
    """Return the processes that run at a startup kit: those of its job, or all of NVFlare."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
            at_job = "worker_process" in command_line or "runner_process" in command_line
            if str(kit) in command_line and (at_job or not job):
                pids.append(int(pid))
    return pids


class Losing:
    """Stop or kill processes a random time after the parties of a federation have agreed."""

    def __init__(self, kit, federation, processes_lost, signum, after):
        self.kit, self.federation, self.what, self.signum, self.after = (
            kit,
            federation,
            processes_lost,
            signum,
            after,
        )
        self.agreed_at = self.lost_at = self.named_at = 0
        self.pids = []

    def __call__(self, status, progress):
        if (
            progress
            and progress[-1].startswith(("stopped", "the server is lost"))
            and not self.named_at
        ):
            self.named_at = time.time()
        if not self.agreed_at:
            agreement_line = f"parties agree on {self.federation.hash}"
            self.agreed_at = (
                time.monotonic() if any(agreement_line in line for line in progress) else 0
            )
        elif not self.lost_at and time.monotonic() - self.agreed_at > self.after:
            pids = processes(self.kit, job=True)
            if pids:
                self.pids = pids if self.what == "job" else processes(self.kit, job=False)
                self.lost_at = time.time()
                self.each(self.signum)

    def each(self, signum):
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)


class Campaign:
    """A deployment, and the processes that it loses."""

    def __init__(self, folder, first, admin):
        self.folder, self.first, self.admin, self.kits = folder, first, admin, admin.parent
        self.restarted, self.deployment = [], self.connected()

    def connected(self):
        deployment = Deployment(self.admin)
        deployment.wait_for([*self.first.parties.values()], 300)
        return deployment

    def restore(self, kit):
        """Restart NVFlare at a kit whose processes were all lost."""
        is_server = kit.name == "localhost"
        if is_server:
            # The server of the engine is gone, so closing fails.
            with suppress(Exception):
                self.deployment.close()
        self.restarted.append(_start(kit, server=is_server))
        if is_server:
            _wait_for(kit, self.restarted[-1])
            self.deployment = self.connected()
        else:
            # Without this pause, the server still counts the previous process.
            time.sleep(5)
            self.deployment.wait_for([kit.name], 300)

    def seconds_until_stopped(self, logs, time_of_loss):
        """Return the seconds from a loss to the end of a site's run; inf if it does not end."""
        while True:
            for status in logs.glob("*/status.json"):
                return status.stat().st_mtime - time_of_loss
            if time.time() > time_of_loss + DEADLINE + 5:
                return float("inf")
            time.sleep(0.2)

    def run_with_a_loss(self, rng, number):
        """Run one federation that loses a process; return the problems."""
        folder, run_folder = self.folder / f"trial-{number}", self.folder / f"run-{number}"
        options = {"protocol": "fedtree-hist[trees=400]", "round_timeout": DEADLINE}
        federation = make_trial(folder, **options, noise_from="seed")
        for site in federation.parties.values():
            settings = (folder / "sites" / f"{site}.toml").read_bytes()
            (self.kits / site / "local" / "site.toml").write_bytes(settings)
        role, processes_lost, signum = WAYS[number % len(WAYS)]
        lost_name = rng.choice([*federation.parties.values()]) if role == "site" else "localhost"
        losing = Losing(
            self.kits / lost_name, federation, processes_lost, signum, rng.uniform(0, 20)
        )
        run_folder.mkdir()
        (self.folder / f"job-{number}").mkdir()
        job = job_of(federation, self.folder / f"job-{number}")
        status = self.deployment.run(job, run_folder, losing, federation.patience)
        named_after, job_ended_after = (
            t - losing.lost_at for t in (losing.named_at or time.time(), time.time())
        )
        other_sites = [site for site in federation.parties.values() if site != lost_name]
        logs = folder / "logs"
        stop_times = {
            site: self.seconds_until_stopped(logs / site, losing.lost_at) for site in other_sites
        }
        losing.each(signal.SIGKILL)
        reason = summarise_run(federation, run_folder, status)["stopped"]
        name = "the server is lost" if role == "server" else repr(federation.party(lost_name))
        print(
            f"{number}: {lost_name}, {processes_lost}, {signum.name} "
            f"after {losing.after:.1f} s: {reason!r}, "
            f"named after {named_after:.1f} s, others stop after {max(stop_times.values()):.1f} s, "
            f"the job after {job_ended_after:.1f} s",
            flush=True,
        )
        if processes_lost == "all" and losing.lost_at:
            self.restore(self.kits / lost_name)
        models = [*run_folder.rglob("model.*"), *folder.rglob("model.*")]
        conditions = {
            "nothing was lost": not losing.lost_at,
            f"it does not say {name}": name not in reason,
            f"{len(models)} models are left": models,
            f"it took {named_after:.1f} s": named_after > DEADLINE,
            f"sites stop after {stop_times}": max(stop_times.values()) > DEADLINE,
        }
        problems = [text for text, is_so in conditions.items() if is_so]
        if problems:
            remaining_files = [*run_folder.rglob("*"), *self.kits.glob("localhost/*/fedtrees/*")]
            print(*(f"   {path}" for path in remaining_files if path.is_file()), sep="\n")
        return problems


def main():
    """Run the campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, n_bad = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        first = make_trial(folder / "first")
        (folder / "nvflare").mkdir()
        with started(first, folder / "first" / "sites", folder / "nvflare") as admin:
            campaign = Campaign(folder, first, admin)
            try:
                for number in range(arguments.kills):
                    problems = campaign.run_with_a_loss(rng, number)
                    n_bad += bool(problems)
                    for text in problems:
                        print(f"   WRONG: {text}", flush=True)
            finally:
                end(campaign.again)
            campaign.deployment.close()
    print(f"{arguments.kills} lost, {n_bad} went wrong")
    return n_bad != 0


if __name__ == "__main__":
    raise SystemExit(main())
