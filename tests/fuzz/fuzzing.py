"""Damaged models, tables and specifications give an error of fedtrees or a correct result.

``python tests/fuzz/fuzzing.py --models 5000 --tables 5000 --specs 2000`` counts the other
outcomes: a traceback, more than 5 seconds of CPU, or more than 1 GB in addition to the memory of
the imports. ``--seed``, the kind and the number determine each case. ``--keep FOLDER`` stores
the files that failed.
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
LONGEST = 4000  # Characters of an error message. A longer message is not readable.


class SlowError(BaseException):
    """A case took too long. It is no Exception, so that handlers of errors do not catch it."""


def read_model_file(rng, folder):
    """Read, apply, audit and print a damaged model; yield its name and caught errors."""
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
    report = audit(read_model(path))
    json.dumps(to_json(report))
    render(report, None)


def read_table_file(rng, folder):
    """Make a dataset from a damaged table; yield its name."""
    from fedtrees.cli.tables import _facts, _interpret
    from fedtrees.data.column_types import columns_of
    from fedtrees.data.csv_file import read_csv
    from fedtrees.data.user_tables import TableSpec, load_csv

    name, data = mutations.table(rng)
    path = folder / name
    path.write_bytes(data)
    yield name
    usual = "column10" if name == "no-header.csv" else "ill"
    target = usual if rng.random() < 0.7 else mutations.pick(rng, ["bmi", "age", "date", "a"])
    table = read_csv(path)
    for column in columns_of(table):
        _facts(table, _interpret(table, column, TableSpec.of({})))
    options = {"task": mutations.pick(rng, ["", "", "", "", "binary", "classes", "number"])}
    if rng.random() < 0.2:
        options["keep"] = ["id", "note"]
    load_csv(path, target, **options)


def read_specification(rng, folder):
    """Read a damaged suite or a damaged specification; yield its text."""
    from fedtrees.core.registry import register
    from fedtrees.core.specs import parse_composed
    from fedtrees.experiments.suite import Grid, Suite

    if rng.random() < 0.4:
        path = folder / "suite.toml"
        path.write_bytes(mutations.suite(rng))
        yield path.name
        Suite.parse(Suite.load(str(path)).to_toml(), "again")
        return
    kind = mutations.pick(rng, ["protocol", "defense", "attack", "metric"])
    text = mutations.spec(rng, kind, register)
    yield f"{kind} {text[:200]!r}"
    if kind != "metric":
        Grid.parse({f"{kind}s": [text]})
    for composed in parse_composed([text])[:20]:
        for part in composed.parts:
            register.make(kind, part)


READ = dict(zip(KINDS, (read_model_file, read_table_file, read_specification), strict=True))


def run_case(kind, seed, number, folder):
    """Return the description of a case, its fault ("" if there is none), and whether it was
    refused.
    """
    from fedtrees.core.errors import FedtreesError

    rng = np.random.default_rng([seed, KINDS.index(kind), number])
    description, started = "", time.process_time()
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(
            signal.ITIMER_VIRTUAL, 4 * SECONDS
        )  # This signal ends the process, also in compiled loops.
        for event in READ[kind](rng, folder):
            description = event if isinstance(event, str) else description
            _check_line(event)
    except FedtreesError as error:
        return description, _fault_of(error), True
    except SlowError:
        return description, f"took more than {SECONDS:g} s\n{traceback.format_exc(limit=-3)}", False
    except BaseException:
        return description, traceback.format_exc(limit=-4), False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    seconds = time.process_time() - started
    return description, f"took {seconds:.1f} s" if seconds > SECONDS else "", False


def _check_line(event):
    if isinstance(event, Exception) and (fault := _fault_of(event)):
        raise AssertionError(fault)


def _fault_of(error):
    """Return the fault of an error of fedtrees: its message is too long."""
    text = str(error)
    return f"says {len(text)} characters: {text[:200]}..." if len(text) > LONGEST else ""


def _raise_slow_error(*_):
    raise SlowError


def run_worker(kind, seed, first, last, keep):
    """Run cases in this process and print a line of JSON for each fault."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _raise_slow_error)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(3):  # Imports and compiled kernels are not part of a case.
            signal.signal(signal.SIGPROF, signal.SIG_IGN)
            run_case(kind, 1 << 40, number, folder)
        signal.signal(signal.SIGPROF, _raise_slow_error)
        bytes_used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (bytes_used + BYTES, resource.RLIM_INFINITY))
        refused = 0
        for number in range(first, last):
            print(json.dumps({"begun": number}), flush=True)
            description, fault, was_refused = run_case(kind, seed, number, folder)
            refused += was_refused
            if fault:
                print(json.dumps({"number": number, "what": description, "fault": fault}))
                for path in folder.iterdir() if keep else ():
                    (Path(keep) / f"{kind}-{seed}-{number}-{path.name}").write_bytes(
                        path.read_bytes()
                    )
            for path in folder.iterdir():
                path.unlink()
    print(json.dumps({"refused": refused}))


def run_limited_process(kind, seed, count, keep=None):
    """Return the faults of some cases and the number of refused ones, computed in a limited
    process.

    If a process ends before its last case, that is a fault, and another process starts with the
    next case.
    """
    findings, first, refused = [], 0, 0
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "NUMBA", "OPENBLAS", "MKL")}
    while first < count:
        command = [sys.executable, __file__, "--worker", kind, f"--{kind}", str(count)]
        command += ["--seed", str(seed), "--first", str(first)]
        command += ["--keep", keep] if keep else []
        environment = os.environ | one_thread
        process = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False
        )
        lines = [json.loads(line) for line in process.stdout.splitlines()]
        findings += [line for line in lines if "fault" in line]
        refused += sum(line.get("refused", 0) for line in lines)
        started_numbers = [line["begun"] for line in lines if "begun" in line]
        if process.returncode == 0:
            break
        if not started_numbers:
            raise RuntimeError(process.stderr)
        fault = f"ended its process: {process.returncode}\n{process.stderr[-2000:]}"
        findings.append({"number": started_numbers[-1], "what": kind, "fault": fault})
        first = started_numbers[-1] + 1
    return findings, refused


def main():
    """Run the cases of the command line. The exit status is the number of faults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, help="cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--keep", help="folder for the files that failed")
    arguments = parser.parse_args()
    if arguments.keep:
        Path(arguments.keep).mkdir(parents=True, exist_ok=True)
    if arguments.worker:
        run_worker(
            arguments.worker,
            arguments.seed,
            arguments.first,
            getattr(arguments, arguments.worker),
            arguments.keep,
        )
        return 0
    total = 0
    for kind in (k for k in KINDS if getattr(arguments, k)):
        count, times_before = getattr(arguments, kind), os.times()
        findings, refused = run_limited_process(kind, arguments.seed, count, arguments.keep)
        for finding in findings:
            print(f"{kind} {finding['number']}: {finding['what']}\n{finding['fault']}")
        times_after = os.times()
        cpu = times_after.children_user + times_after.children_system
        cpu -= times_before.children_user + times_before.children_system
        print(
            f"{kind}: {count} cases, {refused} refused, {len(findings)} went wrong; {cpu:.0f} s CPU"
        )
        total += len(findings)
    return min(total, 100)


if __name__ == "__main__":
    sys.exit(main())
