"""Our commands work with a deployment that NVFlare provisioned, with its kits and scripts."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedtrees.cli.main import main
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.federation.deployment import Deployment, end, free_ports
from fedtrees.federation.trial import make_trial

pytestmark = [pytest.mark.extra("nvflare"), pytest.mark.slow]
HERE = Path(sys.executable).parent
PROJECT = """
api_version: 3
name: hospitals
participants:
  - {name: localhost, type: server, org: owner, fed_learn_port: %d}
  - {name: site-1, type: client, org: one}
  - {name: site-2, type: client, org: two}
  - {name: owner@example.org, type: admin, org: owner, role: project_admin}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


def run(*command):
    """Run a command as its user does; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, command)])
    return ended.value.code or 0


def reached(kit, seconds=300):
    """Return a session, once the server is up."""
    until = time.monotonic() + seconds
    while True:
        try:
            return Deployment(kit)
        except ProtocolError:
            if time.monotonic() > until:
                raise


def test_a_provisioned_deployment(tmp_path):
    federation = make_trial(tmp_path / "trial", "fedtree-hist[trees=1,max_depth=2]", parties=2)
    (tmp_path / "project.yml").write_text(PROJECT % free_ports(1)[0])
    subprocess.run([HERE / "nvflare", "provision", "-p", "project.yml", "-w", "made"],
                   cwd=tmp_path, check=True, capture_output=True)  # fmt: skip
    kits = tmp_path / "made" / "hospitals" / "prod_00"
    owner = tmp_path / "another-name"
    (kits / "owner@example.org").rename(owner)
    for party, site in federation.parties.items():
        table, logs = tmp_path / "trial" / "tables" / f"{party}.csv", tmp_path / "logs" / site
        arguments = "--csv", table, "--allow", federation.hash, "-o", logs
        assert run("site", "--kit", kits / site, *arguments) == 0
    assert run("site", "--kit", kits / "localhost") == 0
    env = {**os.environ, "PATH": f"{HERE}:{os.environ['PATH']}"}
    started_processes = [
        subprocess.Popen(["bash", kits / name / "startup" / "start.sh"], env=env, cwd=tmp_path,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         start_new_session=True)
        for name in ("localhost", *federation.parties.values())
    ]  # fmt: skip
    try:
        deployment = reached(owner)
        deployment.wait_for([*federation.parties.values()], 300)
        deployment.close()
        file = tmp_path / "trial" / "federation.toml"
        assert run("federate", file, "--kit", owner, "-o", tmp_path / "run") == 0
    finally:
        end(started_processes)
    (model,) = (tmp_path / "run" / "trial").glob("model.*")
    site_models = [*(tmp_path / "logs").glob("*/trial/model.*")]
    assert len(site_models) == 2
    assert {path.read_bytes() for path in site_models} == {model.read_bytes()}
    assert (tmp_path / "run" / "trial" / "log.capture").is_file()
    assert [*(kits / "localhost" / "store").glob("jobs*/*")]


def test_a_folder_that_is_no_kit(tmp_path):
    with pytest.raises(UsageError, match="no startup kit of a user"):
        Deployment(tmp_path)
