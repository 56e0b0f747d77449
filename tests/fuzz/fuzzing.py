"""Damaged models, tables and specifications end in an error of ours or in an answer.

``python tests/fuzz/fuzzing.py --models 5000 --tables 5000 --specs 2000`` counts what does not: a
traceback, more than 5 seconds of CPU, or more than 1 GB beyond what the imports take. Every case
follows from ``--seed``, its kind and its number; ``--keep FOLDER`` keeps the files that failed.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import mutations
import numpy as np

KINDS = ("models", "tables", "specs")
SECONDS = 5.0
BYTES = 2**30
LONGEST = 4000  # characters of an error: more are no clear line


class SlowError(BaseException):
    """A case took too long; no handler of errors may take it for one."""


def read_a_model(rng, folder):
    """Read, predict by, audit and print a damaged model; return its name."""
    from fedtrees.core.errors import FedtreesError
    from fedtrees.model_audit import audit, read_model
    from fedtrees.model_audit.page import render
    from fedtrees.model_audit.verdict import to_json
    from fedtrees.trees.files.models import load_model

    name, data = mutations.model(rng)
    path = folder / name
    path.write_bytes(data)
    yield name
    try:
        load_model(path).predict(np.zeros((2, 40), np.float32))
    except FedtreesError as error:
        yield error
    found = audit(read_model(path))
    json.dumps(to_json(found))
    render(found, None)


def read_a_table(rng, folder):
    """Make a dataset of a damaged table; return its name."""
    from fedtrees.cli.tables import _facts, _read
    from fedtrees.data.column_types import columns_of
    from fedtrees.data.csv_file import read_csv
    from fedtrees.data.user_tables import load_csv

    name, data = mutations.table(rng)
    path = folder / name
    path.write_bytes(data)
    yield name
    usual = "column10" if name == "no-header.csv" else "ill"
    target = usual if rng.random() < 0.7 else mutations.chosen(rng, ["bmi", "age", "date", "a"])
    table = read_csv(path)
    for column in columns_of(table):
        _facts(table, _read(table, column))
    said = {"task": mutations.chosen(rng, ["", "", "", "", "binary", "classes", "number"])}
    if rng.random() < 0.2:
        said["keep"] = ["id", "note"]
    load_csv(path, target, **said)


def read_a_spec(rng, folder):
    """Read a damaged suite, or make what a damaged specification names; return its text."""
    from fedtrees.core.registry import register
    from fedtrees.core.specs import parse_composed
    from fedtrees.experiments.suite import Grid, Suite

    if rng.random() < 0.4:
        path = folder / "suite.toml"
        path.write_bytes(mutations.suite(rng))
        yield path.name
        Suite.parse(Suite.load(str(path)).to_toml(), "again")
        return
    kind = mutations.chosen(rng, ["protocol", "defense", "attack", "metric"])
    text = mutations.spec(rng, kind, register)
    yield f"{kind} {text[:200]!r}"
    if kind != "metric":
        Grid.parse({f"{kind}s": [text]})
    for composed in parse_composed([text])[:20]:
        for part in composed.parts:
            register.make(kind, part)


READ = dict(zip(KINDS, (read_a_model, read_a_table, read_a_spec), strict=True))


def case(kind, seed, number, folder):
    """Return what a case was, what went wrong ("": nothing did), and whether it was refused."""
    from fedtrees.core.errors import FedtreesError

    rng = np.random.default_rng([seed, KINDS.index(kind), number])
    said, began = "", time.process_time()
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(
            signal.ITIMER_VIRTUAL, 4 * SECONDS
        )  # ends the process, compiled loops, too
        for told in READ[kind](rng, folder):
            said = told if isinstance(told, str) else said
            _check_line(told)
    except FedtreesError as error:
        return said, _fault_of(error), True
    except SlowError:
        return said, f"took more than {SECONDS:g} s\n{traceback.format_exc(limit=-3)}", False
    except BaseException:
        return said, traceback.format_exc(limit=-4), False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    took = time.process_time() - began
    return said, f"took {took:.1f} s" if took > SECONDS else "", False


def _check_line(told):
    if isinstance(told, Exception) and (fault := _fault_of(told)):
        raise AssertionError(fault)


def _fault_of(error):
    """Return what is wrong with an error of ours: it is no clear line, but a page."""
    text = str(error)
    return f"says {len(text)} characters: {text[:200]}..." if len(text) > LONGEST else ""


def _slow(*_):
    raise SlowError


def work(kind, seed, first, last, keep):
    """Run cases in this process and print a line of JSON for each that went wrong."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _slow)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(3):  # imports and compiled kernels are no part of a case
            signal.signal(signal.SIGPROF, signal.SIG_IGN)
            case(kind, 1 << 40, number, folder)
        signal.signal(signal.SIGPROF, _slow)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, resource.RLIM_INFINITY))
        refused = 0
        for number in range(first, last):
            print(json.dumps({"begun": number}), flush=True)
            what, fault, no = case(kind, seed, number, folder)
            refused += no
            if fault:
                print(json.dumps({"number": number, "what": what, "fault": fault}))
                for path in folder.iterdir() if keep else ():
                    (Path(keep) / f"{kind}-{seed}-{number}-{path.name}").write_bytes(
                        path.read_bytes()
                    )
            for path in folder.iterdir():
                path.unlink()
    print(json.dumps({"refused": refused}))


def run(kind, seed, count, keep=None):
    """Return what went wrong in so many cases, and how many were refused, in a limited process.

    A process that ends before its last case is a finding, and the next begins behind it.
    """
    found, first, refused = [], 0, 0
    alone = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "NUMBA", "OPENBLAS", "MKL")}
    while first < count:
        command = [sys.executable, __file__, "--worker", kind, f"--{kind}", str(count)]
        command += ["--seed", str(seed), "--first", str(first)]
        command += ["--keep", keep] if keep else []
        environment = os.environ | alone
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found += [line for line in lines if "fault" in line]
        refused += sum(line.get("refused", 0) for line in lines)
        begun = [line["begun"] for line in lines if "begun" in line]
        if done.returncode == 0:
            break
        if not begun:
            raise RuntimeError(done.stderr)
        fault = f"ended its process: {done.returncode}\n{done.stderr[-2000:]}"
        found.append({"number": begun[-1], "what": kind, "fault": fault})
        first = begun[-1] + 1
    return found, refused


def main():
    """Run what the command line says; the exit status is the number of findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, help="cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--keep", help="folder for the files that failed")
    said = parser.parse_args()
    if said.keep:
        Path(said.keep).mkdir(parents=True, exist_ok=True)
    if said.worker:
        work(said.worker, said.seed, said.first, getattr(said, said.worker), said.keep)
        return 0
    total = 0
    for kind in (k for k in KINDS if getattr(said, k)):
        count, began = getattr(said, kind), os.times()
        found, refused = run(kind, said.seed, count, said.keep)
        for one in found:
            print(f"{kind} {one['number']}: {one['what']}\n{one['fault']}")
        ended = os.times()
        cpu = ended.children_user + ended.children_system
        cpu -= began.children_user + began.children_system
        print(f"{kind}: {count} cases, {refused} refused, {len(found)} went wrong; {cpu:.0f} s CPU")
        total += len(found)
    return min(total, 100)


if __name__ == "__main__":
    sys.exit(main())
