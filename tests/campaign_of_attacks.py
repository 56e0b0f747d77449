"""Run all attacks on all protocols with all defenses that fit, on a table of 60 rows.

``python tests/campaign_of_attacks.py --seeds 1`` runs one seed of every protocol. A cell that does
not apply is skipped, and a cell that raises an error is *failed*. A measurement is *suspicious* if
it has neither a value nor a reason, if a cell is skipped without a reason, or if a score exceeds
its ceiling. The campaign ends with exit code 1 if there is a failed cell or a suspicious
measurement. Sizes are chosen so that a cell takes about a second: a few trees, few rounds, and
little effort of attacks that search.
"""

import argparse
import inspect
import json
import os
import re
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from result_rows import read_rows

from fedtrees.conformance.attacks import cheated_runs
from fedtrees.conformance.samples import trainable
from fedtrees.core.attack import contenders
from fedtrees.core.errors import UsageError
from fedtrees.core.registry import register
from fedtrees.core.results import measures
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import Spec
from fedtrees.core.transcript import PUBLIC
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite, roles_of, threat_fits
from fedtrees.protocols.compatibility import check_fit

ROWS = 60
SECONDS = 120  # of one training or one attack by default; more is needed on a loaded machine
#: Parameters of a protocol that make it small, where it has them.
SMALL = {"trees": 2, "max_depth": 2, "depth": 2, "max_bin": 8, "rounds": 2, "iterations": 2,
         "max_rounds": 2, "units": 4, "batch": 8, "channels": 2, "bits": 1024}  # fmt: skip
#: Parameters that a protocol needs besides, for example to be trained on 60 rows. The defense
#: `dp-gd` takes no batches.
NEEDED = {"regression": {"bits": 24, "batch": 0}}
#: Parameters of defenses: those without a default, and less effort.
STRENGTH = {"epsilon": 4.0, "xi": 0.1, "scale": 0.1, "step": 0.01, "share": 0.1}
DEFENSES = {"paillier": {"mode": "ideal"}}
# Less effort of attacks that search, with the same algorithm.
EFFORT = {
    "draft-dp": {"work": 0.001},
    "label-mixture": {"rows": 40},
    "few-shot": {"rows": 40},
    "routed-labels": {"rows": 40},
    "timberstrike": {"chains": 1},
    "joint": {"steps": 500, "chains": 2},
    "lattice": {"steps": 2000},
    "leaf-inversion": {"batches": 1, "restarts": 2, "steps": 20},
    "tableak": {"steps": 20},
    "dlg": {"steps": 20},
    "cosine": {"steps": 20},
    "tableak-published": {"steps": 20},
}
#: Amounts of knowledge and queries that a table of 60 rows has.
AMOUNTS = {"queries": 100, "entries": 10, "labels": 10}
#: Columns that identify a cell.
CELL = ("stage", "protocol", "defense", "defense_params", "threat", "attack", "seed")
TOP = ("a", "c")  # columns that are scored separately
#: Measures that have no value for some guesses by definition: the Hamming distance needs tables of
#: bits, and the area under the curve needs probabilities of two classes.
UNDEFINED = ("hamming", "label_auc", "routed_auc")
TABLES = ("binary", "classes", "number", "holes")


def table_of(kind: str) -> Dataset:
    """Make a table of 60 rows with declared ranges, one categorical column, and a target."""
    rng = np.random.default_rng([8, TABLES.index(kind)])
    X = np.column_stack([rng.normal(size=(ROWS, 3)), rng.integers(0, 3, ROWS)]).round(3)
    score = X[:, 0] + X[:, 1] + rng.normal(0, 0.3, ROWS)
    if kind == "holes":
        X[rng.random(X.shape) < 0.15] = np.nan
    features = [Feature(name, low=-8.0, high=8.0) for name in "abd"]
    features.append(Feature("c", kind="categorical", categories=("x", "y", "z")))
    if kind == "number":
        return prepare("number", Schema(tuple(features), "label", ()), X, score, top=TOP)
    y = np.digitize(score, np.quantile(score, [1 / 3, 2 / 3] if kind == "classes" else [0.5]))
    classes = ("p", "q", "r")[: len(np.unique(y))]
    return prepare(kind, Schema(tuple(features), "label", classes), X, y, top=TOP)


def needs(name: str) -> dict[str, object]:
    """Return the parameters of a defense that have no default."""
    parameters = inspect.signature(register.get("defense", name)).parameters.items()
    missing = [key for key, p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return {key: STRENGTH[key] for key in missing if key in STRENGTH} | DEFENSES.get(name, {})


def threats_of(protocol: Spec) -> list[str]:
    """Return an adversary of every role, and those that attacks need, if the protocol has them.

    Behaviours are left out if the protocol has no party whose place they take.
    """
    protocol_class = register.get("protocol", protocol.name)
    roles = roles_of(register.make("protocol", protocol), parties_of(protocol_class)).values()
    needed = [threat for name in contenders() for threat in register.get("attack", name).threats]
    threats = [*protocol_class.info.adversaries, *roles, PUBLIC, *map(scaled, needed)]
    return [
        threat
        for threat in dict.fromkeys(threats)
        if threat_fits(threat, protocol) and takes_place(threat, protocol)
    ]


@cache
def takes_place(threat: str, protocol: Spec) -> bool:
    """Return whether the behaviour of a threat, if it has one, fits a party of the protocol."""
    behaviour = threat.partition(":")[2].partition("[")[0]
    return not behaviour or any(
        run.transcript.roles[party] == threat.partition(":")[0]
        for run, _, party in cheated_runs(behaviour, [str(protocol)])
    )


def scaled(threat: str) -> str:
    """Return a threat with `AMOUNTS` in place of its amounts."""
    for name, amount in AMOUNTS.items():
        threat = re.sub(rf"{name}=\d+", f"{name}={amount}", threat)
    return threat


def fitting(protocol: Spec) -> list[str]:
    """Return the defenses that a protocol takes, with parameters; "none" first."""
    protocol_object = register.make("protocol", protocol)
    specs = [Spec(name, needs(name)) for name in register.names("defense")]
    return [
        "none",
        *(
            str(spec)
            for spec in specs
            if check_fit(protocol_object, [register.make("defense", spec)]).ok
        ),
    ]


def parties_of(protocol: type) -> int:
    return 2 if protocol.layout == "vertical" else 3


def suite_of(protocol: str, table: str, seed: int, seconds: float) -> str:
    """Return the suite of one protocol, as TOML."""
    protocol_class = register.get("protocol", protocol)
    small = SMALL | {
        k: v for name, more in NEEDED.items() if name in protocol for k, v in more.items()
    }
    if table == "number":  # gradients of a number are not bounded by themselves
        small["clip"] = 3.0
    parameters = inspect.signature(protocol_class).parameters
    spec = Spec(protocol, {key: value for key, value in small.items() if key in parameters})
    lists = {
        "data": [f"campaign-{table}"],
        "protocols": [str(spec)],
        "defenses": fitting(spec),
        "threats": threats_of(spec),
        "attacks": [str(Spec(name, EFFORT.get(name, {}))) for name in contenders()],
        "clients": [parties_of(protocol_class)],
    }
    grid = "\n".join(f"{key} = {json.dumps(value)}" for key, value in lists.items())
    return f"name = 'campaign'\nseeds = [{seed}]\ntime_limit = {seconds}\n[[grid]]\n{grid}\n"


def run(suite: Suite, folder: Path) -> tuple[Counter[str], list[str]]:
    """Run the suite of one protocol and return its cells by status, and the failures."""
    bench = BenchSession(suite, folder)
    bench.open(resume=False)
    bench.run()
    statuses, failed = Counter[str](), []
    rows = read_rows(folder)
    cells = {}
    for row in rows:
        key = tuple(row[name] for name in CELL)
        if row["stage"] in ("train", "attack") or row["status"] in ("failed", "timeout"):
            cells[key] = row["status"], row["reason"]
        if doubt := doubt_about(row):
            statuses[f"{row['stage']} suspicious"] += 1
            failed.append(f"suspicious: {' '.join(key)}: {row['metric']} {row['part']}: {doubt}")
    for key, (status, reason) in cells.items():
        statuses[f"{key[0]} {status}"] += 1
        if status not in ("ok", "skipped"):
            failed.append(f"{status}: {' '.join(key)}: {reason}")
    return statuses, failed


def doubt_about(row: dict[str, str]) -> str:
    """Return why a measurement is suspicious, "" if it is not."""
    if row["status"] != "ok":
        return "" if row["reason"] else f"{row['status']} without a reason"
    if row["metric"] in UNDEFINED:
        return ""
    if row["metric"] and row["value"] == "":
        return "" if row["reason"] else "neither a value nor a reason"
    best = measures()[row["metric"]].best if row["metric"] in measures() else None
    if best is None or row["ceiling"] == "":
        return ""
    excess = float(row["value"]) - float(row["ceiling"])
    # A smaller error is better, so that its ceiling is the smallest one possible.
    return "better than its ceiling" if (excess if best > 0 else -excess) > 1e-9 else ""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--protocol", action="append", help="default: every one, repeatable")
    options.add_argument("--table", action="append", choices=TABLES, help="default: binary")
    options.add_argument("--time-limit", type=float, default=SECONDS, metavar="SECONDS")
    arguments = options.parse_args()
    for table_kind in TABLES:
        register.dataset(f"campaign-{table_kind}")(
            lambda *_, table_kind=table_kind, **__: table_of(table_kind)
        )
    total, problems, start = Counter[str](), [], time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        for table in arguments.table or ("binary",):
            for protocol in arguments.protocol or trainable():
                with TemporaryDirectory() as folder:
                    try:
                        text = suite_of(protocol, table, seed, arguments.time_limit)
                        suite = Suite.parse(text, "campaign")
                        counted, failed = run(suite, Path(folder) / "run")
                    except UsageError as error:
                        # Every protocol takes two classes. Some take no other target.
                        counted = Counter({"refused": 1})
                        failed = [f"refused: {error}"] if table == "binary" else []
                        print(f"   {table}, {protocol}: {error}", flush=True)
                    # The suite cannot be planned, which is an error although no cell failed.
                    except Exception as error:
                        counted = Counter({"not planned": 1})
                        failed = [f"not planned: {type(error).__name__}: {error}"]
                total += counted
                problems += [f"{table}: {text}" for text in failed]
                seconds = time.monotonic() - start
                print(
                    f"{seconds:6.0f} s, seed {seed}, {table}, {protocol}: {dict(counted)}",
                    flush=True,
                )
                for text in failed:
                    print(f"   {text}", flush=True)
    print(f"{len(problems)} cells failed or are suspicious; {dict(total)}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    main()
