"""Attacks that look for the truth in every way that their process allows, and an honest one."""

import contextlib
import ctypes
import gc
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Labels, Records
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams

BENCH = 1  # the test puts the process of the bench here
NEEDLE = re.compile(rb"truth lies [h]ere: ([0-9a-f]{32})")


def own_rows_guess(view):
    return Guess((Records(view.rows),))


def guess_from_tables(tables, view):
    """Guess the rows of all tables that have as many columns as the adversary's own."""
    fitting_tables = [
        table for table in tables if table.X.shape[1] == view.rows.X.shape[1] and len(table)
    ]
    return (
        Guess((Records(Table.concat(fitting_tables)),)) if fitting_tables else own_rows_guess(view)
    )


def cheat(name, does):
    @register.attack(name)
    class Cheat(Attack):
        def run(self, view, rng):
            return does(view, rng)

    return Cheat


cheat("honest", lambda view, rng: own_rows_guess(view))
drawn = cheat("draw", lambda view, rng: Guess((Records(view.rows.take(rng.integers(0, 60, 99))),)))


def walk_objects(view, rng):
    local_data = [candidate for candidate in gc.get_objects() if type(candidate) is LocalData]
    return guess_from_tables([data.table for data in local_data if data.y is not None], view)


def walk_frames(view, rng):
    tables, frame = [], sys._getframe()
    while frame is not None:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if isinstance(getattr(value, "local_data", None), dict):
                tables += [h.table for h in value.local_data.values() if h.y is not None]
        frame = frame.f_back
    return guess_from_tables(tables, view)


cheat("walk-objects", walk_objects)
cheat("walk-frames", walk_frames)


def needles(pid):
    """Count the hidden texts in the writable memory of a process; -1 if it is unreadable."""
    needles_in_memory = set()
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                span, rights = line.split()[:2]
                if rights.startswith("rw"):
                    start, end = (int(n, 16) for n in span.split("-"))
                    try:
                        memory.seek(start)
                        needles_in_memory |= set(NEEDLE.findall(memory.read(end - start)))
                    except (OSError, ValueError, OverflowError):
                        continue
    except OSError:
        return -1
    return len(needles_in_memory)


def traced(pid):
    """Return whether a process allows itself to be traced."""
    return ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0  # PTRACE_ATTACH


def read_memory(view, rng):
    server_id, bench_id = os.getppid(), BENCH
    notes = {"self": needles("self"), "server": needles(server_id), "bench": needles(bench_id)}
    notes["traced"] = traced(server_id) + traced(bench_id)
    readable = []
    for path in (f"/proc/{bench_id}/{name}" for name in ("environ", "maps", "cwd", "fd/0", "fd/3")):
        with contextlib.suppress(OSError):
            readable.append(os.readlink(path) if "d" in path[-4:] else Path(path).read_bytes())
    notes["shown"] = len(readable)
    return Guess.none("it claims nothing", notes)


cheat("read-memory", read_memory)


def replace_metrics(view, rng):
    from fedtrees.metrics import records, victims_rows
    from fedtrees.metrics.metric import Score

    for module in (records, victims_rows):
        module.score_records = lambda *_, **__: None
    victims_rows.RecordMetric.score = lambda *_: [Score("ra", 1.0), Score("exact_rows", 1.0)]
    return own_rows_guess(view)


cheat("replace-metrics", replace_metrics)


@register.attack("leave-rows")
class LeaveRows(Attack):
    left = []

    def run(self, view, rng):
        import fedtrees.core.view as module

        rows_of_earlier_runs = [*LeaveRows.left, *vars(module).get("left", [])]
        LeaveRows.left.append(view.rows)
        vars(module).setdefault("left", []).append(view.rows)
        return guess_from_tables([view.rows, *rows_of_earlier_runs], view)


def leave_process(view, rng):
    try:
        pid = os.fork()
    except PermissionError:
        return Guess.none("it claims nothing", {"pid": 0})
    if pid == 0:
        os.setsid()
        import time

        time.sleep(300)
        os._exit(0)
    return Guess.none("it claims nothing", {"pid": pid})


cheat("leave-process", leave_process)


class Twofaced(np.ndarray):
    """An array with different elements at every access."""

    def __array_finalize__(self, other):
        self.looks = getattr(other, "looks", 0) + 1

    def __getitem__(self, key):
        return np.asarray(self)[key] + self.looks


class Changing(Guess):
    """A guess that looks for truth when it is scored."""

    @property
    def claims(self):
        frame = sys._getframe()
        while frame is not None:
            case = frame.f_locals.get("case")
            if case is not None and hasattr(case, "victims_rows"):
                return (Records(case.victims_rows),)
            frame = frame.f_back
        return vars(self)["claims"]

    @claims.setter
    def claims(self, value):
        vars(self)["claims"] = value


def change(view, rng):
    guess = Changing.__new__(Changing)
    vars(guess).update(claims=own_rows_guess(view).claims, notes={})
    return guess


cheat("changing-guess", change)
cheat(
    "changing-array",
    lambda view, rng: Guess(
        (Labels(np.arange(3).view(Twofaced), np.zeros(3, int).view(Twofaced)),)
    ),
)


class Later(Records):
    """A claim whose class looks for the truth when an instance is constructed."""

    def __post_init__(self):
        sys.made_beside_truth = "fedtrees.experiments.evaluate" in sys.modules


cheat("own-claim", lambda view, rng: Guess((Later(view.rows),)))


class Reduced:
    def __reduce__(self):
        return exec, ("import sys; sys.unpickled = True",)


def pickle(view, rng):
    claim = Labels(np.arange(1), np.zeros(1, int), np.ones((1, 1)))
    object.__setattr__(claim, "probability", np.array([[Reduced()]]))  # past the check of the claim
    return Guess((claim,))


cheat("pickle", pickle)


def look_around(view, rng):
    visible_texts = [*sys.argv, *sys.path, *os.environ.values(), os.getcwd(), *os.listdir()]
    is_run_visible = any("needle-run" in text for text in visible_texts)
    return Guess.none("it claims nothing", {"files": len(os.listdir()), "told": is_run_visible})


cheat("look-around", look_around)


@register.attack("try-seeds")
@dataclass(frozen=True)
class TrySeeds(Attack):
    threat: str = "client"

    def run(self, view, rng):
        own_entropy = np.atleast_1d(rng.bit_generator.seed_seq.entropy).tolist()
        hits = 0
        for seed in range(200):
            streams = [Streams(seed), Streams(seed).child("attack", self.threat)]
            generators = [
                stream.rng(name)
                for stream in streams
                for name in ("attack", "try-seeds", "guesses")
            ]
            states = [generator.bit_generator.state for generator in generators]
            words = [
                np.atleast_1d(generator.bit_generator.seed_seq.entropy).tolist()
                for generator in generators
            ]
            hits += (
                rng.bit_generator.state in states or own_entropy in words or own_entropy == [seed]
            )
        return Guess.none("it claims nothing", {"hits": hits})


def ask_too_much(view, rng):
    view.oracle.query(view.rows.X[:3])
    view.oracle.log.clear()
    view.oracle.budget = 10**9
    try:
        view.oracle.query(view.rows.X[:3])
    except Exception as err:
        refused = "the 2 of 5 rows that are left" in str(err)
        return Guess.none("it claims nothing", {"asked": 3, "refused": refused})
    return Guess.none("it claims nothing", {"asked": 6, "refused": False})


cheat("ask-too-much", ask_too_much)


def garbage(view, rng):
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(fd, b"\xff" * 7 + b"\0" + b"x" * 999)
    os._exit(0)


cheat("garbage", garbage)
cheat("huge", lambda view, rng: Guess((Labels(np.arange(10**5), np.zeros(10**5, int)),)))


def sleep(view, rng):
    import time

    time.sleep(600)


def leave(view, rng):
    os._exit(3)


def fail(view, rng):
    raise LookupError("nothing to be found in " + repr(view.principals))


cheat("sleep", sleep)
cheat("leave", leave)
cheat("fail", fail)
