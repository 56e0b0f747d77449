"""Attacks run in a process without ground truth; cheats find nothing, failures are contained."""

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
    """Load the code of the cheats in this process, which contains ground truth."""
    monkeypatch.setattr(register, "attack", lambda name: lambda thing: thing)
    spec = spec_from_file_location("cheats_beside_truth", plugin)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def view_in(trained, adversary="client-2", queries=0):
    training, local_data = trained
    return view_of(training, (adversary,), local_data, queries)


def run(name, view, **options):
    return attack_process().run(Spec(name), view, **options)


def rows_in(table):
    return {row.tobytes() for row in np.column_stack([table.X, table.y])}


def test_a_view_survives_its_transfer():
    defense = make_defense(parse_one("split-only+laplace-hist[epsilon=4]"))
    training, local_data = sample_training(register.make("protocol", PROTOCOL), defense)
    for principals in (("server",), ("client-1", "client-2"), ("public",)):
        view = view_of(training, principals, local_data, 50)
        view.oracle.query(view_in((training, local_data)).rows.X[:7])
        packed = b"".join(map(bytes, pack(transfer.view_as_value(view))))
        received = transfer.view_of(unpack(packed, transfer.view_types()), lambda X: X)
        assert b"".join(map(bytes, pack(transfer.view_as_value(received)))) == packed
        assert received.schema == view.schema
        assert received.parameters == view.parameters
        assert received.defense == view.defense
        assert received.defense is not view.defense
        assert (received.oracle.budget, received.oracle.left) == (50, 43)
        assert [item.reason for item in received.seen] == [item.reason for item in view.seen]
        assert len({id(item.message) for item in received.seen}) == len(
            {id(item.message) for item in view.seen}
        )


@pytest.mark.parametrize("text", ["timberstrike[chains=2,max_trees=2]", "draw", "draw afresh"])
def test_equal_randomness_gives_equal_guesses_in_both_processes(trained, text, source):
    view = view_in(trained)
    spec = parse_one(text.removesuffix(" afresh")).parts[0]
    process = AttackProcess(forks=False) if text.endswith("afresh") else attack_process()
    remote = process.run(spec, view)
    randomness = transfer.randomness(view, spec.name)
    code = source.drawn() if "draw" in text else register.make("attack", spec)
    local = code.run(view, transfer.generator(randomness))
    for local_claim, remote_claim in zip(local.claims, remote.guess.claims, strict=True):
        packed_claims = [b"".join(map(bytes, pack(claim))) for claim in (local_claim, remote_claim)]
        assert packed_claims[0] == packed_claims[1]
    assert remote.cpu > 0


def test_applicability_of_many_attacks_is_checked_in_one_call(trained):
    names = ("timberstrike", "histogram-peeling", "random-leaf")
    specs = [Spec(name) for name in names]
    for adversary in ("server", "client-2"):
        view = view_in(trained, adversary)
        reasons = [register.make("attack", spec).inapplicable(view) for spec in specs]
        assert attack_process().reasons(specs, view) == [reason or FITS for reason in reasons]
    assert reasons[1] is not None


@pytest.mark.parametrize("name", ["walk-objects", "walk-frames"])
def test_only_the_adversarys_own_rows_are_in_memory(trained, name, source):
    view = view_in(trained)
    federation = trained  # Keep a reference in a frame of this process, as a benchmark does.
    assert federation
    (claim,) = run(name, view).guess.claims
    assert rows_in(claim.table) == rows_in(view.rows)
    # In this process, which contains the truth, the same attack succeeds.
    if name == "walk-objects":
        (local_claim,) = source.walk_objects(view, None).claims
        assert rows_in(local_claim.table) > rows_in(view.rows)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_memory_of_other_processes_cannot_be_read(trained, source):
    truth = f"truth lies here: {secrets.token_hex(16)}".encode()
    assert source.needles("self") == 1  # This process can read its own memory.
    notes = run("read-memory", view_in(trained)).guess.notes
    assert notes == {"self": 0, "server": -1, "bench": -1, "traced": 0, "shown": 0}
    assert truth


def test_data_that_an_attack_leaves_in_its_process_vanishes_with_the_process(trained):
    views_of_two = [
        view_in(trained, adversary) for adversary in ("client-1", "client-2", "client-1")
    ]
    for view in views_of_two:
        (claim,) = run("leave-rows", view).guess.claims
        assert rows_in(claim.table) == rows_in(view.rows)
    if sys.platform == "linux":
        assert run("leave-process", views_of_two[0]).guess.notes == {
            "pid": 0
        }  # The attack cannot start a process.


def test_guesses_arrive_as_plain_objects(trained):
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
    with pytest.raises(DataError, match="array of object cannot be encoded"):
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


def test_the_randomness_depends_on_the_local_data_and_not_on_the_defense(trained):
    def randomness(view, name="x"):
        return transfer.randomness(view, name)

    training, local_data = trained
    assert randomness(view_in(trained)) == randomness(view_in(sample_training(training.protocol)))
    own_data = {
        party_name: data for party_name, data in local_data.items() if party_name == "client-2"
    }
    assert randomness(view_in(trained)) == randomness(view_of(training, ("client-2",), own_data))
    defense = make_defense(parse_one("laplace-hist[epsilon=1]"))
    defended = view_in(sample_training(training.protocol, defense))
    assert arrays(defended) != arrays(view_in(trained))
    assert randomness(view_in(trained)) == randomness(defended)
    other_views = [view_in(trained, "client-1"), view_in(trained, "server")]
    assert (
        len(
            {
                randomness(view_in(trained)),
                randomness(view_in(trained), "y"),
                *map(randomness, other_views),
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


def test_in_a_benchmark_no_cheat_scores_more_than_the_adversarys_own_rows(tmp_path, plugin):
    bench = BenchSession(Suite.parse(SUITE, "tiny"), tmp_path / "run", plugins=(str(plugin),))
    bench.open(resume=False)
    bench.run()
    rows = [row for row in read_rows(tmp_path / "run") if row["stage"] == "attack"]
    (failed,) = [row for row in rows if row["status"] != "ok"]
    assert (failed["attack"], failed["status"]) == ("fail", "failed")
    assert failed["reason"].startswith("LookupError: nothing to be found in ('client-2',)")
    scores = {}
    for row in rows:
        if row["metric"] not in ("cpu_seconds", ""):
            scores.setdefault(row["attack"], {})[row["metric"]] = (row["value"], row["advantage"])
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
    spy = (
        tmp_path / "spy.py"
    )  # in the folder of the run, like a plug-in in the user's working folder
    spy_source = SPY.read_text().replace('Path("runs")', f"Path({str(folder)!r})")
    spy.write_text(spy_source.replace("BENCH = os.getppid()", f"BENCH = {os.getpid()}"))
    bench = BenchSession(Suite.parse(SPYING, "spying"), folder, plugins=(str(spy),))
    bench.open(resume=False)
    assert folder.stat().st_mode & 0o777 == bench.store.cells.stat().st_mode & 0o777 == 0o700
    trained[0].transcript.save(bench.store.cells / "other.transcript.npz")

    monkeypatch.setenv("HOME", str(tmp_path))
    command = [sys.executable, str(spy)]
    output = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert all(json.loads(output).values()), (
        output
    )  # Without protection, every way leads to the truth.

    assert bench.run()["failed"] == 0
    rows = [row for row in read_rows(folder) if row["metric"] == "note"]
    amounts = {row["part"]: float(row["value"]) for row in rows}
    assert amounts.keys() == json.loads(output).keys()
    refused = attack_process().refused()
    assert refused["read the memory"]
    assert refused["read files of runs"] == (sandbox.landlock_version() > 0)
    if sandbox.landlock_version():
        assert not any(amounts.values()), amounts
    else:
        assert not any(amounts[name] for name in ("datagram", "sockets", "shared memory")), amounts


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="nothing is closed elsewhere, and docs say so")
def test_a_kernel_without_landlock_blocks_some_ways_and_lists_the_open_ones():
    output = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK], capture_output=True, text=True, check=True
    ).stdout
    assert {name for name, is_blocked in json.loads(output).items() if not is_blocked} == {
        "read files of runs", "list their folders", "leave files", "read the command line",
    }  # fmt: skip
