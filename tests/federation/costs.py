"""`python tests/federation/costs.py` measures the costs of hosts behind connections.

`--rounds` measures the time of a round over NVFlare instead. `--memory` measures the memory of a
site that reads a table of 1,000,000 x 28 and takes part.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from fedtrees.core.local_data import over_clients
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.core.remote import HostServer, RemoteHost
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.source import code_digest
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.wire import encode, read_call
from fedtrees.experiments.evaluate import make_defense
from fedtrees.federation.agreement import FederationAgreement
from fedtrees.federation.coordinator import run_federation
from fedtrees.federation.deployment import Deployment, job_of, started
from fedtrees.federation.site import Settings, Site
from fedtrees.federation.trial import make_trial
from fedtrees.protocols import training

COORDINATOR = "fedtrees.federation.flare.Coordinator"
MASKED = make_defense(parse_composed(["masking"])[0])


class OverBytes(Network):
    """A network whose clients exchange bytes; `wire` counts them."""

    wire = 0

    def _connect(self, host):
        served = HostServer(host)

        def send(blob):
            answer = served.call(blob)
            OverBytes.wire += len(blob) + len(answer)
            return answer

        is_client = host.context.role == "client"
        super()._connect(RemoteHost(host.name, send) if is_client else host)


def measure(rows, columns, parties, trees, network=Network):
    """Return CPU seconds, rounds, bytes of the codec, and bytes on the lines."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=rows) > 0).astype(np.int64)
    schema = Schema(
        tuple(Feature(f"c{column}", low=-10, high=10) for column in range(columns)), "y"
    )
    local_data = over_clients(
        [Table(X, y).take(part) for part in np.array_split(np.arange(rows), parties)]
    )
    protocol_object = register.make(
        "protocol", parse_grid(f"fedtree-hist[trees={trees},max_depth=6]")[0]
    )
    training.Network, OverBytes.wire = network, 0
    start = time.process_time()
    run = training.train(
        protocol_object, local_data, schema, defense=MASKED, seed=0, noise_from="seed"
    )
    seconds = time.process_time() - start
    deliveries = [
        delivery for delivery in run.transcript if delivery.receivers != (delivery.sender,)
    ]
    codec = sum(len(encode(delivery.message)) * len(delivery.receivers) for delivery in deliveries)
    return f"{seconds:.2f} s, {run.transcript.rounds} rounds, {codec:,} bytes, {OverBytes.wire:,}"


def memory(rows, columns=28):
    """Return MiB of a table as float32, and the additional peak of a site in reading and training.

    Two sites, one with 1,000 rows and one with `rows` rows, run in one process with a coordinator.
    """
    rng = np.random.default_rng(0)
    schema = Schema(
        tuple(Feature(f"c{column}", low=-10, high=10) for column in range(columns)), "y"
    )
    block = [",".join(map(repr, row)) + f",{int(row[0] > 0)}\n" for row in
             rng.normal(size=(10_000, columns)).astype(np.float32).tolist()]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder_name:
        folder, peak_of_reading = Path(folder_name), 0.0
        tables = {"small": (block[:1000], 1), "big": (block, rows // len(block))}
        for name, (lines, n_blocks) in tables.items():
            with (folder / name).open("w") as file:
                file.write(",".join([*schema.names, "y"]) + "\n")
                for _ in range(n_blocks):
                    file.writelines(lines)
            agreement = FederationAgreement(
                            name=f"with-{name}", protocol="fedtree-hist[trees=2]", schema=schema,
                            parties={"client-0": "site-0", "client-1": "site-1"},
                            installation=code_digest(), defense="masking")  # fmt: skip
            resident_before = resident(reset=True)
            sites = {"client-0": site(agreement, 0, folder / "small"),
                     "client-1": site(agreement, 1, folder / name)}  # fmt: skip

            def send(party, blob, seconds, sites=sites):
                nonlocal peak_of_reading
                answer = sites[party].call("server", blob)
                if read_call(blob)[0]["does"] == "agree":
                    peak_of_reading = resident("VmHWM")
                return answer

            run_federation(agreement, send, folder / "coordinator", lambda text: None)
    table, peak = rows * columns * 4 / 2**20, resident("VmHWM")
    reading, training = peak_of_reading - resident_before, peak - resident_before
    return f"{table:.0f} MiB: {reading:.0f}, {training:.0f} MiB"


def rounds():
    """Return the median and the 10% quantile of times of a round over NVFlare.

    There are three sites. A round lasts from the first request to the last answer.
    """
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        agreement = make_trial(folder / "trial", "fedtree-hist[trees=30,max_depth=4]")
        for name in ("nvflare", "job", "run"):
            (folder / name).mkdir()
        with started(agreement, folder / "trial" / "sites", folder / "nvflare") as admin:
            resources = admin.parent / "localhost" / "local" / "resources.json"
            resource_config = json.loads(resources.read_text())
            resource_config["class_allow_list"].append("simulated.")
            resources.write_text(json.dumps(resource_config))
            job = job_of(agreement, folder / "job")
            config = job / "at_server" / "config" / "config_fed_server.json"
            config.write_text(config.read_text().replace(COORDINATOR, "simulated.Timed"))
            deployment = Deployment(admin)
            deployment.wait_for([*agreement.parties.values()], 300)
            deployment.run(job, folder / "run", lambda status: None)
            deployment.close()
        calls = json.loads((folder / "run" / "calls.json").read_text())
    starts, ends = np.array(calls)[: len(calls) // 3 * 3].reshape(-1, 3, 2).transpose(2, 0, 1)
    times = 1000 * (ends.max(axis=1) - starts.min(axis=1))
    return f"{len(times)} rounds, {np.median(times):.1f}; {np.quantile(times, 0.1):.1f} ms"


def site(agreement, number, table):
    """Return a site that takes part with a table."""
    log_folder = table.parent / f"logs-{number}"
    settings = Settings(str(table), str(log_folder), (agreement.hash,))
    return Site(f"site-{number}", lambda: settings, lambda text: None)


def resident(field="VmRSS", *, reset=False):
    """Return MiB of memory of this process, or its peak since the last call with `reset`."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=int, nargs="?", const=1_000_000, metavar="ROWS")
    parser.add_argument("--rounds", action="store_true")
    arguments = parser.parse_args()
    if arguments.memory or arguments.rounds:
        raise SystemExit(print(memory(arguments.memory) if arguments.memory else rounds()))
    measure(3000, 28, 3, 1)
    for network in (Network, OverBytes) * 2:
        print(network.__name__, measure(100_000, 28, 3, 10, network))
    for size in ((10_000, 28, 3, 3), (100_000, 28, 3, 3), (100_000, 28, 10, 3),
                 (100_000, 56, 3, 3), (100_000, 28, 3, 6), (1_000_000, 28, 10, 3)):  # fmt: skip
        print("rows, columns, parties, trees", size, measure(*size))
