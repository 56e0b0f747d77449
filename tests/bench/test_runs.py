"""A run survives kills, truncated files, full disks and resumption; nothing is computed twice."""

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
    assert {row["defense"] for row in rows if row["stage"] == "train"} == {
        "none",
        "split-only",
        "laplace-hist",
    }
    stages = Counter((row["stage"], row["metric"]) for row in rows if not row["attack_params"])
    assert stages["train", "auc"] == 6
    assert stages["attack", "ra"] == 6
    assert stages["blind", "ra"] == 2
    assert stages["reference", "auc"] == 4
    attack = next(row for row in rows if row["stage"] == "attack" and row["metric"] == "ra")
    guesses = [row for row in rows if row["stage"] == "blind" and row["metric"] == "ra"]
    for seed in "01":
        guesses_of_seed = [row for row in guesses if row["seed"] == seed]
        (best,) = [row for row in guesses_of_seed if not row["attack_params"]]
        assert float(best["value"]) == max(float(row["value"]) for row in guesses_of_seed)
        assert {"bootstrap", "independent"} <= {row["attack_params"] for row in guesses_of_seed}
    expected = (float(attack["value"]) - float(attack["blind"])) / (1 - float(attack["blind"]))
    assert float(attack["advantage"]) == pytest.approx(expected)
    laplace = next(
        row for row in rows if row["defense"] == "laplace-hist" and row["metric"] == "auc"
    )
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
    attack_rows = [
        row for row in rows_of(finished) if row["defense"] == "none" and row["stage"] == "attack"
    ]
    values = [100 * float(row["value"]) for row in attack_rows if row["metric"] == "ra"]
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
    session = bench(
        tmp_path / "run", text.replace('"laplace-hist[epsilon=8]"', '"answer-rounding"')
    )
    session.open(resume=False)
    counts = session.run()
    rows = rows_of(tmp_path / "run")
    skipped = [row for row in rows if row["status"] == "skipped"]
    unfit = [row for row in skipped if row["defense"] == "answer-rounding"]
    assert {row["stage"] for row in unfit} == {"train", "adversary", "attack"}
    assert len({row["reason"] for row in unfit}) == 1
    misfits = [row for row in skipped if row not in unfit]
    assert {(row["stage"], row["attack"]) for row in misfits} == {("attack", "id2graph")}
    assert all(row["reason_code"] for row in misfits)
    assert all(row["claimed"] and row["adversary"] for row in misfits)
    assert counts["skipped"] == len(skipped)
    files = {path.stem for path in (tmp_path / "run" / "cells").glob("*.json")}
    described = [
        task for task in session.plan.tasks() if task.key(session.runner.provenance) not in files
    ]
    assert len(described) == len([row for row in skipped if row["stage"] != "train"])
    resumed = bench(
        tmp_path / "run", text.replace('"laplace-hist[epsilon=8]"', '"answer-rounding"')
    )
    resumed.open(resume=True)
    assert not any(resumed.remaining())
    assert resumed.run() == Counter()
    assert rows_of(tmp_path / "run") == rows


@pytest.mark.long
def test_a_training_whose_adversary_cell_is_lost_is_attacked_again(tmp_path):
    text = SUITE.replace("seeds = [0, 1]", "seeds = [0]").replace('"random-leaf"', '"id2graph"')
    session = bench(tmp_path / "run", text)
    session.open(resume=False)
    session.run()
    rows = rows_of(tmp_path / "run")
    lost = next(task for task in session.plan.tasks() if task.stage == "adversary")
    session.store.cells.joinpath(f"{lost.key(session.runner.provenance)}.json").unlink()
    resumed = bench(tmp_path / "run", text)
    resumed.open(resume=True)
    (job,) = [job for phase in resumed.remaining() for job in phase]
    assert {task.stage for task in job.tasks} == {"train", "adversary", "attack"}
    resumed.run()
    assert [{**row, "seconds": ""} for row in rows_of(tmp_path / "run")] == [
        {**row, "seconds": ""} for row in rows
    ]


def test_a_finished_run_computes_nothing_again(finished):
    times_before = {path.name: path.stat().st_mtime_ns for path in (finished / "cells").iterdir()}
    session = bench(finished)
    session.open(resume=True)
    assert not any(session.remaining())
    assert session.run() == Counter()
    assert {
        path.name: path.stat().st_mtime_ns for path in (finished / "cells").iterdir()
    } == times_before
    assert read_suite_of_run(finished).to_toml() == session.suite.to_toml()


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
def test_a_truncated_cell_is_computed_again_and_no_other(finished, tmp_path, content):
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(finished), str(folder)], check=True)
    victim = sorted((folder / "cells").glob("*.json"))[3]
    original = json.loads(victim.read_text())
    if content is None:
        victim.write_text(victim.read_text()[:-30])
    else:
        victim.write_text(content)
    session = bench(folder)
    session.open(resume=True)
    counts = session.run()
    assert sum(counts.values()) == 1
    recomputed = json.loads(victim.read_text())
    assert recomputed["cell"] == original["cell"]
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


def noted_lines(notes):
    """Return the lines that the attacks printed."""
    lines = notes.read_text().splitlines()
    return [line.removeprefix("noted ") for line in lines if line.startswith("noted ")]


def attacked(folder):
    """The finished attack cells of a run."""
    cells = {path.name: path.read_bytes() for path in folder.glob("cells/*.json")}
    return [c for c in map(json.loads, cells.values()) if c["cell"]["stage"] == "attack"]


@pytest.mark.long
def test_a_killed_run_ends_its_workers_and_two_successors_share_the_remaining_cells(tmp_path):
    """Finished cells are neither lost nor computed again, and no cell is computed twice."""
    plugin, folder = tmp_path / "noting.py", tmp_path / "run"
    plugin.write_text(NOTING)
    notes = [tmp_path / f"{who}.txt" for who in ("first", "successors")]
    first = launch(folder, plugin, 2, notes[0])
    # Wait until two attacks are finished and a third one is running.
    while first.poll() is None:
        for line in noted_lines(notes[0])[:2]:
            (tmp_path / f"noting.py.{line.rpartition(' ')[2]}").touch()
        if len(attacked(folder)) == 2 and len(noted_lines(notes[0])) > 2:
            break
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    finished = {p.name: p.read_bytes() for p in folder.glob("cells/*.json")}
    first.communicate()  # It returns after the last worker has closed the output.
    (tmp_path / "noting.py.all").touch()
    successors = [launch(folder, plugin, workers, notes[1], resume=True) for workers in (1, 1)]
    assert "woke" not in noted_lines(notes[0])  # The attacks ended while they slept.
    outputs = [run.communicate() for run in successors]
    assert [run.returncode for run in successors] == [0, 0], notes[1].read_text()
    for name, content in finished.items():
        assert (folder / "cells" / name).read_bytes() == content
    before_kill, after_kill = (
        [line.rpartition(" ")[0] for line in noted_lines(path)] for path in notes
    )
    assert len(before_kill) in (3, 4)  # with two workers
    assert len(after_kill) == 6 - 2
    assert len({*before_kill, *after_kill}) >= 2
    rows = rows_of(folder)
    assert {row["status"] for row in rows} == {"ok"}, {row["reason"] for row in rows}
    assert max(Counter(map(identity, rows)).values()) == 1
    assert sum(row["stage"] == "attack" and row["metric"] == "ra" for row in rows) == 6
    assert not list(folder.glob("cells/*.npz"))
    assert not list(folder.glob("cells/.*"))
    assert all("report" in output for output, _ in outputs)


def test_a_worker_whose_driver_ended_before_it_starts_ends_too(tmp_path, monkeypatch):
    has_ended = threading.Event()
    monkeypatch.setattr(executor, "close_memory", lambda: None)
    monkeypatch.setattr(executor, "_end_with", executor._end_with.__wrapped__)
    monkeypatch.setattr(executor.os, "_exit", lambda status: has_ended.set())
    monkeypatch.setattr(runner.Runner, "work", lambda self, job: [])
    worker_runner = runner.Runner(tmp_path, Provenance({}))
    executor._work_in_pool(
        worker_runner, runner.Job(()), driver=os.getpid()
    )  # not this process's parent
    assert has_ended.wait(10)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_has_the_rows_of_an_undisturbed_one():
    """The 120 kills and full disks of kills.py take minutes, so this test runs three kills."""
    script = Path(__file__).with_name("kills.py")
    command = [sys.executable, str(script), "--kills", "3", "--seeds", "1", "--workers", "1"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "3 kills, 0 went wrong" in process.stdout


def checkpoint_files(session):
    """Return the model and the transcript of a training whose attacks are not finished."""
    return [p for p in session.store.cells.iterdir() if p.suffix in (".npz", ".model")]


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
    assert len(checkpoint_files(b)) == 2
    b.run()
    assert len(trained) == len(set(trained)) == 6
    assert not checkpoint_files(b)


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
    session = bench(tmp_path / "run", text)
    session.open(resume=False)
    counts = session.run()
    rows = rows_of(tmp_path / "run")
    skipped = [row for row in rows if row["status"] == "skipped"]
    failed = [row for row in rows if row["status"] == "failed"]
    undefended = [
        row for row in skipped if (row["protocol"], row["defense"]) == ("dp-gbdt", "none")
    ]
    misfits = [row for row in skipped if row["protocol"] == "nvflare-hist"]
    for skipped_rows in (misfits, undefended):
        assert {row["stage"] for row in skipped_rows} == {"train", "attack", "adversary"}
    assert all("'nvflare-hist' does not send" in row["reason"] for row in misfits)
    assert all("have none: declare ranges in the schema" in row["reason"] for row in undefended)
    cells = [(row["stage"], row["defense"]) for row in rows if row["protocol"] == "dp-gbdt"]
    assert ("train", "dp-grid-cuts") in cells
    assert counts["failed"] == len(failed) == 4
    assert all("declared range" in row["reason"] for row in failed)


def test_a_time_limit_gives_a_row_with_a_reason(tmp_path):
    session = bench(
        tmp_path / "run", SUITE.replace("seeds = [0, 1]", "seeds = [0]\ntime_limit = 0.0001")
    )
    session.open(resume=False)
    assert session.run()["timeout"] > 0
    reasons = {row["reason"] for row in rows_of(tmp_path / "run") if row["status"] == "timeout"}
    assert reasons == {"the time limit of 0.0001 s was exceeded"}
    resumed = bench(tmp_path / "run", SUITE.replace("seeds = [0, 1]", "seeds = [0]"))
    resumed.open(resume=True)
    # Cells that ran out of time are tried again, and no others.
    assert set(resumed.run()) == {"ok"}
    assert {row["status"] for row in rows_of(tmp_path / "run")} == {"ok"}
    assert not any(resumed.remaining())


RUBBISH = """
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Records
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
import numpy as np

def attack(name, make_guess):
    @register.attack(name)
    class Rubbish(Attack):
        def run(self, view, rng):
            return make_guess()

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


def test_an_attack_that_returns_an_invalid_guess_is_named_and_others_continue(tmp_path):
    plugin = tmp_path / "rubbish.py"
    plugin.write_text(RUBBISH)
    names = ["none", "list", "table", "narrow", "infinite", "labels", "twice", "exit"]
    attacks = ", ".join(f'"rubbish-{n}"' for n in names)
    text = SUITE.replace('"random-leaf"', f'{attacks}, "random-leaf"')
    text = text.replace('"split-only", "laplace-hist[epsilon=8]"', '"none"').replace("0, 1", "0")
    session = bench(tmp_path / "run", text, plugins=(str(plugin),))
    session.open(resume=False)
    counts = session.run()
    assert counts == {"ok": 5, "failed": len(names)}
    reasons = {
        row["attack"]: row["reason"]
        for row in rows_of(tmp_path / "run")
        if row["status"] == "failed"
    }
    parts = ["return a Guess", "tuple of claims", "not a Table", "2 columns", "infinite", "labels"]
    parts += ["more than once", "SystemExit"]
    for name, part in zip(names, parts, strict=True):
        assert part in reasons[f"rubbish-{name}"]


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


def test_a_full_disk_leaves_the_old_file_and_suggests_to_make_room(tmp_path, monkeypatch):
    path = tmp_path / "cell.json"
    write_whole(path, b"old")

    def raise_disk_full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(StoreError, match=r"No space left on device.*free disk space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["cell.json"]


def test_the_key_of_a_cell_covers_everything_that_changes_its_result():
    data = DataRef("wine")
    protocol_object = register.make("protocol", Spec("fedtree-hist"))
    setting = FederationConfig.of(data, Spec("iid"), 3, 0, protocol_object)
    later = FederationConfig.of(data, Spec("iid"), 3, 1, protocol_object)
    more_clients = FederationConfig.of(data, Spec("iid"), 4, 0, protocol_object)
    cell = Task.for_training(
        setting, Spec("fedtree-hist", {"trees": 2, "max_depth": 3}), Composed()
    )
    provenance = Provenance({data: "d1"})
    keys = {
        cell.key(provenance),
        cell.key(Provenance({data: "d2"})),
        cell.key(Provenance({data: "d1"}, ("plugin",))),
        Task.for_training(later, cell.protocol, Composed()).key(provenance),
        Task.for_training(more_clients, cell.protocol, Composed()).key(provenance),
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
    ("text", "error_message"),
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
def test_an_invalid_suite_is_refused_with_a_reason(text, error_message):
    with pytest.raises(UsageError, match=error_message):
        Suite.parse(text, "suite")


def test_bundled_suites_read_back_and_contain_registered_names():
    for name in ("smoke", "quick", "full"):
        suite = Suite.load(name)
        parsed = Suite.parse(suite.to_toml(), name)
        assert parsed == suite
        from fedtrees.experiments.session import check_names

        check_names(suite)
    with pytest.raises(UsageError, match="did you mean 'quick'"):
        Suite.load("quik")


def test_datasets_keep_their_digest():
    ref = DataRef("wine")
    assert load_dataset(ref, None).digest == load_dataset(DataRef("wine"), None).digest
    assert Store(Path("x")).name == "x"


@pytest.mark.parametrize(
    ("threat", "error_message"),
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
def test_a_threat_that_the_protocol_does_not_have_stops_a_benchmark_at_the_start(
    tmp_path, threat, error_message
):
    text = SUITE + f"threats = ['{threat}']\n"
    with pytest.raises(UsageError, match=error_message):
        bench(tmp_path / "run", text)


def test_a_refused_order_of_defenses_is_skipped_with_the_correct_order_as_reason(tmp_path):
    wrong_order, right_order = "min-bin+laplace-hist[epsilon=1]", "laplace-hist[epsilon=1]+min-bin"
    grid = {
        "data": ["wine"], "clients": [2], "protocols": ["fedtree-hist[trees=1,max_depth=1]"],
        "threats": ["public"], "attacks": ["random-leaf"],
    }  # fmt: skip
    suite = Suite.load("smoke").override({**grid, "defenses": [wrong_order]}, "1")
    with pytest.raises(UsageError, match=r"; write laplace-hist\+min-bin"):
        BenchSession(suite, None)
    session = BenchSession(
        suite.override({"defenses": [wrong_order, right_order]}), tmp_path / "run"
    )
    session.open(resume=False)
    session.run()
    rows = [row for row in rows_of(tmp_path / "run") if row["stage"] in ("train", "attack")]
    outcomes = {row["defense"]: set() for row in rows}
    for row in rows:
        outcomes[row["defense"]].add(
            (row["status"], row["reason"] if row["status"] != "ok" else "")
        )
    ((status, reason),) = outcomes["min-bin+laplace-hist"]
    assert status == "skipped"
    assert reason.endswith("write laplace-hist+min-bin")
    assert outcomes["laplace-hist+min-bin"] == outcomes["none"] == {("ok", "")}


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
