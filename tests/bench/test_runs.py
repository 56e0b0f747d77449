"""A run survives being killed, cut, filled up and reopened; nothing is computed twice."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from result_rows import read_rows

from fedtrees.core.errors import StoreError, UsageError
from fedtrees.core.files import write_whole
from fedtrees.core.registry import register
from fedtrees.core.results import COLUMNS as DESCRIBED
from fedtrees.core.specs import Composed, Spec
from fedtrees.experiments import executor, runner
from fedtrees.experiments.federation import load_dataset
from fedtrees.experiments.plan import FederationConfig, Provenance, Task, build_plan
from fedtrees.experiments.session import BenchSession, read_suite_of_run
from fedtrees.experiments.store import Store
from fedtrees.experiments.suite import DataRef, Suite

COLUMNS = tuple(column.name for column in DESCRIBED)

SUITE = """
name = "tiny"
seeds = [0, 1]
[[grid]]
data = ["wine"]
protocols = ["fedtree-hist[trees=2,max_depth=2,max_bin=16]"]
defenses = ["split-only", "laplace-hist[epsilon=8]"]
attacks = ["random-leaf"]
"""

NOTING = """
import os, sys, time
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Records
from fedtrees.core.registry import register

@register.attack("noting")
class Noting(Attack):
    def run(self, view, rng):
        # an attack writes no file, but what it prints is seen, and it may ask what files there are
        say(f"{view.defense} {view.n_rows} {view.rows.X[0, 0]} {len(view.rows)} {os.getpid()}")
        may_return = [f"{__file__}.all", f"{__file__}.{os.getpid()}"]
        until = time.monotonic() + 300
        while not any(map(os.path.exists, may_return)):
            time.sleep(0.05)
            if time.monotonic() > until:
                say("woke")
                break
        return Guess((Records(view.rows),))

def say(text):
    sys.stderr.write(f"noted {text}\\n")
    sys.stderr.flush()
"""


def bench(folder, text=SUITE, **options):
    return BenchSession(Suite.parse(text, "tiny"), folder, **options)


def rows_of(folder):
    return read_rows(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    b = bench(folder)
    b.open(resume=False)
    b.run()
    return folder


def identity(row):
    return tuple(row[c] for c in COLUMNS if c not in ("run", "seconds", "value", "advantage"))


@pytest.mark.long
def test_every_cell_has_its_rows_once(finished):
    rows = rows_of(finished)
    assert tuple(rows[0]) == COLUMNS
    assert max(Counter(map(identity, rows)).values()) == 1
    assert {r["defense"] for r in rows if r["stage"] == "train"} == {
        "none",
        "split-only",
        "laplace-hist",
    }
    stages = Counter((r["stage"], r["metric"]) for r in rows if not r["attack_params"])
    assert stages["train", "auc"] == 6
    assert stages["attack", "ra"] == 6
    assert stages["blind", "ra"] == 2
    assert stages["reference", "auc"] == 4
    attack = next(r for r in rows if r["stage"] == "attack" and r["metric"] == "ra")
    guesses = [r for r in rows if r["stage"] == "blind" and r["metric"] == "ra"]
    for seed in "01":
        mine = [r for r in guesses if r["seed"] == seed]
        (best,) = [r for r in mine if not r["attack_params"]]
        assert float(best["value"]) == max(float(r["value"]) for r in mine)
        assert {"bootstrap", "independent"} <= {r["attack_params"] for r in mine}
    expected = (float(attack["value"]) - float(attack["blind"])) / (1 - float(attack["blind"]))
    assert float(attack["advantage"]) == pytest.approx(expected)
    laplace = next(r for r in rows if r["defense"] == "laplace-hist" and r["metric"] == "auc")
    assert laplace["claimed"] == "pure-dp[epsilon=8,unit=histogram]"
    assert laplace["spent"].startswith("pure-dp[epsilon=inf,histograms=")


@pytest.mark.long
def test_the_tables_of_a_study_are_means_over_seeds(finished):
    from fedtrees.benchmarks.papers.timberstrike import default_tables
    from fedtrees.report.results import load_rows

    rows = load_rows(finished)
    attacks, guesses = default_tables(rows)
    lines = {line[3]: line for line in attacks.lines}
    assert set(lines) == {"`none`", "`split-only`", "`laplace-hist[epsilon=8]`"}
    mine = [r for r in rows_of(finished) if r["defense"] == "none" and r["stage"] == "attack"]
    values = [100 * float(r["value"]) for r in mine if r["metric"] == "ra"]
    assert lines["`none`"][5].startswith(f"{sum(values) / 2:.1f} ± ")
    assert lines["`none`"][:2] == ["wine", "fedtree-hist"]
    assert "max_depth=2" in lines["`none`"][2]
    assert {"bootstrap", "**best**"} <= {line[1] for line in guesses.lines}


def test_the_first_verdict_waits_for_trainings_of_the_first_protocol_only(tmp_path):
    text = SUITE + '[[grid]]\ndata = ["wine"]\nprotocols = ["dp-gbdt[trees=2]"]\n'
    text += 'defenses = ["dp-grid-cuts[epsilon=4]"]\nattacks = ["random-leaf"]\n'
    b = bench(tmp_path / "run", text)
    b.open(resume=False)
    phases = b.remaining()
    first = {job.tasks[0] for job in phases[1]}
    assert {train.protocol.name for train in first} == {"fedtree-hist"}
    assert {str(train.defense) for train in first} == {"none", "split-only"}
    settings = {train.federation_config for train in first}
    assert {job.tasks[0].federation_config for job in phases[0]} == settings
    assert {setting.seed for setting in settings} == {0}
    cells = [cell for phase in phases for job in phase for cell in job.tasks]
    assert Counter(cells) == Counter(b.plan.tasks())


@pytest.mark.long
def test_cells_that_do_not_apply_have_rows_but_no_files(tmp_path):
    """Nine of ten cells of the default bench do not apply. Other cells state it for them."""
    text = SUITE.replace("seeds = [0, 1]", "seeds = [0]").replace('"random-leaf"', '"id2graph"')
    b = bench(tmp_path / "run", text.replace('"laplace-hist[epsilon=8]"', '"answer-rounding"'))
    b.open(resume=False)
    counts = b.run()
    rows = rows_of(tmp_path / "run")
    skipped = [r for r in rows if r["status"] == "skipped"]
    unfit = [r for r in skipped if r["defense"] == "answer-rounding"]
    assert {r["stage"] for r in unfit} == {"train", "adversary", "attack"}
    assert len({r["reason"] for r in unfit}) == 1
    misfits = [r for r in skipped if r not in unfit]
    assert {(r["stage"], r["attack"]) for r in misfits} == {("attack", "id2graph")}
    assert all(r["reason_code"] for r in misfits)
    assert all(r["claimed"] and r["adversary"] for r in misfits)
    assert counts["skipped"] == len(skipped)
    files = {p.stem for p in (tmp_path / "run" / "cells").glob("*.json")}
    described = [c for c in b.plan.tasks() if c.key(b.runner.provenance) not in files]
    assert len(described) == len([r for r in skipped if r["stage"] != "train"])
    again = bench(tmp_path / "run", text.replace('"laplace-hist[epsilon=8]"', '"answer-rounding"'))
    again.open(resume=True)
    assert not any(again.remaining())
    assert again.run() == Counter()
    assert rows_of(tmp_path / "run") == rows


@pytest.mark.long
def test_a_training_whose_adversary_cell_is_lost_is_attacked_again(tmp_path):
    text = SUITE.replace("seeds = [0, 1]", "seeds = [0]").replace('"random-leaf"', '"id2graph"')
    b = bench(tmp_path / "run", text)
    b.open(resume=False)
    b.run()
    rows = rows_of(tmp_path / "run")
    lost = next(c for c in b.plan.tasks() if c.stage == "adversary")
    b.store.cells.joinpath(f"{lost.key(b.runner.provenance)}.json").unlink()
    again = bench(tmp_path / "run", text)
    again.open(resume=True)
    (job,) = [job for phase in again.remaining() for job in phase]
    assert {c.stage for c in job.tasks} == {"train", "adversary", "attack"}
    again.run()
    assert [{**r, "seconds": ""} for r in rows_of(tmp_path / "run")] == [
        {**r, "seconds": ""} for r in rows
    ]


def test_a_finished_run_computes_nothing_again(finished):
    before = {p.name: p.stat().st_mtime_ns for p in (finished / "cells").iterdir()}
    b = bench(finished)
    b.open(resume=True)
    assert not any(b.remaining())
    assert b.run() == Counter()
    assert {p.name: p.stat().st_mtime_ns for p in (finished / "cells").iterdir()} == before
    assert read_suite_of_run(finished).to_toml() == b.suite.to_toml()


@pytest.mark.long
def test_one_process_and_two_give_the_same_numbers(finished, tmp_path):
    b = bench(tmp_path / "two", workers=2)
    b.open(resume=False)
    b.run()

    def values(folder):
        timed = ("cpu_seconds", "note")
        return [
            (identity(r), r["value"]) for r in rows_of(folder) if not r["metric"].startswith(timed)
        ]

    assert values(tmp_path / "two") == values(finished)


@pytest.mark.parametrize("content", ["", "{", '{"id": "x"}', None])
def test_a_cut_cell_is_computed_again_and_only_that_one(finished, tmp_path, content):
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(finished), str(folder)], check=True)
    victim = sorted((folder / "cells").glob("*.json"))[3]
    whole = json.loads(victim.read_text())
    if content is None:
        victim.write_text(victim.read_text()[:-30])
    else:
        victim.write_text(content)
    b = bench(folder)
    b.open(resume=True)
    counts = b.run()
    assert sum(counts.values()) == 1
    again = json.loads(victim.read_text())
    assert again["cell"] == whole["cell"]
    assert Counter(map(identity, rows_of(folder))) == Counter(map(identity, rows_of(finished)))


def launch(folder, plugin, workers, notes, resume=False):
    suite = folder.parent / "suite.toml"
    suite.write_text(SUITE.replace("random-leaf", "noting"))
    command = [sys.executable, "-m", "fedtrees.cli.main", "bench", "-j", str(workers)]
    command += ["--suite", str(suite), "--plugin", str(plugin), "--output", str(folder)]
    if resume:
        command.append("--resume")
    with notes.open("a") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)


def noted(notes):
    """What the attacks printed, a line each."""
    lines = notes.read_text().splitlines()
    return [line.removeprefix("noted ") for line in lines if line.startswith("noted ")]


def attacked(folder):
    """The finished attack cells of a run."""
    cells = {path.name: path.read_bytes() for path in folder.glob("cells/*.json")}
    return [c for c in map(json.loads, cells.values()) if c["cell"]["stage"] == "attack"]


@pytest.mark.long
def test_a_killed_run_takes_its_workers_along_and_two_successors_share_the_rest(tmp_path):
    """Nothing that was finished is lost or done again, and nothing is done twice."""
    plugin, folder = tmp_path / "noting.py", tmp_path / "run"
    plugin.write_text(NOTING)
    notes = [tmp_path / f"{who}.txt" for who in ("first", "successors")]
    first = launch(folder, plugin, 2, notes[0])
    while first.poll() is None:  # two attacks are finished, and another one is under way
        for line in noted(notes[0])[:2]:
            (tmp_path / f"noting.py.{line.rpartition(' ')[2]}").touch()
        if len(attacked(folder)) == 2 and len(noted(notes[0])) > 2:
            break
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    finished = {p.name: p.read_bytes() for p in folder.glob("cells/*.json")}
    first.communicate()  # returns when the last worker has let go of the output
    (tmp_path / "noting.py.all").touch()
    successors = [launch(folder, plugin, workers, notes[1], resume=True) for workers in (1, 1)]
    assert "woke" not in noted(notes[0])  # so they ended in their sleep
    said = [run.communicate() for run in successors]
    assert [run.returncode for run in successors] == [0, 0], notes[1].read_text()
    for name, content in finished.items():
        assert (folder / "cells" / name).read_bytes() == content
    before, after = ([line.rpartition(" ")[0] for line in noted(path)] for path in notes)
    assert len(before) in (3, 4)  # of two workers
    assert len(after) == 6 - 2
    assert len({*before, *after}) >= 2
    rows = rows_of(folder)
    assert {r["status"] for r in rows} == {"ok"}, {r["reason"] for r in rows}
    assert max(Counter(map(identity, rows)).values()) == 1
    assert sum(r["stage"] == "attack" and r["metric"] == "ra" for r in rows) == 6
    assert not list(folder.glob("cells/*.npz"))
    assert not list(folder.glob("cells/.*"))
    assert all("report" in out for out, _ in said)


def test_a_worker_whose_driver_is_gone_before_it_begins_ends_all_the_same(tmp_path, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(executor, "close_memory", lambda: None)
    monkeypatch.setattr(executor, "_end_with", executor._end_with.__wrapped__)
    monkeypatch.setattr(executor.os, "_exit", lambda status: over.set())
    monkeypatch.setattr(runner.Runner, "work", lambda self, job: [])
    mine = runner.Runner(tmp_path, Provenance({}))
    executor._work_in_pool(mine, runner.Job(()), driver=os.getpid())  # not this process's parent
    assert over.wait(10)


@pytest.mark.slow
def test_killed_at_random_moments_a_run_has_the_rows_of_one_that_was_not():
    """120 kills, and disks that fill up, take minutes: kills.py has the command."""
    script = Path(__file__).with_name("kills.py")
    command = [sys.executable, str(script), "--kills", "3", "--seeds", "1", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills, 0 went wrong" in done.stdout


def kept(b):
    """The model and the transcript of a training whose attacks are not done."""
    return [p for p in b.store.cells.iterdir() if p.suffix in (".npz", ".model")]


@pytest.mark.long
def test_an_interrupted_training_is_kept_for_its_attacks(tmp_path, monkeypatch):
    b = bench(tmp_path / "run")
    b.open(resume=False)
    trained = []
    real = runner.run_training
    monkeypatch.setattr(runner, "run_training", lambda c, f: trained.append(c) or real(c, f))

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(runner.evaluate, "evaluate_attack", stop)
        with pytest.raises(KeyboardInterrupt):
            b.run()
    assert len(trained) == 1
    assert len(kept(b)) == 2
    b.run()
    assert len(trained) == len(set(trained)) == 6
    assert not kept(b)


@pytest.mark.long
def test_failures_and_misfits_are_rows_with_reasons(tmp_path):
    text = SUITE.replace(
        'defenses = ["split-only", "laplace-hist[epsilon=8]"]', 'defenses = ["split-only"]'
    ).replace("fedtree-hist[trees=2,max_depth=2,max_bin=16]", "nvflare-hist[trees=1,max_depth=1]")
    text = text.replace("seeds = [0, 1]", "seeds = [0]")
    text += '[[grid]]\ndata = ["diabetes"]\nprotocols = ["fedtree-hist[trees=1,cuts=public]"]\n'
    text += 'attacks = ["random-leaf"]\n'
    text += '[[grid]]\ndata = ["diabetes"]\nprotocols = ["dp-gbdt[trees=1,max_depth=1]"]\n'
    text += 'defenses = ["dp-grid-cuts[epsilon=4]"]\nattacks = ["random-leaf"]\n'
    b = bench(tmp_path / "run", text)
    b.open(resume=False)
    counts = b.run()
    rows = rows_of(tmp_path / "run")
    skipped = [r for r in rows if r["status"] == "skipped"]
    failed = [r for r in rows if r["status"] == "failed"]
    undefended = [r for r in skipped if (r["protocol"], r["defense"]) == ("dp-gbdt", "none")]
    misfits = [r for r in skipped if r["protocol"] == "nvflare-hist"]
    for found in (misfits, undefended):
        assert {r["stage"] for r in found} == {"train", "attack", "adversary"}
    assert all("'nvflare-hist' does not send" in r["reason"] for r in misfits)
    assert all("have none: declare ranges in the schema" in r["reason"] for r in undefended)
    cells = [(r["stage"], r["defense"]) for r in rows if r["protocol"] == "dp-gbdt"]
    assert ("train", "dp-grid-cuts") in cells
    assert counts["failed"] == len(failed) == 4
    assert all("declared range" in r["reason"] for r in failed)


def test_a_time_limit_makes_a_row_not_a_crash(tmp_path):
    b = bench(tmp_path / "run", SUITE.replace("seeds = [0, 1]", "seeds = [0]\ntime_limit = 0.0001"))
    b.open(resume=False)
    assert b.run()["timeout"] > 0
    reasons = {r["reason"] for r in rows_of(tmp_path / "run") if r["status"] == "timeout"}
    assert reasons == {"the time limit of 0.0001 s was exceeded"}
    again = bench(tmp_path / "run", SUITE.replace("seeds = [0, 1]", "seeds = [0]"))
    again.open(resume=True)
    assert set(again.run()) == {"ok"}  # what ran out of time is tried again, nothing else is
    assert {r["status"] for r in rows_of(tmp_path / "run")} == {"ok"}
    assert not any(again.remaining())


RUBBISH = """
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Records
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
import numpy as np

def attack(name, made):
    @register.attack(name)
    class Rubbish(Attack):
        def run(self, view, rng):
            return made()

def rows(width, value, label):
    return Guess((Records(Table(np.full((3, width), value), np.full(3, label))),))

def leave():
    raise SystemExit(9)

attack("rubbish-none", lambda: None)
attack("rubbish-list", lambda: Guess([1, 2]))
attack("rubbish-table", lambda: Guess((Records([1, 2]),)))
attack("rubbish-narrow", lambda: rows(2, 0, 0))
attack("rubbish-infinite", lambda: rows(13, np.inf, 0))
attack("rubbish-labels", lambda: rows(13, 0, 7))
attack("rubbish-twice", lambda: Guess(2 * rows(13, 0, 0).claims))
attack("rubbish-exit", leave)
"""


def test_an_attack_that_returns_rubbish_is_named_and_hurts_nobody(tmp_path):
    plugin = tmp_path / "rubbish.py"
    plugin.write_text(RUBBISH)
    names = ["none", "list", "table", "narrow", "infinite", "labels", "twice", "exit"]
    attacks = ", ".join(f'"rubbish-{n}"' for n in names)
    text = SUITE.replace('"random-leaf"', f'{attacks}, "random-leaf"')
    text = text.replace('"split-only", "laplace-hist[epsilon=8]"', '"none"').replace("0, 1", "0")
    b = bench(tmp_path / "run", text, plugins=(str(plugin),))
    b.open(resume=False)
    counts = b.run()
    assert counts == {"ok": 5, "failed": len(names)}
    said = {r["attack"]: r["reason"] for r in rows_of(tmp_path / "run") if r["status"] == "failed"}
    parts = ["return a Guess", "tuple of claims", "not a Table", "2 columns", "infinite", "labels"]
    parts += ["more than once", "SystemExit"]
    for name, part in zip(names, parts, strict=True):
        assert part in said[f"rubbish-{name}"]


def test_another_version_is_not_mixed_in(finished, tmp_path):
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(finished), str(folder)], check=True)
    facts = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**facts, "fedtrees": "0.0.1"}))
    with pytest.raises(StoreError, match=r"written by fedtrees 0\.0\.1"):
        bench(folder).open(resume=True)
    (folder / "environment.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        bench(folder).open(resume=True)


def test_an_existing_run_is_not_written_over(finished):
    with pytest.raises(StoreError, match="--resume"):
        bench(finished).open(resume=False)


def test_a_full_disk_leaves_the_old_file_and_says_what_to_do(tmp_path, monkeypatch):
    path = tmp_path / "cell.json"
    write_whole(path, b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left on device.*make room"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["cell.json"]


def test_a_cell_s_key_covers_everything_that_matters():
    data = DataRef("wine")
    made = register.make("protocol", Spec("fedtree-hist"))
    setting = FederationConfig.of(data, Spec("iid"), 3, 0, made)
    later = FederationConfig.of(data, Spec("iid"), 3, 1, made)
    more = FederationConfig.of(data, Spec("iid"), 4, 0, made)
    cell = Task.for_training(
        setting, Spec("fedtree-hist", {"trees": 2, "max_depth": 3}), Composed()
    )
    provenance = Provenance({data: "d1"})
    keys = {
        cell.key(provenance),
        cell.key(Provenance({data: "d2"})),
        cell.key(Provenance({data: "d1"}, ("plugin",))),
        Task.for_training(later, cell.protocol, Composed()).key(provenance),
        Task.for_training(more, cell.protocol, Composed()).key(provenance),
        Task.for_training(replace(setting, layout="centralised"), cell.protocol, Composed()).key(
            provenance
        ),
        Task.for_training(setting, Spec("fedtree-hist", {"trees": 3}), Composed()).key(provenance),
        Task.for_training(setting, cell.protocol, Composed((Spec("split-only"),))).key(provenance),
    }
    assert len(keys) == 8
    swapped = Spec("fedtree-hist", {"max_depth": 3, "trees": 2})
    assert Task.for_training(setting, swapped, Composed()).key(provenance) == cell.key(provenance)


def test_none_is_added_and_nothing_is_listed_twice():
    suite = Suite.parse(SUITE + "\n[[grid]]\ndata = ['wine']\n", "x")
    assert next(str(d) for d in suite.grids[0].defenses) == "none"
    overridden = suite.override({"defenses": ["split-only", "none", "split-only"]})
    for grid in overridden.grids:
        assert [str(d) for d in grid.defenses] == ["none", "split-only"]
    cells = list(build_plan(overridden).tasks())
    assert len(cells) == len(set(cells))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "not readable TOML"),
        ("nmae = 'x'", "did you mean 'name'"),
        ("[[grid]]\ndefense = ['none']", "did you mean 'defenses'"),
        ("[[grid]]\ndefenses = []", "is empty"),
        ("[[grid]]\nclients = [0]", "clients=0"),
        ("seeds = 0", "at least one"),
        ("seeds = 'many'", "give a count"),
    ],
)
def test_a_suite_that_cannot_be_used_says_why(text, said):
    with pytest.raises(UsageError, match=said):
        Suite.parse(text, "suite")


def test_bundled_suites_read_back_and_name_what_exists():
    for name in ("smoke", "quick", "full"):
        suite = Suite.load(name)
        again = Suite.parse(suite.to_toml(), name)
        assert again == suite
        from fedtrees.experiments.session import check_names

        check_names(suite)
    with pytest.raises(UsageError, match="did you mean 'quick'"):
        Suite.load("quik")


def test_datasets_keep_their_digest():
    ref = DataRef("wine")
    assert load_dataset(ref, None).digest == load_dataset(DataRef("wine"), None).digest
    assert Store(Path("x")).name == "x"


@pytest.mark.parametrize(
    ("threat", "said"),
    [
        (
            "clinet",
            "did you mean 'client'.*: the roles of this protocol are server, client, public",
        ),
        ("passive", "unknown threat 'passive'"),
        ("client[count=4]", "only 3 of them"),
        ("client[count=3]", "no victim remains"),
    ],
)
def test_a_threat_that_its_protocol_does_not_know_stops_a_bench_before_it_starts(
    tmp_path, threat, said
):
    text = SUITE + f"threats = ['{threat}']\n"
    with pytest.raises(UsageError, match=said):
        bench(tmp_path / "run", text)


def test_an_order_that_is_refused_is_skipped_with_the_one_that_is_right(tmp_path):
    wrong, right = "min-bin+laplace-hist[epsilon=1]", "laplace-hist[epsilon=1]+min-bin"
    grid = {
        "data": ["wine"], "clients": [2], "protocols": ["fedtree-hist[trees=1,max_depth=1]"],
        "threats": ["public"], "attacks": ["random-leaf"],
    }  # fmt: skip
    suite = Suite.load("smoke").override({**grid, "defenses": [wrong]}, "1")
    with pytest.raises(UsageError, match=r"; write laplace-hist\+min-bin"):
        BenchSession(suite, None)
    made = BenchSession(suite.override({"defenses": [wrong, right]}), tmp_path / "run")
    made.open(resume=False)
    made.run()
    rows = [r for r in rows_of(tmp_path / "run") if r["stage"] in ("train", "attack")]
    told = {r["defense"]: set() for r in rows}
    for r in rows:
        told[r["defense"]].add((r["status"], r["reason"] if r["status"] != "ok" else ""))
    ((status, reason),) = told["min-bin+laplace-hist"]
    assert status == "skipped"
    assert reason.endswith("write laplace-hist+min-bin")
    assert told["laplace-hist+min-bin"] == told["none"] == {("ok", "")}


def test_attacks_in_reverse_order_keep_all_cells_if_two_grids_differ_in_their_threats():
    suite = Suite.load("smoke")
    grid = suite.grids[0]
    two = suite.of((replace(grid, threats=("client",)), replace(grid, threats=("server",))))
    group = next(g for g in build_plan(two).groups if len(g.attacks) > 3)
    job = runner.Job((group.train, *group.attacks))
    turned = job.with_reversed_attacks().tasks
    assert sorted(map(id, turned)) == sorted(map(id, job.tasks))
    attacks = [c for c in turned if c.stage == "attack"]
    assert attacks == [c for c in job.tasks if c.stage == "attack"][::-1]
    assert list(turned[-len(attacks) :]) == attacks
