"""Registry of the performance measurements."""

from collections.abc import Callable, Iterator
from functools import partial

from fedtrees.benchmarks.perf import (
    attack_rows,
    attacks,
    bench_rows,
    central,
    columns,
    commands,
    crypto,
    federations,
    labels,
    memory,
    scoring,
    secure_sums,
    two_threads,
)
from fedtrees.benchmarks.perf.measure import Line, Size


def parts(data_dir: str | None = None) -> dict[str, Callable[[Size], Iterator[Line]]]:
    """Return the measurements by name, in order. Each takes less than nine minutes in full."""
    return {
        "central": central.small,
        "central-million": central.large,
        "memory": memory.lines,
        "threads": two_threads.lines,
        "federations": federations.in_process,
        "columns": columns.lines,
        "labels": labels.lines,
        "plugin": federations.beside_plugin,
        "multiclass": central.multiclass,
        "forests": central.forests,
        "growth-rows": partial(central.by, "rows"),
        "growth-features": partial(central.by, "columns"),
        "growth-bins": partial(central.by, "bins"),
        "growth-depth": partial(central.by, "depth"),
        "growth-clients": federations.by_clients,
        "crypto": crypto.lines,
        "secure-sums": secure_sums.lines,
        "scoring": scoring.lines,
        "attacks": partial(attacks.lines, data_dir=data_dir),
        "commands": commands.lines,
        "bench": commands.bench,
        "bench-rows": bench_rows.lines,
        "attack-rows": attack_rows.lines,
    }
