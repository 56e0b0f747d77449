"""For all protocols, defenses and threats, the reported worst case is the strongest attack.

A defense is never recommended if some attack exceeds the margin.
"""

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
    """Run three seeds of one protocol, so that winners can be named, and one seed of two others."""
    folder = tmp_path_factory.mktemp("every")
    size = {"rows": 45, "trees": 2, "steps": 1000}
    other_protocols = ["flower-bagging", "local-forests"]
    three_seeds = run(folder / "three", suite(["fedtree-hist"], [0, 1, 2], **size))
    return [three_seeds, run(folder / "one", suite(other_protocols, [0], **size))]


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


def advantages_of(folder):
    """Return advantages by (protocol, defense, threat), metric, seed and attack."""
    advantages = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in read_rows(folder):
        if row["stage"] == "attack" and row["status"] == "ok" and row["advantage"]:
            key = (row["protocol"], row["defense"], row["threat"])
            advantages[key][row["metric"]][row["seed"]][row["attack"]] = over_better_baseline(row)
    return advantages


def attacks_that_ran(folder):
    """Return the attacks that ran by (protocol, defense, threat, seed)."""
    attacks = defaultdict(set)
    for row in read_rows(folder):
        if row["stage"] == "attack" and row["status"] == "ok":
            key = (row["protocol"], row["defense"], row["threat"], row["seed"])
            attacks[key].add(row["attack"])
    return attacks


def check_worst(folder):
    """Check that the reported worst case is the strongest attack; return the number of cases."""
    advantages, n_checked = advantages_of(folder), 0
    for board in reported(folder)["leaderboards"]:
        for entry in board["defenses"]:
            key = (
                board["protocol"].partition("[")[0],
                entry["defense"].partition("[")[0],
                board["threat"],
            )
            seeds = advantages[key][board["metric"]] if key in advantages else {}
            if not seeds:
                assert entry["advantage"]["mean"] is None
                continue
            strongest = [max(by_attack.values()) for by_attack in seeds.values()]
            mean = sum(strongest) / len(strongest)
            assert entry["advantage"]["mean"] == pytest.approx(mean, abs=1e-12)
            n_checked += 1
    return n_checked


def check_coverage(folder):
    """Check that the attacks reported as applicable are those that ran, with none left out."""
    attacks = attacks_that_ran(folder)
    names = set(contenders())
    for board in reported(folder)["leaderboards"]:
        for entry in board["defenses"]:
            place = (board["protocol"].partition("[")[0], entry["defense"].partition("[")[0])
            coverage = entry["coverage"]
            attacks_of_entry = [v for k, v in attacks.items() if k[:3] == (*place, board["threat"])]
            assert set(coverage["applicable"]) == set().union(*attacks_of_entry) <= names
            assert not coverage["left_out"]
            assert not coverage["failed"]


def check_named(folder, margin):
    """Check that no attack exceeds the margin in cells that are reported to resist all attacks."""
    advantages, resisted = advantages_of(folder), []
    for setting in reported(folder, margin)["findings"]:
        protocol = setting["protocol"].partition("[")[0]
        for adversary in setting["adversaries"]:
            for cell in adversary["cells"]:
                if cell["state"] != "shut":
                    continue
                threat, name = adversary["threat"], cell["defense"]
                resisted.append((threat, name, cell["metric"]))
                key = (protocol, name.partition("[")[0], threat)
                by_attack = defaultdict(list)
                for scores in advantages[key][cell["metric"]].values():
                    for attack, advantage in scores.items():
                        by_attack[attack].append(advantage)
                assert by_attack
                for values in by_attack.values():
                    # A metric may have a multiple of the margin of the run.
                    limit = margin_of(cell["metric"], margin or MARGIN, counted=False)
                    assert sum(values) / len(values) < limit
    return resisted


@pytest.mark.long
def test_the_worst_case_is_the_strongest_attack_and_no_beaten_defense_is_recommended(quick):
    """One test for all checks, so that a single process computes the runs."""
    assert sum(map(check_worst, quick)) >= 10
    for folder in quick:
        check_coverage(folder)
    three_seeds, one_seed = quick
    check_named(three_seeds, None)
    assert check_named(three_seeds, 0.9)
    assert not check_named(one_seed, None)


@pytest.mark.slow
def test_the_same_on_larger_trees_with_three_seeds_everywhere(large):
    (folder,) = large
    assert check_worst(folder) >= 50
    check_coverage(folder)
    for margin in (0.05, 0.1, 0.3):
        check_named(folder, margin)


@pytest.mark.long
def test_applicable_attacks_that_a_suite_omits_are_counted_without_running_them(tmp_path):
    text = suite(["fedtree-hist"], [0], rows=60, trees=1, steps=1)
    text = text.replace(FEW["fedtree-hist"], '"none"')
    start = text.index("attacks = ")
    folder = run(tmp_path / "run", text[:start] + 'attacks = ["timberstrike", "random-leaf"]\n')
    assert {name for names in attacks_that_ran(folder).values() for name in names} == {
        "timberstrike",
        "random-leaf",
    }
    client, server = sorted(reported(folder)["leaderboards"], key=lambda board: board["threat"])
    applicable = client["defenses"][0]["coverage"]["applicable"]
    assert {"timberstrike", "joint", "lattice"} <= set(applicable)
    assert not {"random-leaf", "timberstrike-published", "cl", "histogram-peeling"} & {*applicable}
    (entry,) = server["defenses"]
    assert "histogram-peeling" in entry["coverage"]["applicable"]
    missing = set(entry["coverage"]["applicable"]) - {"timberstrike"}
    assert set(entry["coverage"]["left_out"]) == missing


def test_all_means_the_attacks_that_are_not_listed_explicitly():
    def attacks_of(text):
        (grid,) = Suite.parse(f"name = 'x'\n[[grid]]\n{text}", "x").grids
        return [str(attack) for attack in grid.every_attack]

    default_attacks = contenders()
    assert {"timberstrike", "joint", "lattice", "histogram-peeling"} <= set(default_attacks)
    assert not {"random-leaf", "timberstrike-published", "cl"} & set(default_attacks)
    assert attacks_of("") == attacks_of("attacks = ['all']") == default_attacks
    with_all = attacks_of("attacks = ['random-leaf', 'all', 'joint[moves=9]']")
    assert with_all[:2] == ["random-leaf", "joint[moves=9]"]
    assert with_all[2:] == [name for name in default_attacks if name != "joint"]
    assert attacks_of("attacks = ['joint']") == ["joint"]
