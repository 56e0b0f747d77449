"""Measure complete trainings with plain sums, masks and Paillier encryption."""

import time
from collections.abc import Callable, Iterator, Mapping

from fedtrees.benchmarks.perf.crypto import Naive
from fedtrees.benchmarks.perf.federations import parts_of
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import schema_of, table
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.specs import Spec, parse_one
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.phe_backend import keys_to_phe
from fedtrees.data.partition import Partition
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.federation import load_dataset, spread
from fedtrees.experiments.suite import DataRef
from fedtrees.messages.aggregation import OpenedSum
from fedtrees.protocols.training import Training, train

_CLIENTS, _BINS = 3, 32
_NAMES = tuple(f"client-{i}" for i in range(_CLIENTS))

Call = Callable[[str], Callable[[], Training]]


def lines(size: Size = FULL) -> Iterator[Line]:
    """Measure `fedtree-hist` with every kind of aggregation, in CPU seconds of all parties."""
    depth = 4 if size.scale >= 1 else 1
    small = _training(*_breast_cancer(), size.trees(20), depth)
    yield from _masks("breast cancer, 3 clients, 20 trees, depth 4", small, size)
    if size.scale >= 1:
        yield from _masks("30,000 x 23, depth 5", _training(*_large(), size.trees(20), 5), size)
    yield from _paillier("breast cancer", small, size)
    yield _backends("breast cancer, 1 tree", _training(*_breast_cancer(), 1, min(depth, 3)))


def _masks(what: str, call: Call, size: Size) -> Iterator[Line]:
    """Compare masked sums with plain ones."""
    ways = {name: call(name) for name in ("none", "secure-sum", "masking")}
    seconds = medians(ways, 5 * size.repeats)
    for name, target in (("secure-sum", None), ("masking", 1.3)):
        yield ratio(f"{what}: {name}", seconds[name], seconds["none"], "plain", target)


def _paillier(what: str, call: Call, size: Size) -> Iterator[Line]:
    """Compare with phe, which encrypts every number of every client in a separate ciphertext."""
    naive = Naive.measure(keys_to_phe(KeyPair.generate()), max(size.trees(40), 5))
    started = time.process_time()
    done = call("paillier")()
    seconds = time.process_time() - started
    sums = [d.message for d in done.transcript if isinstance(d.message, OpenedSum)]
    numbers = sum(m.values.size for m in sums)
    seconds_per_number = _CLIENTS * naive.encrypt + (_CLIENTS - 1) * naive.add + naive.decrypt
    costs, estimate = done.transcript.costs, numbers * seconds_per_number
    label_of_cost = {"obfuscators": "obfuscators", "decryption": "decrypted"}
    parts = ", ".join(f"{n} {costs[f'cpu_seconds:{key}']:.1f}" for n, key in label_of_cost.items())
    yield Line(
        f"{what}: paillier, 2048 bits, {costs['decrypted']:,} sums of {numbers:,} numbers",
        f"{seconds:.1f} s, {estimate / seconds:.0f}x ({parts})",
        f"phe, estimated from its rates, {estimate:,.0f} s",
        "<= 20 s",
        seconds <= 20,
    )


def _backends(what: str, call: Call) -> Line:
    """Compare python-paillier with gmpy2 in one training, with equal models."""
    seconds = {}
    for backend in ("gmpy2", "phe"):
        run = call(f"paillier[backend={backend}]")
        started = time.process_time()
        run()
        seconds[backend] = time.process_time() - started
    return Line(
        f"{what}: paillier[backend=phe], 2048 bits",
        f"{seconds['phe']:.1f} s, {seconds['phe'] / seconds['gmpy2']:.1f}x gmpy2's time",
        f"gmpy2 {seconds['gmpy2']:.1f} s",
    )


def _training(local_data: Mapping[str, LocalData], schema: Schema, trees: int, depth: int) -> Call:
    """Return a function from a defense to a call that trains with it."""
    spec = Spec("fedtree-hist", {"trees": trees, "max_depth": depth, "max_bin": _BINS})
    protocol = register.make("protocol", spec)

    def call(defense: str) -> Callable[[], Training]:
        composed = make_defense(parse_one(defense))
        return lambda: train(protocol, local_data, schema, defense=composed)

    return call


def _breast_cancer() -> tuple[Mapping[str, LocalData], Schema]:
    """Return the federation of the bench without its test rows."""
    federation = spread(load_dataset(DataRef("breast-cancer"), None), Partition("iid"), _NAMES, 0)
    return federation.local_data, federation.schema


def _large() -> tuple[Mapping[str, LocalData], Schema]:
    """Return the federation of a large synthetic table."""
    data = table(30_000, 23)
    return over_clients(parts_of(data, _CLIENTS)), schema_of(data)
