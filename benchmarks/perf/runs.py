"""Measure audits, commands, scoring, attacks and complete benches, also by the number of rows."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from fedtrees.benchmarks.perf.measure import (
    FULL,
    Line,
    Size,
    children_seconds,
    command,
    in_fresh_process,
    peak_mib,
)
from fedtrees.benchmarks.perf.rivals import Work, schema_of, table
from fedtrees.core.errors import DataError
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import FederationConfig
from fedtrees.experiments.suite import DataRef
from fedtrees.metrics.records import score_records
from fedtrees.model_audit import audit, read_model
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of


def commands(size: Size = FULL) -> Iterator[Line]:
    """Audit files with many trees, and print the help. Both in CPU seconds."""
    import xgboost

    data = table(size.rows(5_000))
    for trees, depth in size.cases(((500, 6), (10_000, 3))):
        work = Work(size.trees(trees), depth)
        matrix = xgboost.QuantileDMatrix(data.X, data.y, nthread=1)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.json"
            params = {**work.xgboost, "eta": 0.05}
            xgboost.train(params, matrix, work.trees).save_model(file)
            started = time.process_time()
            audit(read_model(file))
        spent = time.process_time() - started
        what = f"audit of a file, {work.trees:,} trees depth {depth}"
        yield Line(what, f"{spent:.1f} s", "", "<= 60 s", spent <= 60)
    before = children_seconds()
    command("--help")
    spent = children_seconds() - before
    yield Line("`fedtrees --help`", f"{spent:.1f} s", "", "<= 5 s", spent <= 5)


# A bench with cells of every stage, but few of them and on a small table, in one process.
SMALL = ["--suite", "smoke", "--data", "wine", "-p", "fedtree-hist[trees=2]", "-a", "random-leaf"]
SMALL += ["-j", "1"]


def bench(size: Size = FULL) -> Iterator[Line]:
    """Time the default bench on two processes with compiled kernels."""
    less = ["-j", "2"] if size.scale >= 1 else SMALL
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command("bench", "--out", str(Path(folder) / "run"), *less)
        wall = time.perf_counter() - started
    # Memory of the largest child process. Its workers need about as much each.
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    yield Line("`fedtrees bench`, two processes, wall", f"{wall:.0f} s", "", "<= 90 s", wall <= 90)
    yield Line("its largest process", f"{mib:.0f} MiB", "", "<= 2048 MiB together", 3 * mib <= 2048)


def mixed_table(rows: int, seed: int) -> Table:
    """Generate rows like Stroke's: three continuous and seven categorical columns, a rare label."""
    rng = np.random.default_rng(seed)
    numbers = rng.gamma(2.0, 20.0, size=(rows, 3))
    codes = np.stack([rng.integers(0, k, rows) for k in (2, 2, 2, 2, 5, 2, 4)], axis=1)
    return Table(np.column_stack([numbers, codes]), (rng.random(rows) < 0.1).astype(np.int64))


def score(rows: int) -> dict[str, float]:
    """Score one guess of `rows` rows against as many true ones with all record metrics."""
    kinds = ["continuous"] * 3 + ["categorical"] * 7
    schema = Schema(tuple(Feature(f"f{i}", kind=k) for i, k in enumerate(kinds)), "y")  # type: ignore[arg-type]
    # Load libraries and compile kernels before the measurement.
    small = [mixed_table(50, s) for s in (0, 1)]
    score_records(small[0], small[1], schema)
    guess, truth = mixed_table(rows, 0), mixed_table(rows, 1)
    started = time.process_time()
    scores = score_records(guess, truth, schema, ("f0", "f4"))
    return {"seconds": time.process_time() - started, "ra": scores.ra, "mib": peak_mib()}


def scoring(size: Size = FULL) -> Iterator[Line]:
    """Compare the scoring with its targets."""
    rows = size.rows(6000)
    measured = in_fresh_process(score, rows)
    what = f"scoring {rows:,} x {rows:,} rows, all record metrics"
    yield Line(what, f"{measured['seconds']:.1f} s", "", "<= 30 s", measured["seconds"] <= 30)
    yield Line(
        "its peak memory", f"{measured['mib']:.0f} MiB", "", "<= 1536 MiB", measured["mib"] <= 1536
    )


# Upper limit in CPU seconds, by table.
TARGETS = {"breast-cancer": None, "pima": 10.0, "stroke": 60.0}
CLIENTS = 5


def attacks(size: Size = FULL, data_dir: str | None = None) -> Iterator[Line]:
    """Attack 100 trees, with all trees and with the number of trees that the attack chooses."""
    iid, any_protocol = Spec("iid"), register.make("protocol", Spec("fedtree-hist"))
    for name, target in size.cases(list(TARGETS.items())):
        try:
            setting = FederationConfig.of(DataRef(name), iid, CLIENTS, 0, any_protocol)
            federation = federation_of(setting, data_dir)
        except DataError as err:
            yield Line(f"TimberStrike, {name}", "not run", str(err))
            continue
        for depth in size.cases((3, 6)):
            for protocol in ("fedtree-hist", "nvflare-hist"):
                spec = Spec(protocol, {"trees": size.trees(100), "max_depth": depth, "max_bin": 32})
                protocol_object = register.make("protocol", spec)
                run = train(protocol_object, federation.local_data, federation.schema)
                view = view_of(run, (f"client-{CLIENTS - 1}",), federation.local_data)
                for attack in ("timberstrike", "timberstrike[max_trees=100]"):
                    yield _attack(name, attack, spec, view, target)


def _attack(name: str, attack: str, spec: Spec, view, target: float | None) -> Line:  # type: ignore[no-untyped-def]
    """Return the line of one attack, measured after a warm-up run."""
    attack_object = register.make("attack", parse_grid(attack)[0])
    attack_object.run(view, Streams(0).rng("warm-up"))
    started = time.process_time()
    attack_object.run(view, Streams(0).rng("attack"))
    seconds = time.process_time() - started
    what = f"{attack} on {name}, {spec}"
    goal = () if target is None else ("", f"<= {target:g} s", seconds <= target)
    return Line(what, f"{seconds:.1f} s", *goal)


ROWS = (1_000, 10_000, 100_000, 1_000_000)
COLUMNS, CLIENTS_OF_ROWS, WARM_UP = 28, 3, 300
#: Adversary that sees bins and sketches, by protocol.
ADVERSARIES = {"fedtree-hist": "server", "nvflare-hist": "client-2"}
# Attacks with the number of steps in the default suite.
ATTACKS = (
    "timberstrike", "joint[steps=100000]", "lattice[steps=500000]",
    "histogram-peeling", "sketch-reading",
)  # fmt: skip
TRAINING = "training"
#: CPU seconds after which a call is stopped.
LIMIT = 300

# A forked process shares the table, so that it is not copied.
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Cost:
    """Cost of one call.

    Attributes
    ----------
    rows : int
        Rows of the table.
    protocol : str
        Protocol.
    what : str
        Name of the attack, `TRAINING`, or ``whole bench``.
    cpu_seconds : float
        CPU seconds.
    mib : float
        Peak memory of the process in MiB, including the table and the training.
    """

    rows: int
    protocol: str
    what: str
    cpu_seconds: float
    mib: float


def costs(rows: Sequence[int] = ROWS, trees: int = 10) -> Iterator[Cost]:
    """Train on tables of increasing size and run each attack in a separate process.

    Calls that exceed `LIMIT` are skipped.

    Parameters
    ----------
    rows : sequence of int
        Numbers of rows.
    trees : int
        Number of trees.
    """
    # The first turn only loads compiled code and is not measured.
    for turn, n in enumerate((WARM_UP, *rows)):
        for protocol, adversary in ADVERSARIES.items():
            started = time.process_time()
            run, local_data = _train(n, f"{protocol}[trees={trees},max_depth=4]")
            spent = time.process_time() - started
            view = view_of(run, (adversary,), local_data)
            if turn:
                yield Cost(n, protocol, TRAINING, spent, peak_mib())
            for name in ATTACKS:
                attack = register.make("attack", parse_grid(name)[0])

                # Default arguments bind the values of this iteration.
                def call(attack=attack, view=view) -> None:  # type: ignore[no-untyped-def]
                    attack.run(view, Streams(0).rng("attack"))

                if not turn:
                    call()
                    continue
                result = _apart(call)
                if result:
                    yield Cost(n, protocol, attack.name, *result)


def _train(rows: int, protocol: str) -> tuple[Training, dict]:  # type: ignore[type-arg]
    """Train a protocol on the synthetic table and return the run and the local data."""
    data = table(rows, COLUMNS)
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    parts = np.array_split(np.arange(rows), CLIENTS_OF_ROWS)
    names = protocol_object.holder_names(CLIENTS_OF_ROWS)
    local_data = {name: LocalData.of(data.take(p), p) for name, p in zip(names, parts, strict=True)}
    return train(protocol_object, local_data, schema_of(data)), local_data


def _apart(call: Callable[[], object]) -> tuple[float, float] | None:
    """Return CPU seconds and peak MiB of a call in a separate process, None beyond `LIMIT`."""
    receiver, sender = FORK.Pipe(duplex=False)

    def work() -> None:
        started = time.process_time()
        # The kernel ends the process when it exceeds the limit.
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        call()
        sender.send((time.process_time() - started, peak_mib()))

    child = FORK.Process(target=work)
    child.start()
    sender.close()
    try:
        seconds, mib = receiver.recv()
        return seconds, mib
    except EOFError:
        return None
    finally:
        child.join()


def attack_rows(size: Size = FULL) -> Iterator[Line]:
    """Yield the cost of training and attacks on tables of `ROWS`."""
    for c in costs([size.rows(n) for n in size.cases(ROWS)], size.trees(10)):
        what = f"{c.what}, {c.protocol}, {c.rows:,} x {COLUMNS}"
        yield Line(what, f"{c.cpu_seconds:.2g} s, {c.mib:.0f} MiB")


COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
# The first grid of the default suite without a defense, with one seed and one process.
RUN = ["-p", "fedtree-hist[trees=10,max_depth=4]", "-d", "none", "--seeds", "1", "-j", "1"]
LESS = ["-p", "fedtree-hist[trees=2]", "-a", "sketch-reading", "--threat", "server"]


def measure_bench(rows: int, options: Sequence[str] = RUN) -> Cost:
    """Run the bench in a separate process, on a file with the given number of rows.

    The memory is the peak of its largest process.
    """
    data = table(rows, COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        file, names = Path(folder) / "table.csv", [*(f"x{k}" for k in range(COLUMNS)), "y"]
        values = np.column_stack([data.X, data.y])
        np.savetxt(file, values, "%.6g", ",", header=",".join(names), comments="")
        before, out = children_seconds(), str(Path(folder) / "run")
        command("bench", *options, "--csv", str(file), "--target", "y", "--out", out)
    # Linux reports the peak of the largest child in KiB.
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Cost(rows, "fedtree-hist", "whole bench", children_seconds() - before, mib)


def bench_rows(size: Size = FULL) -> Iterator[Line]:
    """Yield the cost of a bench on tables of `ROWS`."""
    options = RUN if size.scale >= 1 else [*RUN, *LESS]
    for rows in size.cases(ROWS):
        yield _line(measure_bench(size.rows(rows), options))


def _line(cost: Cost) -> Line:
    """Return the line of one cost."""
    what = f"bench of {cost.rows:,} x {COLUMNS}, no defense, one seed"
    return Line(what, f"{cost.cpu_seconds:.0f} s, {cost.mib:.0f} MiB")


def draw_rows(path: str) -> None:
    """Measure training, attacks and a complete bench by the number of rows, and draw the figure."""
    benches = []
    for step in ROWS:
        benches.append(measure_bench(step))
        print(_line(benches[-1]), flush=True)
    draw(list(costs()), benches, path)


def draw(costs: Sequence[Cost], bench_costs: Sequence[Cost], path: str) -> None:
    """Plot CPU seconds and memory over rows: training, every attack, and a complete bench.

    Parameters
    ----------
    costs : sequence of Cost
        Costs of training and attacks.
    bench_costs : sequence of Cost
        Costs of complete benches.
    path : str
        File of the figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.4), layout="constrained")
    panels = figure.subplots(1, 2)
    names = list(dict.fromkeys(c.what for c in costs))
    for axes, title, field in zip(
        panels, ("CPU seconds", "MiB, process"), ("cpu_seconds", "mib"), strict=True
    ):
        for (name, color), (protocol, style) in product(
            zip(names, COLORS, strict=False), zip(ADVERSARIES, ("-", "--"), strict=True)
        ):
            selected = [c for c in costs if (c.what, c.protocol) == (name, protocol)]
            values = [getattr(c, field) for c in selected]
            label = f"{name}, {protocol}"
            rows = [c.rows for c in selected]
            axes.plot(rows, values, style, marker="o", ms=3, lw=1.2, color=color, label=label)
        rows, values = [c.rows for c in bench_costs], [getattr(c, field) for c in bench_costs]
        label = "whole bench, fedtree-hist"
        axes.plot(rows, values, ":", marker="s", ms=3, color="#777777", label=label)
        axes.set(xscale="log", yscale="log", xlabel=f"rows of {COLUMNS} columns", ylabel=title)
        axes.spines[["top", "right"]].set_visible(False)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3, fontsize=6.5, frameon=False)
    figure.savefig(path, metadata={"Date": None})
