"""Real processes with certificates: the simulation's crossings, and what stops a run."""

import json
import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from federations import equal_to_simulation

from fedtrees.federation.agreement import load
from fedtrees.federation.attack import report
from fedtrees.federation.deployment import Deployment, job_of, started
from fedtrees.federation.log import LOG
from fedtrees.federation.site import Settings
from fedtrees.federation.trial import make_trial

pytestmark = [
    pytest.mark.extra("nvflare"),
    pytest.mark.filterwarnings("ignore:a 1024-bit Paillier key is weak"),
]
HORIZONTAL = {"protocol": "fedtree-hist[trees=2,max_depth=3]", "noise_from": "seed"}
VERTICAL = {
    "protocol": "secureboost[trees=1,max_depth=2,max_bin=4,crypto=real,key_bits=1024]",
    "defense": "none", "parties": 2, "noise_from": "seed",
}  # fmt: skip


def allow(folder, kits, federation, **changed):
    """Set up the sites of a running deployment for a trial."""
    for site in federation.parties.values():
        given = Settings.load(folder / "sites" / f"{site}.toml")
        given = replace(given, **changed.get(site.replace("-", "_"), {}))
        given.save(kits / site / "local" / "site.toml")


class Killing:
    """Ends the process of a site's job once the server has told of a round."""

    def __init__(self, kit, signum):
        self.kit, self.signum, self.at = kit, signum, 0.0
        self.named = ""

    def __call__(self, status, said):
        self.named = next((line for line in said if line.startswith("stopped")), "")
        if self.at or not any(line.startswith("round") for line in said):
            return
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    told = file.read().decode()
            except OSError:
                continue
            if "worker_process" in told and str(self.kit) in told:
                self.at = time.monotonic()
                os.kill(int(pid), self.signum)


def ran(deployment, folder, made, name, each=lambda status, said: None):
    """Run a federation; return the folder of what its server kept, and its last word."""
    out = folder / name
    (folder / f"job-{name}").mkdir()
    out.mkdir()
    deployment.run(job_of(made, folder / f"job-{name}"), out, each)
    return out, (out / "progress.txt").read_text().splitlines()[-1]


@pytest.mark.slow
def test_secureboost_under_2048_bits_on_two_tables(tmp_path):
    """Prints seconds; `-s` shows them."""
    of = "secureboost[trees=1,max_depth=2,max_bin=4,crypto=real,key_bits=2048]"
    given = {"protocol": of, "defense": "none", "parties": 2, "noise_from": "seed"}
    tables = {"cancer": "breast-cancer[rows=90]", "wine": "wine[rows=90]"}
    made = {
        name: make_trial(tmp_path / name, **given, data=data, round_timeout=600.0)
        for name, data in tables.items()
    }
    first = made["cancer"]
    (tmp_path / "nvflare").mkdir()
    with started(first, tmp_path / "cancer" / "sites", tmp_path / "nvflare") as admin:
        deployment = Deployment(admin)
        deployment.wait_for([*first.parties.values()], 300)
        for name, federation in made.items():
            allow(tmp_path / name, admin.parent, federation)
            _, last = ran(deployment, tmp_path, federation, f"{name}-run")
            assert last == "done"
            folder = tmp_path / name / "logs" / "site-1" / name
            begun = time.process_time()
            equal_to_simulation(tmp_path / name, federation, folder / LOG)
            told = json.loads((folder / "status.json").read_text())
            print(name, told, f"simulated: {time.process_time() - begun:.1f} CPU s")
        deployment.close()


def test_a_deployment(tmp_path, monkeypatch):
    """One deployment for all of it, for it takes long to start; its folder as it is typed."""
    monkeypatch.chdir(tmp_path)
    federation = make_trial(tmp_path / "trial", **HORIZONTAL)
    (tmp_path / "nvflare").mkdir()
    with started(federation, tmp_path / "trial" / "sites", Path("nvflare")) as admin:
        kits = admin.parent
        deployment = Deployment(admin)
        deployment.wait_for([*federation.parties.values()], 120)

        run = partial(ran, deployment, tmp_path)

        # horizontal, real masks
        before = os.umask(0o022)
        out, last = run(federation, "masked")
        os.umask(before)
        assert last == "done"
        assert [p for p in (out, *out.rglob("*")) if p.stat().st_mode & 0o077] == []
        log = out / "trial" / LOG
        equal_to_simulation(tmp_path / "trial", federation, log)
        own = sorted((tmp_path / "trial").glob("logs/*/trial/model.json"))
        assert len(own) == 3
        assert {p.read_bytes() for p in own} == {(out / "trial" / "model.json").read_bytes()}
        truth = [str(p) for p in sorted((tmp_path / "trial" / "tables").glob("*.csv"))]
        told = report(str(log), "", truth, "", None)
        assert told["as"] == "server"
        assert any(line.startswith("LEAK") for line in told["verdict"])

        # vertical: a site coordinates, by end-to-end encrypted calls that the server relays
        vertical = make_trial(tmp_path / "vertical", **VERTICAL)
        allow(tmp_path / "vertical", kits, vertical)
        out, last = run(vertical, "sealed")
        assert last == "done"
        assert not (out / "vertical").exists()  # the server saw nothing of it
        log = tmp_path / "vertical" / "logs" / "site-1" / "vertical" / LOG
        equal_to_simulation(tmp_path / "vertical", vertical, log)

        # a site whose owner did not allow it
        other = make_trial(tmp_path / "other", seed=1, **HORIZONTAL)
        allow(tmp_path / "other", kits, other, site_2={"allow": ()})
        out, last = run(other, "refused")
        assert last.startswith("stopped: 'client-1' at 'site-2' does not take part")
        assert not list(out.rglob("model.*"))

        # a site's process is killed
        long = {**HORIZONTAL, "protocol": "fedtree-hist[trees=400]", "round_timeout": 8.0}
        made = make_trial(tmp_path / "long", **long)
        allow(tmp_path / "long", kits, made)
        killing = Killing(kits / "site-3", signal.SIGKILL)
        out, last = run(made, "killed", killing)
        assert killing.at
        assert last.startswith("stopped: 'client-2' at 'site-3'")
        assert killing.named in ("", last)  # NVFlare may have ended the job before it is asked
        assert not [*out.rglob("model.*"), *(tmp_path / "long").rglob("model.*")]
        statuses = [json.loads(p.read_text()) for p in out.rglob("status.json")]
        assert all("'client-2'" in s["stopped"] for s in statuses)
        deployment.close()
    assert load(tmp_path / "long" / "federation.toml") == made
