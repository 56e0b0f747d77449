"""Attacks run where truth never was: what each cheat finds there, and how each mishap ends."""

import json
import os
import secrets
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from result_rows import read_rows

import fedtrees.isolation.process as process
from fedtrees.conformance.samples import sample_training
from fedtrees.core.claims import Labels, Records
from fedtrees.core.errors import DataError, ProtocolError
from fedtrees.core.limits import TimeLimit, limited
from fedtrees.core.reasons import FITS
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import Spec, parse_one
from fedtrees.core.wire import pack, unpack
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.isolation import sandbox, transfer
from fedtrees.isolation.process import AttackError, AttackProcess, attack_process
from fedtrees.protocols.views import view_of

PLUGIN = Path(__file__).parent / "plugins" / "cheats.py"
PROTOCOL = Spec("fedtree-hist", {"trees": 3, "max_depth": 3, "max_bin": 16})


@pytest.fixture(scope="module")
def trained():
    return sample_training(register.make("protocol", PROTOCOL))


@pytest.fixture(scope="session")
def cheats(tmp_path_factory):
    """Return a plug-in that knows the number of this process, which no attack can find out."""
    file = tmp_path_factory.mktemp("plugin") / "cheats.py"
    file.write_text(PLUGIN.read_text().replace("BENCH = 1", f"BENCH = {os.getpid()}"))
    return file


@pytest.fixture(autouse=True)
def plugin(cheats):
    load_plugin(cheats)
    return cheats


@pytest.fixture
def source(monkeypatch, plugin):
    """The same code, run beside truth as no bench runs it."""
    monkeypatch.setattr(register, "attack", lambda name: lambda thing: thing)
    spec = spec_from_file_location("cheats_beside_truth", plugin)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def view_in(trained, who="client-2", queries=0):
    training, held = trained
    return view_of(training, (who,), held, queries)


def run(name, view, **options):
    return attack_process().run(Spec(name), view, **options)


def rows_in(table):
    return {row.tobytes() for row in np.column_stack([table.X, table.y])}


def test_a_view_comes_back_as_it_was():
    defense = make_defense(parse_one("split-only+laplace-hist[epsilon=4]"))
    training, held = sample_training(register.make("protocol", PROTOCOL), defense)
    for who in (("server",), ("client-1", "client-2"), ("public",)):
        view = view_of(training, who, held, 50)
        view.oracle.query(view_in((training, held)).rows.X[:7])
        packed = b"".join(map(bytes, pack(transfer.view_as_value(view))))
        again = transfer.view_of(unpack(packed, transfer.view_types()), lambda X: X)
        assert b"".join(map(bytes, pack(transfer.view_as_value(again)))) == packed
        assert again.schema == view.schema
        assert again.parameters == view.parameters
        assert again.defense == view.defense
        assert again.defense is not view.defense
        assert (again.oracle.budget, again.oracle.left) == (50, 43)
        assert [s.reason for s in again.seen] == [s.reason for s in view.seen]
        assert len({id(s.message) for s in again.seen}) == len({id(s.message) for s in view.seen})


@pytest.mark.parametrize("text", ["timberstrike[chains=2,max_trees=2]", "draw", "draw afresh"])
def test_the_same_randomness_give_the_same_guess_here_and_there(trained, text, source):
    view = view_in(trained)
    spec = parse_one(text.removesuffix(" afresh")).parts[0]
    where = AttackProcess(forks=False) if text.endswith("afresh") else attack_process()
    there = where.run(spec, view)
    randomness = transfer.randomness(view, spec.name)
    code = source.drawn() if "draw" in text else register.make("attack", spec)
    here = code.run(view, transfer.generator(randomness))
    for a, b in zip(here.claims, there.guess.claims, strict=True):
        told = [b"".join(map(bytes, pack(claim))) for claim in (a, b)]
        assert told[0] == told[1]
    assert there.cpu > 0


def test_what_applies_is_asked_of_many_attacks_at_once(trained):
    names = ("timberstrike", "histogram-peeling", "random-leaf")
    specs = [Spec(n) for n in names]
    for who in ("server", "client-2"):
        view = view_in(trained, who)
        reasons = [register.make("attack", s).inapplicable(view) for s in specs]
        assert attack_process().reasons(specs, view) == [reason or FITS for reason in reasons]
    assert reasons[1] is not None


@pytest.mark.parametrize("name", ["walk-objects", "walk-frames"])
def test_no_rows_but_own_ones_are_in_memory(trained, name, source):
    view = view_in(trained)
    federation = trained  # in a frame of this process, as in a bench's
    assert federation
    (claim,) = run(name, view).guess.claims
    assert rows_in(claim.table) == rows_in(view.rows)
    # here, where truth is, the same attack finds it
    if name == "walk-objects":
        (here,) = source.walk_objects(view, None).claims
        assert rows_in(here.table) > rows_in(view.rows)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_nobody_s_memory_can_be_read(trained, source):
    truth = f"truth lies here: {secrets.token_hex(16)}".encode()
    assert source.needles("self") == 1  # of this process, by itself
    notes = run("read-memory", view_in(trained)).guess.notes
    assert notes == {"self": 0, "server": -1, "bench": -1, "traced": 0, "shown": 0}
    assert truth


def test_what_is_left_in_a_process_is_gone_with_it(trained):
    views_of_two = [view_in(trained, who) for who in ("client-1", "client-2", "client-1")]
    for view in views_of_two:
        (claim,) = run("leave-rows", view).guess.claims
        assert rows_in(claim.table) == rows_in(view.rows)
    if sys.platform == "linux":
        assert run("leave-process", views_of_two[0]).guess.notes == {"pid": 0}  # it starts none


def test_what_comes_back_is_plain(trained):
    view = view_in(trained)
    (claim,) = run("changing-guess", view).guess.claims
    assert type(claim) is Records
    assert rows_in(claim.table) == rows_in(view.rows)
    (claim,) = run("changing-array", view).guess.claims
    assert type(claim) is Labels
    assert type(claim.ids) is np.ndarray
    assert claim.ids.tolist() == [0, 1, 2]
    assert not claim.ids.flags.writeable
    with pytest.raises(ProtocolError, match="claims Later, which no metric scores"):
        run("own-claim", view)
    with pytest.raises(DataError, match="array of object cannot cross"):
        run("pickle", view)
    assert not hasattr(sys, "unpickled")
    assert not hasattr(sys, "made_beside_truth")
    with pytest.raises(ProtocolError, match="something else than a guess"):
        transfer.guess_of({"claims": (), "notes": {}})


@pytest.mark.long
def test_neither_seed_nor_paths_are_handed_over(trained, tmp_path, monkeypatch):
    folder = tmp_path / "needle-run"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FEDTREES_DATA", str(folder))
    monkeypatch.setattr(sys, "argv", ["fedtrees", "--out", str(folder)])
    fresh = AttackProcess()
    try:
        notes = fresh.run(Spec("look-around"), view_in(trained)).guess.notes
    finally:
        fresh.end()
    assert notes == {"files": 0, "told": 0}
    assert run("try-seeds", view_in(trained)).guess.notes == {"hits": 0}


def test_randomness_follow_from_what_is_held_whatever_defends(trained):
    def randomness(view, name="x"):
        return transfer.randomness(view, name)

    training, held = trained
    assert randomness(view_in(trained)) == randomness(view_in(sample_training(training.protocol)))
    mine = {n: h for n, h in held.items() if n == "client-2"}
    assert randomness(view_in(trained)) == randomness(view_of(training, ("client-2",), mine))
    defense = make_defense(parse_one("laplace-hist[epsilon=1]"))
    defended = view_in(sample_training(training.protocol, defense))
    assert arrays(defended) != arrays(view_in(trained))
    assert randomness(view_in(trained)) == randomness(defended)
    others = [view_in(trained, "client-1"), view_in(trained, "server")]
    assert (
        len(
            {
                randomness(view_in(trained)),
                randomness(view_in(trained), "y"),
                *map(randomness, others),
            }
        )
        == 4
    )


def arrays(view):
    """Return the bytes of all that a view saw."""
    return b"".join(bytes(chunk) for chunk in pack(transfer.view_as_value(view)["messages"]))


def test_queries_are_counted_where_the_model_is(trained):
    view = view_in(trained, queries=5)
    assert run("ask-too-much", view).guess.notes == {"asked": 3, "refused": 1}
    assert view.oracle.log == [3]


@pytest.mark.long
def test_every_mishap_has_its_error_and_the_next_attack_runs(trained, monkeypatch):
    view = view_in(trained)
    with pytest.raises(AttackError, match="LookupError: nothing to be found") as raised:
        run("fail", view)
    assert "in fail\n" in raised.value.traceback
    with pytest.raises(ProtocolError, match=r"killed twice \(exit code 3\)"):
        run("leave", view)
    with pytest.raises(ProtocolError, match="at most"):
        run("garbage", view)
    with monkeypatch.context() as patch:
        patch.setattr(process, "MOST_BYTES", 10**6)
        with pytest.raises(ProtocolError, match="at most 1000000 are taken"):
            run("huge", view)
    assert len(run("huge", view).guess.claims[0].ids) == 10**5
    begun = time.monotonic()
    with pytest.raises(TimeLimit), limited(1.0):
        run("sleep", view)
    assert time.monotonic() - begun < 60
    assert attack_process()._process is None  # it is gone, and its sleeping copy with it
    (claim,) = run("honest", view).guess.claims
    assert rows_in(claim.table) == rows_in(view.rows)


SUITE = """
name = "tiny"
seeds = [0]
[[grid]]
data = ["wine"]
protocols = ["fedtree-hist[trees=2,max_depth=2,max_bin=16]"]
attacks = ["honest", "replace-metrics", "changing-guess", "walk-objects", "fail"]
"""


def test_in_a_bench_no_cheat_scores_more_than_own_rows(tmp_path, plugin):
    bench = BenchSession(Suite.parse(SUITE, "tiny"), tmp_path / "run", plugins=(str(plugin),))
    bench.open(resume=False)
    bench.run()
    rows = [r for r in read_rows(tmp_path / "run") if r["stage"] == "attack"]
    (failed,) = [r for r in rows if r["status"] != "ok"]
    assert (failed["attack"], failed["status"]) == ("fail", "failed")
    assert failed["reason"].startswith("LookupError: nothing to be found in ('client-2',)")
    scores = {}
    for r in rows:
        if r["metric"] not in ("cpu_seconds", ""):
            scores.setdefault(r["attack"], {})[r["metric"]] = (r["value"], r["advantage"])
    assert len(scores) == 4
    for name in scores:
        assert scores[name] == scores["honest"]
    assert float(scores["honest"]["ra"][0]) < 1


SPY = Path(__file__).parent / "plugins" / "spy.py"
SPYING = """
name = "spying"
seeds = [0]
[[grid]]
data = ["wine"]
protocols = ["fedtree-hist[trees=2,max_depth=2,max_bin=16]"]
attacks = ["spy"]
"""
WITHOUT_LANDLOCK = """
import json
from fedtrees.isolation import sandbox
from fedtrees.isolation.process import attack_process

assert sandbox.refuse_call(444)  # the call that makes a set of Landlock's rules
assert sandbox.landlock_version() == 0
print(json.dumps(attack_process().refused()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is closed elsewhere, and docs say so")
def test_a_spy_finds_neither_run_nor_transcript_nor_command_line(trained, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    spy = tmp_path / "spy.py"  # beside the run, as a plugin in the folder that one works in
    told = SPY.read_text().replace('Path("runs")', f"Path({str(folder)!r})")
    spy.write_text(told.replace("BENCH = os.getppid()", f"BENCH = {os.getpid()}"))
    bench = BenchSession(Suite.parse(SPYING, "spying"), folder, plugins=(str(spy),))
    bench.open(resume=False)
    assert folder.stat().st_mode & 0o777 == bench.store.cells.stat().st_mode & 0o777 == 0o700
    trained[0].transcript.save(bench.store.cells / "other.transcript.npz")

    monkeypatch.setenv("HOME", str(tmp_path))
    alone = [sys.executable, str(spy)]
    out = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert all(json.loads(out).values()), out  # where nothing is closed, every way leads there

    assert bench.run()["failed"] == 0
    rows = [r for r in read_rows(folder) if r["metric"] == "note"]
    found = {r["part"]: float(r["value"]) for r in rows}
    assert found.keys() == json.loads(out).keys()
    refused = attack_process().refused()
    assert refused["read the memory"]
    assert refused["read files of runs"] == (sandbox.landlock_version() > 0)
    if sandbox.landlock_version():
        assert not any(found.values()), found
    else:
        assert not any(found[name] for name in ("datagram", "sockets", "shared memory")), found


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="nothing is closed elsewhere, and docs say so")
def test_a_kernel_without_landlock_closes_what_it_can_and_says_what_is_open():
    out = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK], capture_output=True, text=True, check=True
    ).stdout
    assert {name for name, held in json.loads(out).items() if not held} == {
        "read files of runs", "list their folders", "leave files", "read the command line",
    }  # fmt: skip
