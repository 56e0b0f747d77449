"""Registry of the performance measurements."""

from collections.abc import Callable, Iterator
from functools import partial

from fedtrees.benchmarks.perf import central, crypto, federations, runs, scaling
from fedtrees.benchmarks.perf.measure import Line, Size


def parts(data_dir: str | None = None) -> dict[str, Callable[[Size], Iterator[Line]]]:
    """Return the measurements by name, in order. Each takes less than nine minutes in full."""
    return {
        "central": central.small,
        "central-million": central.large,
        "memory": central.peak_memory,
        "threads": central.two_threads,
        "federations": federations.in_process,
        "columns": federations.vertical,
        "labels": federations.label_attacks,
        "plugin": federations.beside_plugin,
        "multiclass": central.multiclass,
        "forests": central.forests,
        "growth-rows": partial(central.by, "rows"),
        "growth-features": partial(central.by, "columns"),
        "growth-bins": partial(central.by, "bins"),
        "growth-depth": partial(central.by, "depth"),
        "growth-clients": federations.by_clients,
        "clients": scaling.by_clients_and_rows,
        "crypto": crypto.lines,
        "secure-sums": crypto.secure_sums,
        "scoring": runs.scoring,
        "attacks": partial(runs.attacks, data_dir=data_dir),
        "commands": runs.commands,
        "bench": runs.bench,
        "bench-rows": runs.bench_rows,
        "attack-rows": runs.attack_rows,
    }
