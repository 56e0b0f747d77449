"""Every part of the performance suite works on a thousandth of its rows and trees.

Parts that take long nevertheless, because they start processes, encrypt or search, are slow tests.
"""

import re
import subprocess
import sys

import pytest

from fedtrees.attacks.labels import mixture
from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import FULL, Size, markdown
from fedtrees.benchmarks.perf.parts import parts

TOY = Size(0.001)
LONG = {
    "memory", "threads", "labels", "plugin", "crypto", "attacks", "bench", "bench-rows",
    "attack-rows",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in parts()]
)
def test_a_part_measures_this_package_and_its_competitors(name, monkeypatch):
    monkeypatch.setattr(mixture, "MOST_KICKS", 1)  # few rows would cause many restarts
    monkeypatch.setattr(mixture, "PATIENCE", 1)
    lines = list(parts()[name](TOY))
    assert lines
    assert not {line.measured for line in lines} & {"not run", "not compared"}
    assert all(re.search(r"\d", line.measured) for line in lines)
    assert markdown(lines).count("\n") == len(lines) + 1


@pytest.mark.long
def test_the_command_of_the_docs_prints_a_table():
    command = [sys.executable, "-m", "fedtrees.benchmarks.perf", "--only", "forests"]
    process = subprocess.run(
        [*command, "--scale", "0.001"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "## forests" in process.stdout
    assert process.stdout.count("| random forest, 300 x 28, 2 trees") == 2


def test_the_slow_parts_exist():
    assert {*parts()} > LONG


def test_the_full_size_does_not_scale_the_parts():
    assert [FULL.rows(1_000_000), FULL.trees(100), FULL.repeats] == [1_000_000, 100, 3]
    assert FULL.cases((1, 2)) == (1, 2)


def test_accuracy_is_the_share_of_correct_labels():
    table = rivals.table(400)
    assert rivals.accuracy(table.y, table.y.astype(float)) == 1.0
    assert rivals.accuracy(table.y, 1.0 - table.y) == 0.0
