"""Whole trainings whose sums are plain, under masks and under Paillier."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from fedtrees.bench.evaluate import make_defense
from fedtrees.benchmarks.perf.crypto import Naive
from fedtrees.benchmarks.perf.federations import parts_of
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import table
from fedtrees.core.holding import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_one
from fedtrees.crypto.keys import KeyPair
from fedtrees.protocols.base import Training, train

CLIENTS, BINS = 3, 32


def lines(size: Size = FULL) -> Iterator[Line]:
    """Measure `fedtree-hist` with every way of summing, CPU seconds of all parties."""
    cases = [
        (_breast_cancer(), size.trees(20), 4, "breast cancer, 20 trees, depth 4"),
        (table(size.rows(30_000), 23), size.trees(20), 5, "30,000 x 23, 20 trees, depth 5"),
    ]
    for data, trees, depth, what in size.cases(cases):
        call = _training(data, trees, depth)
        ways = {name: call(name) for name in ("none", "secure-sum", "masking")}
        seconds = medians(ways, 3 * size.repeats)
        for name in ("secure-sum", "masking"):
            target = 1.3 if name == "masking" else None
            yield ratio(f"{what}: {name}", seconds[name], seconds["none"], "plain", target)
    data, trees, depth, what = cases[0]
    yield from _paillier(what, _training(data, trees, depth), size)


def _paillier(
    what: str, call: Callable[[str], Callable[[], Training]], size: Size
) -> Iterator[Line]:
    naive = Naive.measured(KeyPair.generate().to_phe(), max(size.trees(40), 5))
    started = time.process_time()
    done = call("paillier")()
    seconds = time.process_time() - started
    costs = done.transcript.costs
    sums = [d.message for d in done.transcript if type(d.message).__name__ == "OpenedSum"]
    numbers = sum(m.values.size for m in sums)  # type: ignore[attr-defined]
    estimate = numbers * (CLIENTS * naive.encrypt + (CLIENTS - 1) * naive.add + naive.decrypt)
    each = ", ".join(
        f"{name} {costs[f'cpu_seconds:{name}']:.1f}" for name in ("obfuscators", "decrypted")
    )
    yield Line(
        f"{what}: paillier, 2048 bits",
        f"{seconds:.1f} s, {estimate / seconds:.0f}x ({each})",
        f"phe, estimated from its rates, {estimate:,.0f} s",
        "<= 20 s",
        seconds <= 20,
    )


def _training(data: Table, trees: int, depth: int) -> Callable[[str], Callable[[], Training]]:
    spec = Spec("fedtree-hist", {"trees": trees, "max_depth": depth, "max_bin": BINS})
    protocol = register.make("protocol", spec)
    schema = Schema(tuple(Feature(f"f{i}") for i in range(data.X.shape[1])), "y")
    held = over_clients(parts_of(data, CLIENTS))

    def call(defense: str) -> Callable[[], Training]:
        by = make_defense(parse_one(defense))
        return lambda: train(protocol, held, schema, defense=by)

    return call


def _breast_cancer() -> Table:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return Table(X.astype("float32"), y)
