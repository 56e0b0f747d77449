"""`python tests/federation/costs.py`: what hosts at the end of lines cost, and what crosses.

`--rounds`: what a round takes over NVFlare, instead.
`--memory`: what a site takes to read its table of 1,000,000 x 28 and to take part, instead.
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
    """Clients behind lines; `wire` counts what crosses there."""

    wire = 0

    def connect(self, name, host):
        served = HostServer(host)

        def send(blob):
            answer = served.call(blob)
            OverBytes.wire += len(blob) + len(answer)
            return answer

        super().connect(name, RemoteHost(name, send) if host.role == "client" else host)


def measured(rows, columns, parties, trees, network=Network):
    """Return CPU seconds, rounds, bytes of the codec, and bytes on the lines."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=rows) > 0).astype(np.int64)
    schema = Schema(tuple(Feature(f"c{i}", low=-10, high=10) for i in range(columns)), "y")
    held = over_clients([Table(X, y).take(p) for p in np.array_split(np.arange(rows), parties)])
    made = register.make("protocol", parse_grid(f"fedtree-hist[trees={trees},max_depth=6]")[0])
    training.Network, OverBytes.wire = network, 0
    begun = time.process_time()
    done = training.train(made, held, schema, defense=MASKED, seed=0, noise_from="seed")
    took = time.process_time() - begun
    sent = [d for d in done.transcript if d.receivers != (d.sender,)]
    codec = sum(len(encode(d.message)) * len(d.receivers) for d in sent)
    return f"{took:.2f} s, {done.transcript.rounds} rounds, {codec:,} bytes, {OverBytes.wire:,}"


def memory(rows, columns=28):
    """Return MiB of a table as float32, and what a site takes more at most: reading, training.

    Sites of 1,000 rows, and of so many, in one process with a coordinator.
    """
    rng = np.random.default_rng(0)
    schema = Schema(tuple(Feature(f"c{i}", low=-10, high=10) for i in range(columns)), "y")
    block = [",".join(map(repr, x)) + f",{int(x[0] > 0)}\n" for x in
             rng.normal(size=(10_000, columns)).astype(np.float32).tolist()]  # fmt: skip
    with tempfile.TemporaryDirectory() as made:
        folder, read = Path(made), 0.0
        tables = {"small": (block[:1000], 1), "big": (block, rows // len(block))}
        for name, (lines, times) in tables.items():
            with (folder / name).open("w") as file:
                file.write(",".join([*schema.names, "y"]) + "\n")
                for _ in range(times):
                    file.writelines(lines)
            agreed = FederationAgreement(
                            name=f"with-{name}", protocol="fedtree-hist[trees=2]", schema=schema,
                            parties={"client-0": "site-0", "client-1": "site-1"},
                            installation=code_digest(), defense="masking")  # fmt: skip
            begin = resident(anew=True)
            sites = {"client-0": site(agreed, 0, folder / "small"),
                     "client-1": site(agreed, 1, folder / name)}  # fmt: skip

            def send(party, blob, seconds, sites=sites):
                nonlocal read
                answer = sites[party].call("server", blob)
                if read_call(blob)[0]["does"] == "agree":
                    read = resident("VmHWM")
                return answer

            run_federation(agreed, send, folder / "coordinator", lambda text: None)
    table, most = rows * columns * 4 / 2**20, resident("VmHWM")
    return f"{table:.0f} MiB: {read - begin:.0f}, {most - begin:.0f} MiB"


def rounds():
    """Return milliseconds of a round over NVFlare, three sites: median, and of the fastest tenth.

    A round is what is asked of all sites at once, from the first call to the last answer.
    """
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        agreed = make_trial(folder / "trial", "fedtree-hist[trees=30,max_depth=4]")
        for name in ("nvflare", "job", "run"):
            (folder / name).mkdir()
        with started(agreed, folder / "trial" / "sites", folder / "nvflare") as admin:
            resources = admin.parent / "localhost" / "local" / "resources.json"
            told = json.loads(resources.read_text())
            told["class_allow_list"].append("simulated.")
            resources.write_text(json.dumps(told))
            job = job_of(agreed, folder / "job")
            config = job / "at_server" / "config" / "config_fed_server.json"
            config.write_text(config.read_text().replace(COORDINATOR, "simulated.Timed"))
            deployment = Deployment(admin)
            deployment.wait_for([*agreed.parties.values()], 300)
            deployment.run(job, folder / "run", lambda status: None)
            deployment.close()
        calls = json.loads((folder / "run" / "calls.json").read_text())
    begun, ended = np.array(calls)[: len(calls) // 3 * 3].reshape(-1, 3, 2).transpose(2, 0, 1)
    took = 1000 * (ended.max(axis=1) - begun.min(axis=1))
    return f"{len(took)} rounds, {np.median(took):.1f}; {np.quantile(took, 0.1):.1f} ms"


def site(agreed, k, table):
    """Return a site that takes part with a table."""
    out = table.parent / f"logs-{k}"
    given = Settings(str(table), str(out), (agreed.hash,))
    return Site(f"site-{k}", lambda: given, lambda text: None)


def resident(what="VmRSS", *, anew=False):
    """Return MiB that this process has resident, or had at most since it was measured `anew`."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=int, nargs="?", const=1_000_000, metavar="ROWS")
    parser.add_argument("--rounds", action="store_true")
    given = parser.parse_args()
    if given.memory or given.rounds:
        raise SystemExit(print(memory(given.memory) if given.memory else rounds()))
    measured(3000, 28, 3, 1)
    for network in (Network, OverBytes) * 2:
        print(network.__name__, measured(100_000, 28, 3, 10, network))
    for size in ((10_000, 28, 3, 3), (100_000, 28, 3, 3), (100_000, 28, 10, 3),
                 (100_000, 56, 3, 3), (100_000, 28, 3, 6), (1_000_000, 28, 10, 3)):  # fmt: skip
        print("rows, columns, parties, trees", size, measured(*size))
