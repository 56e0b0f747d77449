"""Real processes with certificates send the messages of the simulation, and runs can be stopped."""

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


def allow(folder, kits, federation, **changes):
    """Set up the sites of a running deployment for a trial."""
    for site in federation.parties.values():
        settings = Settings.load(folder / "sites" / f"{site}.toml")
        settings = replace(settings, **changes.get(site.replace("-", "_"), {}))
        settings.save(kits / site / "local" / "site.toml")


class Killing:
    """Stop or kill the process of a site's job once the server reports a round."""

    def __init__(self, kit, signum):
        self.kit, self.signum, self.at = kit, signum, 0.0
        self.named = ""

    def __call__(self, status, progress):
        self.named = next((line for line in progress if line.startswith("stopped")), "")
        if self.at or not any(line.startswith("round") for line in progress):
            return
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    command_line = file.read().decode()
            except OSError:
                continue
            if "worker_process" in command_line and str(self.kit) in command_line:
                self.at = time.monotonic()
                os.kill(int(pid), self.signum)


def run_and_read_progress(
    deployment, folder, federation, name, on_status=lambda status, progress: None
):
    """Run a federation; return the folder of the server's files, and the last line of progress."""
    run_folder = folder / name
    (folder / f"job-{name}").mkdir()
    run_folder.mkdir()
    deployment.run(job_of(federation, folder / f"job-{name}"), run_folder, on_status)
    return run_folder, (run_folder / "progress.txt").read_text().splitlines()[-1]


@pytest.mark.slow
def test_secureboost_under_2048_bits_on_two_tables(tmp_path):
    """It prints seconds, which the option `-s` of pytest shows."""
    protocol_text = "secureboost[trees=1,max_depth=2,max_bin=4,crypto=real,key_bits=2048]"
    options = {"protocol": protocol_text, "defense": "none", "parties": 2, "noise_from": "seed"}
    tables = {"cancer": "breast-cancer[rows=90]", "wine": "wine[rows=90]"}
    agreements = {
        name: make_trial(tmp_path / name, **options, data=data, round_timeout=600.0)
        for name, data in tables.items()
    }
    first_agreement = agreements["cancer"]
    (tmp_path / "nvflare").mkdir()
    with started(first_agreement, tmp_path / "cancer" / "sites", tmp_path / "nvflare") as admin:
        deployment = Deployment(admin)
        deployment.wait_for([*first_agreement.parties.values()], 300)
        for name, federation in agreements.items():
            allow(tmp_path / name, admin.parent, federation)
            _, last_line = run_and_read_progress(deployment, tmp_path, federation, f"{name}-run")
            assert last_line == "done"
            folder = tmp_path / name / "logs" / "site-1" / name
            start = time.process_time()
            equal_to_simulation(tmp_path / name, federation, folder / LOG)
            status = json.loads((folder / "status.json").read_text())
            print(name, status, f"simulated: {time.process_time() - start:.1f} CPU s")
        deployment.close()


def test_a_deployment(tmp_path, monkeypatch):
    """All cases share one deployment, because its start takes long; its folder is relative."""
    monkeypatch.chdir(tmp_path)
    federation = make_trial(tmp_path / "trial", **HORIZONTAL)
    (tmp_path / "nvflare").mkdir()
    with started(federation, tmp_path / "trial" / "sites", Path("nvflare")) as admin:
        kits = admin.parent
        deployment = Deployment(admin)
        deployment.wait_for([*federation.parties.values()], 120)

        # horizontal, with real masks
        run = partial(run_and_read_progress, deployment, tmp_path)

        # horizontal, real masks
        umask_before = os.umask(0o022)
        run_folder, last_line = run(federation, "masked")
        os.umask(umask_before)
        assert last_line == "done"
        assert [
            path for path in (run_folder, *run_folder.rglob("*")) if path.stat().st_mode & 0o077
        ] == []
        log = run_folder / "trial" / LOG
        equal_to_simulation(tmp_path / "trial", federation, log)
        site_models = sorted((tmp_path / "trial").glob("logs/*/trial/model.json"))
        assert len(site_models) == 3
        assert {path.read_bytes() for path in site_models} == {
            (run_folder / "trial" / "model.json").read_bytes()
        }
        truth = [str(path) for path in sorted((tmp_path / "trial" / "tables").glob("*.csv"))]
        result = report(str(log), "", truth, "", None)
        assert result["as"] == "server"
        assert any(line.startswith("LEAK") for line in result["verdict"])

        # Vertical: a site coordinates. The server relays calls that are encrypted from end to end.
        vertical = make_trial(tmp_path / "vertical", **VERTICAL)
        allow(tmp_path / "vertical", kits, vertical)
        run_folder, last_line = run(vertical, "sealed")
        assert last_line == "done"
        # The server saw nothing of the federation.
        assert not (run_folder / "vertical").exists()
        log = tmp_path / "vertical" / "logs" / "site-1" / "vertical" / LOG
        equal_to_simulation(tmp_path / "vertical", vertical, log)

        # The owner of a site did not allow the agreement.
        unlisted_trial = make_trial(tmp_path / "other", seed=1, **HORIZONTAL)
        allow(tmp_path / "other", kits, unlisted_trial, site_2={"allow": ()})
        run_folder, last_line = run(unlisted_trial, "refused")
        assert last_line.startswith("stopped: 'client-1' at 'site-2' does not take part")
        assert not list(run_folder.rglob("model.*"))

        # The process of a site is killed.
        long_options = {**HORIZONTAL, "protocol": "fedtree-hist[trees=400]", "round_timeout": 8.0}
        long_federation = make_trial(tmp_path / "long", **long_options)
        allow(tmp_path / "long", kits, long_federation)
        kill_job = Killing(kits / "site-3", signal.SIGKILL)
        run_folder, last_line = run(long_federation, "killed", kill_job)
        assert kill_job.at
        assert last_line.startswith("stopped: 'client-2' at 'site-3'")
        # NVFlare may end the job before the callback is called.
        assert kill_job.named in ("", last_line)
        assert not [*run_folder.rglob("model.*"), *(tmp_path / "long").rglob("model.*")]
        statuses = [json.loads(path.read_text()) for path in run_folder.rglob("status.json")]
        assert all("'client-2'" in status["stopped"] for status in statuses)
        deployment.close()
    assert load(tmp_path / "long" / "federation.toml") == long_federation
