"""Any damage to a run folder or a suite gives a clear error, or the rows of the undamaged run."""

import json
import random
import shutil
import tempfile
import threading
import uuid
from itertools import cycle
from pathlib import Path

import pytest
from result_rows import read_rows

import fedtrees.experiments.runner as runner
from fedtrees.core.errors import FedtreesError, StoreError, UsageError
from fedtrees.core.files import write_listed
from fedtrees.experiments import store
from fedtrees.experiments.session import BenchSession, read_suite_of_run
from fedtrees.experiments.suite import CHANGED, Suite
from fedtrees.report.page import write_report
from fedtrees.report.results import load_rows, read_json

SUITE = """
name = "tiny"
seeds = [0]
[[grid]]
data = ["wine"]
protocols = ["fedtree-hist[trees=1,max_depth=2,max_bin=8]"]
defenses = ["laplace-hist[epsilon=8]"]
attacks = ["random-leaf"]
"""
TIMES = ("seconds", "run")


def finish(folder, text=SUITE, **options):
    bench = BenchSession(Suite.parse(text, "tiny"), folder, **options)
    bench.open(resume=True)
    return bench.run()


def rows_of(folder):
    rows = [{k: v for k, v in r.items() if k not in TIMES} for r in read_rows(folder)]
    return [r for r in rows if r["metric"] != "cpu_seconds"]


def outcome(function, *arguments):
    """Return the result and the error message; only errors of fedtrees are caught."""
    try:
        return function(*arguments), None
    except FedtreesError as error:
        return None, str(error)


@pytest.fixture(scope="module")
def undamaged_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(folder)
    return folder


@pytest.fixture
def copy(undamaged_run, tmp_path):
    return shutil.copytree(undamaged_run, tmp_path / "run")


def edit_cell(change):
    def damage(content, other):
        cell = json.loads(content)
        change(cell)
        return json.dumps(cell).encode()

    return damage


def change_digit(content, other):
    position = content.rindex(b'"seconds": ') + len(b'"seconds": ') + 2
    return (
        content[:position]
        + (b"7" if content[position : position + 1] != b"7" else b"3")
        + content[position + 1 :]
    )


CELL_DAMAGE = {
    "rows missing": edit_cell(lambda cell: cell["rows"].pop()),
    "rows doubled": edit_cell(lambda cell: cell["rows"].extend(cell["rows"])),
    "another status": edit_cell(lambda cell: cell.update(status="skipped")),
    "ill-typed": edit_cell(lambda cell: cell.update(rows=3)),
    "another cell": lambda content, other: other,
    "doubled": lambda content, other: content + content,
    "cut": lambda content, other: content[:-2],
    "deep": lambda content, other: b"[" * 100_000,
    "not text": lambda content, other: b"\xff\x00" * 50,
    "a list": lambda content, other: b"[]",
    "one bit": lambda content, other: bytes([content[0] ^ 1]) + content[1:],
    "empty": lambda content, other: b"",
}


@pytest.mark.long
@pytest.mark.parametrize("part", range(3))
def test_damaged_cells_are_computed_again_and_no_others(copy, undamaged_run, part):
    cells = sorted((copy / "cells").glob("*.json"))
    contents = [path.read_bytes() for path in cells]
    damages = list(CELL_DAMAGE.values())[4 * part : 4 * part + 4]
    for path, content, damage in zip(cells, contents, damages, strict=False):
        path.write_bytes(damage(content, contents[-1]))
    assert sum(finish(copy).values()) == len(damages) == 4 < len(cells)
    assert rows_of(copy) == rows_of(undamaged_run)
    for path, content in zip(cells[4:], contents[4:], strict=True):
        assert path.read_bytes() == content


def mutations(content, rng):
    """Yield damaged versions of a file: cut, doubled, replaced, single characters changed."""
    lines = content.splitlines(keepends=True)
    yield from (content[: int(len(content) * share)] for share in (0, 0.3, 0.999))
    yield from (content * 2, b"".join(lines[:-1]), b"".join([*lines, lines[-1]]))
    yield b"".join(lines[: len(lines) // 2] + lines[len(lines) // 2 + 1 :])
    yield from (b"[" * 100_000, b'{"a":' * 100_000, b"a = " + b"[" * 100_000, b"\xff\xfe", b"\0")
    yield from (b"null", b"3", b"[]", b"{}", b"[1]", b"NaN", b"1e999", b"9" * 6000)
    for _ in range(10):
        position = rng.randrange(len(content))
        yield (
            content[:position]
            + bytes([content[position] ^ 1 << rng.randrange(8)])
            + content[position + 1 :]
        )


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["rows.csv", "suite.toml", "environment.json", "disclosure.json", "SHA256SUMS"]
)
def test_a_changed_file_is_named_and_never_shown(copy, undamaged_run, name):
    read_function = {
        "rows.csv": load_rows,
        "SHA256SUMS": load_rows,
        "suite.toml": read_suite_of_run,
        "environment.json": lambda run: read_json(run, name),
        "disclosure.json": lambda run: read_json(run, name),
    }[name]
    content = (copy / name).read_bytes()
    refused = 0
    for damaged in mutations(content, random.Random(name)):
        (copy / name).write_bytes(damaged)
        result, error_message = outcome(read_function, copy)
        if error_message:
            assert "SHA256SUMS" in error_message
            refused += 1
        elif name == "suite.toml":  # restored from its copy
            assert result == read_suite_of_run(undamaged_run)
            assert (copy / name).read_bytes() == content
            refused += 1
        else:  # The damaged line of the list concerned another file.
            assert name == "SHA256SUMS"
            assert result.drop(columns="run").equals(load_rows(undamaged_run).drop(columns="run"))
    assert refused > 20 if name != "SHA256SUMS" else refused > 10


def test_a_suite_without_its_copy_is_refused_and_a_lost_one_restored(copy, undamaged_run):
    (copy / "suite.toml").unlink()
    assert read_suite_of_run(copy) == read_suite_of_run(undamaged_run)
    for name in ("suite.toml", "environment.json"):
        (copy / name).write_bytes(b"x" + (copy / name).read_bytes())
    with pytest.raises(StoreError, match=r"suite.toml' was changed after it was written"):
        read_suite_of_run(copy)
    (copy / "suite.toml").unlink()
    with pytest.raises(UsageError, match="contains no run to resume"):
        read_suite_of_run(copy)


@pytest.mark.parametrize("n_written", [0, 1])
def test_a_run_killed_while_its_folder_is_created_is_started_again(
    tmp_path, monkeypatch, n_written
):
    def write_or_stop(folder, name, content):
        if len(names) == n_written:
            raise KeyboardInterrupt
        names.append(name)
        write_listed(folder, name, content)

    names, bench = [], BenchSession(Suite.parse(SUITE, "tiny"), tmp_path / "run")
    with monkeypatch.context() as context:
        context.setattr(store, "write_listed", write_or_stop)
        with pytest.raises(KeyboardInterrupt):
            bench.open(resume=False)
    bench.open(resume=bool(names))
    assert read_suite_of_run(bench.folder).grids == bench.suite.grids


def test_a_run_that_had_no_disk_space_is_finished_when_there_is_some(tmp_path, undamaged_run):
    resource = pytest.importorskip("resource")
    previous_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (300, 3000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, previous_limit[1]))
        try:
            with pytest.raises(StoreError, match=r"cannot write .*File too large; "):
                finish(tmp_path / "run")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, previous_limit)
    finish(tmp_path / "run")
    assert rows_of(tmp_path / "run") == rows_of(undamaged_run)


def test_only_the_owner_can_read_a_run_folder(copy, undamaged_run):
    assert undamaged_run.stat().st_mode & 0o777 == 0o700
    copy.chmod(0o750)  # permissions that the owner changed on purpose
    finish(copy)
    assert copy.stat().st_mode & 0o777 == 0o750


def test_the_table_is_written_again_from_its_cells(copy, undamaged_run):
    (copy / "rows.csv").write_bytes((copy / "rows.csv").read_bytes()[:2000])
    (copy / "disclosure.json").write_text("[" * 100_000)
    assert not finish(copy)
    assert rows_of(copy) == rows_of(undamaged_run)
    assert "could not be made" not in write_report(copy).read_text()


def test_without_checksums_files_are_accepted_unless_they_cannot_be_parsed(copy, undamaged_run):
    (copy / "SHA256SUMS").unlink()
    assert read_suite_of_run(copy) == read_suite_of_run(undamaged_run)
    (copy / "disclosure.json").write_text("[" * 100_000)
    with pytest.raises(StoreError, match="nested too deep"):
        read_json(copy, "disclosure.json")
    (copy / "environment.json").write_text("[" * 100_000)
    with pytest.raises(StoreError, match="nested too deep"):
        finish(copy)


def test_foreign_files_stay_and_temporary_files_of_killed_writers_are_removed(copy, undamaged_run):
    foreign_names = [".x.partial", ".partial", "...partial", ".a.json.abc.partial", "x.json"]
    for folder in (copy, copy / "cells"):
        for name in foreign_names:
            (folder / name).write_text("x")
        (folder / ".a.json.999999999.partial").write_text("x")
        (folder / ".folder.999999999.partial").mkdir()
    assert not finish(copy)
    assert rows_of(copy) == rows_of(undamaged_run)
    for folder in (copy, copy / "cells"):
        assert {path.name for path in folder.iterdir()} >= set(foreign_names)
        assert not (folder / ".a.json.999999999.partial").exists()


def test_a_damaged_checkpoint_costs_a_training_and_no_row(tmp_path, undamaged_run, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    with monkeypatch.context() as context:
        context.setattr(runner.evaluate, "evaluate_attack", stop)
        with pytest.raises(KeyboardInterrupt):
            finish(folder)
    checkpoints = list((folder / "cells").glob("*.npz"))
    assert checkpoints
    for path, damage in zip(
        checkpoints,
        cycle([lambda old: old[: len(old) // 2], lambda old: b"[" * 9999]),
        strict=False,
    ):
        path.write_bytes(damage(path.read_bytes()))
    finish(folder)
    assert rows_of(folder) == rows_of(undamaged_run)


def test_attacks_whose_blind_baseline_failed_are_run_again(tmp_path, undamaged_run, monkeypatch):
    def broken(*_):
        raise RuntimeError("no guess")

    folder = tmp_path / "run"
    with monkeypatch.context() as context:
        context.setattr(runner.evaluate, "evaluate_blind", broken)
        assert finish(folder)["failed"] == 1
    assert {row["advantage"] for row in rows_of(folder) if row["metric"] == "ra"} == {""}
    finish(folder)
    assert rows_of(folder) == rows_of(undamaged_run)


KILLER = """
import os, signal, time
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Records
from fedtrees.core.registry import register

@register.attack("dies")
class Dies(Attack):
    def __init__(self, times: int = 1, name: str = ""):
        self.times, self.name = times, name

    def run(self, view, rng):
        seen = f"{__file__}.{self.name}"
        if self.times > 1 or not os.path.exists(seen):
            open(self.name, "w").close()  # where it works: that is all it may write
            while self.times == 1 and not os.path.exists(seen):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return Guess((Records(view.rows),))
"""


def answer_attack(plugin, name, is_over):
    """Create the file that an attack waits for, once the attack has created its own file."""
    while not is_over.wait(0.02):
        if any(Path(tempfile.gettempdir()).glob(f"fedtrees-*/{name}")):
            Path(f"{plugin}.{name}").touch()
            return


@pytest.mark.long
def test_a_killed_attack_costs_one_cell_at_most(tmp_path):
    plugin, folder = tmp_path / "killer.py", tmp_path / "run"
    plugin.write_text(KILLER)
    name, is_over = f"died-{uuid.uuid4().hex}", threading.Event()
    attacks = ["dies[times=2,name=other]", f"dies[times=1,name={name}]", "timberstrike"]
    undefended_suite = SUITE.replace('["laplace-hist[epsilon=8]"]', '["none"]')
    text = undefended_suite.replace('["random-leaf"]', json.dumps(attacks))
    assert finish(folder, undefended_suite, plugins=(str(plugin),)) == {"ok": 5}
    thread = threading.Thread(target=answer_attack, args=(plugin, name, is_over))
    thread.start()
    counts = finish(folder, text, workers=2, plugins=(str(plugin),))
    is_over.set()
    thread.join()
    assert counts == {"ok": 2, "failed": 1}
    assert Path(f"{plugin}.{name}").exists()  # The file shows that the process was killed once.
    rows = [
        row for row in rows_of(folder) if row["stage"] == "attack" and row["metric"] in ("", "ra")
    ]
    status = {
        row["attack_params"].partition(",")[0] or row["attack"]: row["status"] for row in rows
    }
    assert status == {"times=2": "failed", "times=1": "ok", "timberstrike": "ok"}
    (reason,) = (row["reason"] for row in rows if row["status"] == "failed")
    assert reason.startswith("the process was killed twice (SIGKILL(-9))")
    assert not list(folder.glob("cells/*.npz"))
    assert finish(folder, text, plugins=(str(plugin),)) == {
        "failed": 1
    }  # No other cell is computed again.


DEADLY = """
import os, signal
from dataclasses import dataclass
from fedtrees.core.registry import register
from fedtrees.defenses.suppression import SplitOnly

@register.defense("deadly")
@dataclass(frozen=True)
class Deadly(SplitOnly):
    times: int = 1
    notes: str = ""

    def repair_model(self, model, ctx):
        with open(self.notes, "a+") as out:
            out.write("x")
            out.seek(0)
            if len(out.read()) <= self.times:
                os.kill(os.getpid(), signal.SIGKILL)
        return model
"""


@pytest.mark.long
def test_a_killed_worker_costs_one_training_at_most(tmp_path):
    plugin, folder = tmp_path / "deadly.py", tmp_path / "run"
    plugin.write_text(DEADLY)
    deadly = [f"deadly[times={n},notes={tmp_path / str(n)}]" for n in (1, 2)]
    text = SUITE.replace('["laplace-hist[epsilon=8]"]', json.dumps(deadly))
    counts = finish(folder, text, workers=2, plugins=(str(plugin),))
    assert counts == {"ok": 8, "failed": 3}  # a training, which attacks apply to it, and the attack
    (reason, _) = {r["reason"] for r in rows_of(folder) if r["status"] == "failed"}
    assert "the process was killed twice (SIGKILL(-9))" in reason


VALUES = [
    "3", "-1", "true", "1.5", "nan", "1e400", "9" * 5000, '"' + "9" * 5000 + '"', '""', '"\\u0000"',
    '"../x"', "[]", "[[1]]", "[{}]", "{}", "{a=1}", "1979-05-27", '["a", 3]', '"a[b"', '"a+"', "",
    "[" * 2000, "{a=" * 2000, "{csv=3}", '{csv="x\\u0000"}', '{csv=""}', '"[=]"', "[0, 0]",
    '"a[' + ",".join(f"k{i}=" + ",".join("123456789") for i in range(12)) + ']"',
]  # fmt: skip
TOP = {"name": '"x"', "description": '""', "seeds": "[0]", "time_limit": "1.0"}
GRID = {
    "data": '["wine"]', "partitions": '["iid"]', "clients": "[3]", "protocols": '["fedtree-hist"]',
    "defenses": '["split-only"]', "threats": '["client"]', "attacks": '["random-leaf"]',
}  # fmt: skip


def toml(top, grid):
    lines = [f"{key} = {value}" for key, value in top.items()]
    return "\n".join([*lines, "[[grid]]", *(f"{key} = {value}" for key, value in grid.items())])


@pytest.mark.parametrize("key", [*TOP, *GRID, "grid", "odd"])
def test_any_value_in_a_suite_is_read_or_refused_with_its_source(key):
    refused = 0
    for value in VALUES:
        if key in GRID:
            text = toml(TOP, {**GRID, key: value})
        elif key in TOP:
            text = toml({**TOP, key: value}, GRID)
        else:
            text = f"{key} = {value}"
        suite, error_message = outcome(Suite.parse, text, "suite.toml")
        if error_message:
            assert error_message.startswith("suite.toml")
            refused += 1
        else:
            assert Suite.parse(suite.to_toml(), "again") == suite
    assert refused >= 15


def test_a_cut_or_doubled_suite_is_read_or_refused():
    text = toml(TOP, GRID)
    for damaged in (*(text[:end] for end in range(len(text))), text + "\n" + text):
        suite, error_message = outcome(Suite.parse, damaged, "suite.toml")
        assert suite or error_message.startswith("suite.toml")


@pytest.mark.parametrize("text", ["caf\u00e9 \U0001f333", "\x7f", 'a "quoted" \\ text\n'])
def test_a_description_is_read_back(text):
    suite = Suite("x", text)
    assert Suite.parse(suite.to_toml(), "x") == suite


def test_a_suite_that_options_change_describes_what_it_runs():
    quick = Suite.load("quick")
    assert "breast cancer" in quick.description
    changed = quick.override({"data": ["wine"]})
    assert changed.name == CHANGED
    assert "wine" in changed.description
    assert "breast" not in changed.description
    assert "client, server" in changed.description
    assert quick.override({}, "1").name == CHANGED
    assert quick.override({"data": ["breast-cancer"]}) == quick
    assert changed.override({"data": ["wine"]}) == changed
