"""Measure cryptography: Paillier, masks, and trainings with protected sums, compared with phe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from phe import PaillierPrivateKey

from fedtrees.benchmarks.perf.federations import parts_of, two_parties
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import schema_of, table
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec, parse_one
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.mask_keys import MaskPlan, usual_threshold
from fedtrees.crypto.masks import MaskedSum, MaskingParty
from fedtrees.crypto.obfuscators import (
    DJNObfuscators,
    Obfuscators,
    OwnerObfuscators,
    PlainObfuscators,
)
from fedtrees.crypto.phe_backend import keys_to_phe
from fedtrees.data.partition import Partition
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.federation import load_dataset, spread
from fedtrees.experiments.suite import DataRef
from fedtrees.messages.aggregation import OpenedSum
from fedtrees.protocols.training import Training, train

_BINS = 32


def lines(size: Size = FULL) -> Iterator[Line]:
    """Measure 2048-bit Paillier, trees of two shapes, and masked sums."""
    keys = KeyPair.generate()
    owner = OwnerObfuscators(keys)
    private = keys_to_phe(keys)
    naive = Naive.measure(private, max(size.trees(40), 5))
    yield from _rates(keys, owner, private, naive, size)
    trees = [
        (_breast_cancer, "breast cancer, 569 x 30 (15), depth 4", (1.5, None)),
        (_large, "30,000 x 23 (11), depth 5", (25.0, 16.0)),
    ]
    for make, what, goal in size.cases(trees):
        yield from _tree(f"a tree of {what}, 32 bins", make(), naive, goal)
    yield _phe_backend(_breast_cancer() if size.scale >= 1 else _toy())
    yield from _masks(size)


@dataclass(frozen=True)
class Naive:
    """Seconds per operation of phe, without packing."""

    encrypt: float
    add: float
    decrypt: float

    @classmethod
    def measure(cls, private: PaillierPrivateKey, count: int) -> Naive:
        """Time each operation `count` times."""
        public = private.public_key
        sealed: list[object] = []
        encrypt = _seconds(lambda: sealed.extend(public.encrypt(0.1 * i) for i in range(count)))
        add = _seconds(lambda: [x + sealed[0] for x in sealed])  # type: ignore[operator]
        raw = [x.ciphertext() for x in sealed]  # type: ignore[attr-defined]
        decrypt = _seconds(lambda: [private.raw_decrypt(c) for c in raw])
        return cls(encrypt / count, add / count, decrypt / count)

    def tree(self, tree: VerticalTree) -> float:
        """Estimate the seconds of a tree with separate ciphertexts for g and h and no packing."""
        n, columns = tree.data.X.shape
        features = columns - columns // 2  # of the party without labels
        cells = 2 * (2**tree.depth - 1) * features * _BINS
        adds = 2 * n * features * tree.depth
        return 2 * n * self.encrypt + adds * self.add + cells * self.decrypt


def _seconds(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    started = time.process_time()
    call()
    return time.process_time() - started


def _rates(
    keys: KeyPair, owner: Obfuscators, private: PaillierPrivateKey, naive: Naive, size: Size
) -> Iterator[Line]:
    """Yield encryption and decryption rates."""
    public, count = keys.public, max(size.rows(2_000), 300)
    values = list(range(count))
    sources = {
        "encrypt, owner of the key": (owner, count, (1_500, 18)),
        "encrypt, DJN with the public key": (DJNObfuscators(public), count // 2, None),
        "encrypt, r^n with the public key": (PlainObfuscators(public), count // 20, None),
    }
    phe_rate = f"phe {1 / naive.encrypt:,.0f}/s"
    for what, (source, several, goal) in sources.items():
        part = values[:several]
        rate = several / _seconds(lambda s=source, v=part: s.encrypt(v))
        ratio = rate * naive.encrypt
        met = None if goal is None else rate >= goal[0] and ratio >= goal[1]
        target = "" if goal is None else f">= {goal[0]:,}/s" + f", {goal[1]}x" * bool(goal[1])
        yield Line(what, f"{rate:,.0f}/s, {ratio:.1f}x", phe_rate, target, met)
    sealed = owner.encrypt(values[: count // 10])
    raw = [int(c) for c in sealed]
    our_seconds = _seconds(lambda: keys.decrypt(sealed)) / len(sealed)
    phe_seconds = _seconds(lambda: [private.raw_decrypt(c) for c in raw]) / len(sealed)
    yield Line(
        "decrypt",
        f"{1 / our_seconds:,.0f}/s, {phe_seconds / our_seconds:.2f}x",
        f"phe {1 / phe_seconds:,.0f}/s",
        ">= 0.9x",
        phe_seconds / our_seconds >= 0.9,
    )


@dataclass(frozen=True)
class VerticalTree:
    """One tree of `secureboost` between two parties with half of the columns each.

    Attributes
    ----------
    data : Table
        Rows with the columns of both parties.
    schema : Schema
        Their columns.
    depth : int
        Depth of the tree.
    """

    data: Table
    schema: Schema
    depth: int

    def train(self, crypto: str) -> tuple[Training, float]:
        """Train the tree, and return the training and its CPU seconds, including a new key.

        Parameters
        ----------
        crypto : str
            As in `secureboost`.
        """
        shape = {"trees": 1, "max_depth": self.depth, "max_bin": _BINS, "colsample_bytree": 1.0}
        protocol = register.make("protocol", Spec("secureboost", {**shape, "crypto": crypto}))
        local_data = two_parties(protocol, self.data)
        started = time.process_time()
        training = train(protocol, local_data, self.schema)
        return training, time.process_time() - started


def _breast_cancer() -> VerticalTree:
    """Return the tree of a small table."""
    dataset = load_dataset(DataRef("breast-cancer"), None)
    return VerticalTree(dataset.table, dataset.schema, depth=4)


def _large() -> VerticalTree:
    """Return the tree of a large table."""
    data = table(30_000, 23)
    return VerticalTree(data, schema_of(data), depth=5)


def _toy() -> VerticalTree:
    data = table(40, 6)
    return VerticalTree(data, schema_of(data), depth=2)


def _tree(
    what: str, tree: VerticalTree, naive: Naive, goal: tuple[float, float | None]
) -> Iterator[Line]:
    """Yield the cost of growing one tree with encrypted histograms."""
    (simulated, _), (real, total) = tree.train("ideal"), tree.train("real")
    X, estimate = tree.data.X, naive.tree(tree)
    assert np.array_equal(simulated.predict(X), real.predict(X)), "encryption changes the model"
    costs = real.transcript.costs
    each = _seconds_of(costs, "added", "multiplied", "decrypted")
    yield Line(
        what,
        f"{total:.2f} s, {estimate / total:.0f}x ({each})",
        f"phe, estimated from its rates, {estimate:.0f} s",
        f"<= {goal[0]} s",
        total <= goal[0],
    )
    if goal[1] is None:
        return
    megabytes = sum(d.nbytes * len(d.receivers) for d in real.transcript) / 1e6
    counts = " + ".join(
        f"{costs[f'ciphertexts:{kind}']:,}" for kind in ("RowStatistics", "BinSums")
    )
    yield Line(
        "the same, ciphertexts out and back",
        f"{counts}, {megabytes:.1f} MB",
        "",
        f"<= {goal[1]} MB",
        megabytes <= goal[1],
    )


def _seconds_of(costs: Mapping[str, float], *operations: str) -> str:
    """List the CPU seconds of operations."""
    return ", ".join(f"{name} {costs[f'cpu_seconds:{name}']:.2f}" for name in operations)


def _phe_backend(tree: VerticalTree) -> Line:
    """Compare both backends on one tree, with the same packing and messages."""
    (_, gmpy2_seconds), (training, phe_seconds) = tree.train("real"), tree.train("phe")
    costs = training.transcript.costs
    parts = _seconds_of(costs, "obfuscators", "added", "decrypted")
    return Line(
        f"a tree of {len(tree.data)} rows with crypto=phe, the same messages",
        f"{phe_seconds:.2f} s, {phe_seconds / gmpy2_seconds:.1f}x gmpy2's time ({parts})",
        f"gmpy2 {gmpy2_seconds:.2f} s",
    )


def _masks(size: Size) -> Iterator[Line]:
    """Time masked sums of histograms with 30 features and 256 bins."""
    names = tuple(f"party {i}" for i in range(5))
    sums = size.trees(40)
    plan = MaskPlan(names, usual_threshold(len(names)), sums)
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(-(2**40), 2**40, (30, 256, 2)) for name in names}
    server = MaskedSum(plan)
    parties = {name: MaskingParty(plan, name) for name in names}
    setup = _seconds(lambda: _exchange(server, parties))
    opened = []
    spent = _seconds(lambda: opened.extend(_sum(server, parties, i, arrays) for i in range(sums)))
    plain = sum(arrays.values())
    assert all(np.array_equal(opened_sum, plain) for opened_sum in opened)
    each = 1000 / (sums * len(names))
    yield Line(
        f"masked sum of 15,360 numbers, {len(names)} parties",
        f"{spent * each:.2f} ms a party, {setup * each:.2f} ms of keys and shares before",
    )


def _exchange(server: MaskedSum, parties: dict[str, MaskingParty]) -> None:
    """Exchange the keys and shares of all parties."""
    for name, party in parties.items():
        server.take_keys(name, party.advertise())
    roster = server.roster()
    for name, party in parties.items():
        server.take_deal(name, party.deal(roster, [*parties]))
    for name, boxes in server.boxes().items():
        parties[name].collect(boxes, [sender for sender in parties if sender != name])


def _sum(
    server: MaskedSum,
    parties: dict[str, MaskingParty],
    index: int,
    arrays: dict[str, NDArray[np.int64]],
) -> NDArray[np.int64]:
    """Return one masked sum."""
    for name, party in parties.items():
        server.take_array(name, index, party.mask(index, arrays[name]))
    survivors = server.survivors(index)
    for name in survivors:
        server.take_shares(name, index, parties[name].unmask(index, survivors))
    return server.open_sum(index).reshape(next(iter(arrays.values())).shape)


_CLIENTS, _FEDERATION_BINS = 3, 32
_NAMES = tuple(f"client-{i}" for i in range(_CLIENTS))

Call = Callable[[str], Callable[[], Training]]


def secure_sums(size: Size = FULL) -> Iterator[Line]:
    """Measure `fedtree-hist` with every kind of aggregation, in CPU seconds of all parties."""
    depth = 4 if size.scale >= 1 else 1
    small = _training(*_breast_cancer_rows(), size.trees(20), depth)
    yield from _mask_costs("breast cancer, 3 clients, 20 trees, depth 4", small, size)
    if size.scale >= 1:
        yield from _mask_costs(
            "30,000 x 23, depth 5", _training(*_large_rows(), size.trees(20), 5), size
        )
    yield from _paillier("breast cancer", small, size)
    yield _backends("breast cancer, 1 tree", _training(*_breast_cancer_rows(), 1, min(depth, 3)))


def _mask_costs(what: str, call: Call, size: Size) -> Iterator[Line]:
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
    spec = Spec("fedtree-hist", {"trees": trees, "max_depth": depth, "max_bin": _FEDERATION_BINS})
    protocol = register.make("protocol", spec)

    def call(defense: str) -> Callable[[], Training]:
        composed = make_defense(parse_one(defense))
        return lambda: train(protocol, local_data, schema, defense=composed)

    return call


def _breast_cancer_rows() -> tuple[Mapping[str, LocalData], Schema]:
    """Return the federation of the bench without its test rows."""
    federation = spread(load_dataset(DataRef("breast-cancer"), None), Partition("iid"), _NAMES, 0)
    return federation.local_data, federation.schema


def _large_rows() -> tuple[Mapping[str, LocalData], Schema]:
    """Return the federation of a large synthetic table."""
    data = table(30_000, 23)
    return over_clients(parts_of(data, _CLIENTS)), schema_of(data)
