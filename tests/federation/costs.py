"""`python tests/federation/costs.py`: what hosts at the end of lines cost, and what crosses."""

import time

import numpy as np

from fedtrees.bench.evaluate import make_defense
from fedtrees.core.codec import encode
from fedtrees.core.line import Far, Served
from fedtrees.core.local_data import over_clients
from fedtrees.core.network import LocalNetwork
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.protocols import base

MASKED = make_defense(parse_composed(["masking"])[0])


class OverBytes(LocalNetwork):
    """Clients behind lines; `wire` counts what crosses there."""

    wire = 0

    def line(self, host):
        served = Served(host)

        def send(blob):
            answer = served.call(blob)
            OverBytes.wire += len(blob) + len(answer)
            return answer

        return Far(host.name, send) if host.role == "client" else host


def measured(rows, columns, parties, trees, network=LocalNetwork):
    """Return CPU seconds, rounds, bytes of the codec, and bytes on the lines."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=rows) > 0).astype(np.int64)
    schema = Schema(tuple(Feature(f"c{i}", low=-10, high=10) for i in range(columns)), "y")
    held = over_clients([Table(X, y).take(p) for p in np.array_split(np.arange(rows), parties)])
    made = register.make("protocol", parse_grid(f"fedtree-hist[trees={trees},max_depth=6]")[0])
    base.LocalNetwork, OverBytes.wire = network, 0
    begun = time.process_time()
    done = base.train(made, held, schema, defense=MASKED, seed=0, noise_from="seed")
    took = time.process_time() - begun
    sent = [d for d in done.transcript if d.receivers != (d.sender,)]
    codec = sum(len(encode(d.message)) * len(d.receivers) for d in sent)
    return f"{took:.2f} s, {done.transcript.rounds} rounds, {codec:,} bytes, {OverBytes.wire:,}"


if __name__ == "__main__":
    measured(3000, 28, 3, 1)
    for network in (LocalNetwork, OverBytes) * 2:
        print(network.__name__, measured(100_000, 28, 3, 10, network))
    for size in ((10_000, 28, 3, 3), (100_000, 28, 3, 3), (100_000, 28, 10, 3),
                 (100_000, 56, 3, 3), (100_000, 28, 3, 6), (1_000_000, 28, 10, 3)):  # fmt: skip
        print("rows, columns, parties, trees", size, measured(*size))
