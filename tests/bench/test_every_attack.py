"""Every protocol, defense and threat: the worst reported is the strongest attack's, and no winner
is named that any attack gets past."""

from collections import defaultdict
from functools import cache

import pytest
from result_rows import read_rows

from fedtrees.core.attack import contenders
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.report.findings import analyze_run
from fedtrees.report.json_export import summary
from fedtrees.report.leakage import MARGIN, margin_of

SHARED = '"split-only", "leaf-rounding[decimals=1]", "mask-sum-hessian", "min-leaf[k=5]"'
NOISY = '"laplace-hist[epsilon=1]", "laplace-gradient[epsilon=4]", "hist-rounding[step=0.01]"'
DEFENSES = {
    "fedtree-hist": f'"split-only", "leaf-rounding[decimals=1]", {NOISY}, "secure-sum", "min-bin"',
    "nvflare-hist": f'{NOISY}, "secure-sum", "min-bin"',
    "forest-hist": '"split-only", "leaf-rounding[decimals=1]", "secure-sum"',
    "flower-bagging": SHARED,
    "flower-cyclic": SHARED,
    "local-ensembles": SHARED,
    "local-forests": '"none"',
}
GRID = """
[[grid]]
data = ["wine[rows={rows}]"]
protocols = ["{protocol}[trees={trees},max_depth=2{more}]"]
defenses = [{defenses}]
threats = ["client", "server"]
attacks = ["all", "joint[steps={steps}]", "lattice[steps={steps}]"]
"""
FEW = {
    "fedtree-hist": '"split-only+laplace-hist[epsilon=1]"',
    "nvflare-hist": '"laplace-hist[epsilon=1]"',
    "forest-hist": '"secure-sum"',
    "flower-bagging": '"min-leaf[k=5]"',
    "flower-cyclic": '"mask-sum-hessian"',
    "local-ensembles": '"split-only"',
    "local-forests": '"none"',
}
HISTOGRAMS = ("fedtree-hist", "nvflare-hist", "forest-hist")


def suite(protocols, seeds, defenses=FEW, **size):
    grids = [
        GRID.format(
            protocol=name,
            defenses=defenses[name],
            more=",max_bin=8" if name in HISTOGRAMS else "",
            **size,
        )
        for name in protocols
    ]
    return f"name = 'every'\nseeds = {seeds}\n" + "".join(grids)


def run(folder, text):
    bench = BenchSession(Suite.parse(text, "every"), folder)
    bench.open(resume=False)
    bench.run()
    return folder


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Three seeds where winners can be named, one elsewhere, of each kind of message."""
    folder = tmp_path_factory.mktemp("every")
    size = {"rows": 45, "trees": 2, "steps": 1000}
    rest = ["flower-bagging", "local-forests"]
    three = run(folder / "three", suite(["fedtree-hist"], [0, 1, 2], **size))
    return [three, run(folder / "one", suite(rest, [0], **size))]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    return [
        run(folder / "run", suite(DEFENSES, [0, 1, 2], DEFENSES, rows=90, trees=6, steps=200_000))
    ]


@cache
def reported(folder, margin=None):
    return summary(analyze_run(folder, None, margin))


def over_better_baseline(row):
    """Return the advantage over the blind or the population baseline, whichever is better.

    Only adversaries without rows have a population baseline. Where it is perfect, no advantage over
    it is defined, and 0 counts.
    """
    advantage = float(row["advantage"])
    return min(advantage, float(row["beyond"] or 0)) if row["population"] else advantage


def attacked(folder):
    """Return advantages by (protocol, defense, threat), metric, seed and attack, off the file."""
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in read_rows(folder):
        if row["stage"] == "attack" and row["status"] == "ok" and row["advantage"]:
            key = (row["protocol"], row["defense"], row["threat"])
            found[key][row["metric"]][row["seed"]][row["attack"]] = over_better_baseline(row)
    return found


def ran(folder):
    """Return the attacks that ran by (protocol, defense, threat, seed)."""
    found = defaultdict(set)
    for row in read_rows(folder):
        if row["stage"] == "attack" and row["status"] == "ok":
            key = (row["protocol"], row["defense"], row["threat"], row["seed"])
            found[key].add(row["attack"])
    return found


def check_worst(folder):
    """The worst reported of every point is the strongest attack's, seed by seed."""
    found, n = attacked(folder), 0
    for board in reported(folder)["leaderboards"]:
        for entry in board["defenses"]:
            key = (
                board["protocol"].partition("[")[0],
                entry["defense"].partition("[")[0],
                board["threat"],
            )
            seeds = found[key][board["metric"]] if key in found else {}
            if not seeds:
                assert entry["advantage"]["mean"] is None
                continue
            strongest = [max(by_attack.values()) for by_attack in seeds.values()]
            mean = sum(strongest) / len(strongest)
            assert entry["advantage"]["mean"] == pytest.approx(mean, abs=1e-12)
            n += 1
    return n


def check_coverage(folder):
    """What is said to apply is what ran, and nothing that applies was left out."""
    counted = ran(folder)
    names = set(contenders())
    for board in reported(folder)["leaderboards"]:
        for entry in board["defenses"]:
            place = (board["protocol"].partition("[")[0], entry["defense"].partition("[")[0])
            said = entry["coverage"]
            mine = [v for k, v in counted.items() if k[:3] == (*place, board["threat"])]
            assert set(said["applicable"]) == set().union(*mine) <= names
            assert not said["left_out"]
            assert not said["failed"]


def check_named(folder, margin):
    """No attack is above the margin on average where a cell is called down to its line."""
    found, named = attacked(folder), []
    for setting in reported(folder, margin)["findings"]:
        protocol = setting["protocol"].partition("[")[0]
        for adversary in setting["adversaries"]:
            for cell in adversary["cells"]:
                if cell["state"] != "shut":
                    continue
                threat, name = adversary["threat"], cell["defense"]
                named.append((threat, name, cell["metric"]))
                key = (protocol, name.partition("[")[0], threat)
                by_attack = defaultdict(list)
                for scores in found[key][cell["metric"]].values():
                    for attack, advantage in scores.items():
                        by_attack[attack].append(advantage)
                assert by_attack
                for values in by_attack.values():
                    # a measure may have a multiple of the margin of the run
                    limit = margin_of(cell["metric"], margin or MARGIN, counted=False)
                    assert sum(values) / len(values) < limit
    return named


@pytest.mark.long
def test_the_worst_reported_is_the_strongest_attack_s_and_nobody_is_named_who_is_past(quick):
    """One test, so that one process computes the runs."""
    assert sum(map(check_worst, quick)) >= 10
    for folder in quick:
        check_coverage(folder)
    three, one = quick
    check_named(three, None)
    assert check_named(three, 0.9)
    assert not check_named(one, None)


@pytest.mark.slow
def test_the_same_on_larger_trees_with_three_seeds_everywhere(large):
    (folder,) = large
    assert check_worst(folder) >= 50
    check_coverage(folder)
    for margin in (0.05, 0.1, 0.3):
        check_named(folder, margin)


@pytest.mark.long
def test_what_a_suite_leaves_out_is_counted_without_running_it(tmp_path):
    text = suite(["fedtree-hist"], [0], rows=60, trees=1, steps=1)
    text = text.replace(FEW["fedtree-hist"], '"none"')
    start = text.index("attacks = ")
    folder = run(tmp_path / "run", text[:start] + 'attacks = ["timberstrike", "random-leaf"]\n')
    assert {a for names in ran(folder).values() for a in names} == {"timberstrike", "random-leaf"}
    client, server = sorted(reported(folder)["leaderboards"], key=lambda b: b["threat"])
    applicable = client["defenses"][0]["coverage"]["applicable"]
    assert {"timberstrike", "joint", "lattice"} <= set(applicable)
    assert not {"random-leaf", "timberstrike-published", "cl", "histogram-peeling"} & {*applicable}
    (entry,) = server["defenses"]
    assert "histogram-peeling" in entry["coverage"]["applicable"]
    missing = set(entry["coverage"]["applicable"]) - {"timberstrike"}
    assert set(entry["coverage"]["left_out"]) == missing


def test_all_stands_for_the_attacks_that_are_not_named_beside_it():
    def spelled(text):
        (grid,) = Suite.parse(f"name = 'x'\n[[grid]]\n{text}", "x").grids
        return [str(a) for a in grid.every_attack]

    every = contenders()
    assert {"timberstrike", "joint", "lattice", "histogram-peeling"} <= set(every)
    assert not {"random-leaf", "timberstrike-published", "cl"} & set(every)
    assert spelled("") == spelled("attacks = ['all']") == every
    beside = spelled("attacks = ['random-leaf', 'all', 'joint[moves=9]']")
    assert beside[:2] == ["random-leaf", "joint[moves=9]"]
    assert beside[2:] == [name for name in every if name != "joint"]
    assert spelled("attacks = ['joint']") == ["joint"]
