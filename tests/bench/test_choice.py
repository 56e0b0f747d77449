"""Whatever is named is really tried: every defense, every protocol, every attack.

With all of them models are trained; a few run to the verdict, all by `pytest -m slow`.
"""

import shutil

import pytest
from present import CRYPTO
from result_rows import read_rows

from fedtrees.api import Run
from fedtrees.cli.main import main
from fedtrees.core.errors import UsageError
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_one
from fedtrees.experiments import defaults, environment
from fedtrees.experiments.defaults import complete_suite, describe_defaults
from fedtrees.experiments.evaluate import run_training
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import build_plan
from fedtrees.experiments.suite import Suite

QUICK = Suite.load("quick")
#: Stands in for the default suite: what is chosen around it is chosen as always.
SUITE = """
name = "quick"
seeds = [0]
[[grid]]
data = ["breast-cancer[rows=60]"]
protocols = ["fedtree-hist[trees=2,max_depth=2]"]
defenses = ["split-only", "secure-sum"]
threats = ["client", "server", "public"]
attacks = [
  "histogram-peeling", "union", "forest-boxes", INVERSION"asked-labels",
  "threshold-queries",
]
""".replace("INVERSION", '"regression-inversion", ' * ("dp-gd" in register.names("defense")))
NEURAL = {"fedavg-mlp", "fedsgd-mlp"}
ALONE = {"dp-ebm", "ebm-merge", "federboost-v"}  # no other defense fits them
WIDE = ("--data", "breast-cancer[rows=150]")  # clients have a batch of rows
WHOLE = {
    *("laplace-hist", "id-lmid", "dp-gd"),
    *("forest-hist", "secureboost"),
}
OF_NETWORKS = {"dp-sgd", "gradient-noise", "gradient-rounding", "top-k"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Cells of the runs before: what a run has in common with them is not computed twice."""
    return tmp_path_factory.mktemp("cells")


@pytest.fixture
def small(tmp_path, monkeypatch, finished):
    """Run the command as it is typed, around a suite of two trees."""
    (tmp_path / "small.toml").write_text(SUITE, encoding="utf-8")
    monkeypatch.setattr("fedtrees.experiments.suite.DEFAULT_SUITE", str(tmp_path / "small.toml"))
    monkeypatch.setattr(defaults, "SIZE", {"trees": 2, "max_depth": 2})
    monkeypatch.chdir(tmp_path)

    def bench(*options):
        shutil.copytree(finished, "run/cells")
        with pytest.raises(SystemExit) as ended:
            main(["bench", *options, "-j", "1", "--output", "run"])
        assert ended.value.code in (0, 3)  # 3: no attack applies
        shutil.copytree("run/cells", finished, dirs_exist_ok=True)
        return read_rows("run"), str(Run("run").verdict)

    return bench


def trained(rows, **wanted):
    """Return the defenses with which a model was trained."""
    rows = [r for r in rows if r["stage"] == "train" and r["status"] == "ok"]
    return {r["defense"] for r in rows if all(r[k] == v for k, v in wanted.items())}


def named(kind, of_networks):
    def marks(name):
        if name in of_networks:
            return [pytest.mark.extra("torch")]
        return [] if name in WHOLE else [pytest.mark.slow]

    return [pytest.param(name, marks=marks(name)) for name in register.names(kind)]


def without(kind, of_networks):
    return [name for name in register.names(kind) if name not in of_networks]


def small_spec(name):
    few = {"rounds": 2, "iterations": 2} if name == "fedxgbllr" else {}
    return str(defaults.limit_size(Spec(name), {"trees": 2, "max_depth": 2, **few}))


def fitting(options, monkeypatch):
    """Train what is chosen for some options; return protocols and parts of defenses that ran."""
    monkeypatch.setattr(defaults, "SIZE", {"trees": 2, "max_depth": 2})
    found = set()
    for group in build_plan(complete_suite(Suite.parse(SUITE, "x"), options)).groups:
        try:
            run_training(group.train, federation_of(group.train.federation_config, None))
        except Unfit:
            continue
        parts = [p.name for p in group.train.defense.parts] or ["none"]
        found |= {(group.train.protocol.name, part) for part in parts}
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", without("defense", OF_NETWORKS))
def test_models_are_trained_with_every_defense_and_without(name, monkeypatch):
    ran = fitting({"defenses": [name]}, monkeypatch)
    assert {protocol for protocol, part in ran if part == name}
    assert {part for _, part in ran} == {"none", name}


@pytest.mark.parametrize("name", without("protocol", {*NEURAL, *ALONE}))
def test_models_of_every_protocol_are_trained_with_and_without_a_defense(name, monkeypatch):
    ran = fitting({"protocols": [small_spec(name)]}, monkeypatch)
    assert {protocol for protocol, _ in ran} == {name}
    assert {"none"} < {part for _, part in ran}


@pytest.mark.long(but=("id-lmid",))
@pytest.mark.parametrize("name", named("defense", OF_NETWORKS))
def test_every_defense_is_tried_beside_none(small, name):
    rows, verdict = small("-d", name, *(WIDE if name in OF_NETWORKS else ()))
    ran = trained(rows)
    assert "none" in ran
    assert any(name in {p.name for p in parse_one(d).parts} for d in ran)
    assert name in verdict
    assert "No defense was" not in verdict


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [case for case in named("protocol", NEURAL) if case.values[0] not in ALONE]
)
def test_every_protocol_is_tried_with_and_without_a_defense(small, name):
    rows, verdict = small("-p", small_spec(name), *(WIDE if name in NEURAL else ()))
    ran = trained(rows, protocol=name)
    assert name in verdict
    assert {"none"} < ran
    assert "No defense was" not in verdict


def axes(suite):
    return [
        (
            [p.name for p in g.protocols], [d.name for d in g.defenses],
            list(g.threats), [d.name for d in g.data], list(g.clients),
        ) for g in suite.grids
    ]  # fmt: skip


def test_the_suite_s_own_come_first_and_others_where_they_alone_fit():
    assert [p for p, *_ in axes(complete_suite(QUICK, {"defenses": ["split-only"]}))] == [
        ["fedtree-hist"]
    ]
    ((protocols, defenses, threats, data, clients),) = axes(
        complete_suite(QUICK, {"defenses": ["id-lmid[xi=0.3]"]})
    )
    assert protocols == ["vertical-forest", "secureboost"]
    assert (defenses, threats) == (["none", "id-lmid"], ["passive", "active"])
    assert (data, clients) == (["breast-cancer"], [2])
    both = {"defenses": ["id-lmid[xi=0.3]", "secure-sum"]}
    assert [d for _, d, *_ in axes(complete_suite(QUICK, both))] == [
        ["none", "secure-sum"], ["none", "id-lmid"],
    ]  # fmt: skip


def test_a_protocol_that_needs_its_defense_is_kept_on_a_table_of_ones_own():
    """Nothing is declared of the bundled table, so that dp-gbdt needs dp-grid-cuts."""
    wine = complete_suite(Suite.load("recipes"), {"data": ["wine"]})
    assert {p.name for g in wine.grids for p in g.protocols} == {"fedtree-hist", "dp-gbdt"}


def test_a_named_protocol_meets_all_attacks_of_the_suite_and_the_defenses_that_act_on_it():
    grids = ("defenses = ['min-bin[k=5]']\nattacks = ['random-leaf']",
             "defenses = ['secure-sum']\nattacks = ['timberstrike']")  # fmt: skip
    suite = Suite.parse("\n".join(f"[[grid]]\n{grid}" for grid in grids), "x")
    (grid,) = complete_suite(suite, {"protocols": ["nvflare-hist"]}).grids
    assert [str(a) for a in grid.attacks] == ["random-leaf", "timberstrike"]
    assert [str(d) for d in grid.defenses[:3]] == ["none", "min-bin[k=5]", "secure-sum"]
    (grid,) = complete_suite(
        suite, {"protocols": ["dp-forest"], "data": ["digits[rows=100]"]}
    ).grids
    assert [str(d) for d in grid.defenses] == ["none", "secure-sum"]
    (grid,) = complete_suite(suite, {"protocols": ["nvflare-hist"], "attacks": ["joint"]}).grids
    assert [str(a) for a in grid.attacks] == ["joint"]


@pytest.mark.long
def test_an_attack_is_tried_under_threats_that_it_applies_to():
    found = {
        p: t for ps, _, t, *_ in axes(complete_suite(QUICK, {"attacks": ["few-shot"]})) for p in ps
    }
    assert found == {p: ["passive[labels=20]"] for p in ("vertical-forest", "secureboost")}
    assert axes(complete_suite(QUICK, {"attacks": ["histogram-peeling"]}))[0][2] == ["server"]


def test_tables_that_say_who_holds_what_choose_their_protocols(tmp_path):
    for name, text in (("a", "k,x,y\n"), ("b", "k,z\n")):
        lines = (f"r{i},{i % 7}" + (f",{i % 2}" if name == "a" else "") for i in range(60))
        (tmp_path / name).write_text(text + "\n".join(lines), encoding="utf-8")
    files = ",".join(str(tmp_path / name) for name in "ab")
    table = {"csv": files, "id": "k", "target": "y"}
    (grid, *_) = complete_suite(QUICK, {"data": [table]}).grids
    assert {register.get("protocol", p.name).layout for p in grid.protocols} == {"vertical"}
    assert grid.clients == (2,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"protocols": ["fedtree-hist"], "defenses": ["id-lmid[xi=0.3]"]}, "of the types NodeRows"),
        ({"protocols": ["fedtree-hist"], "attacks": ["union"]}, "union does not apply: "),
        *[({"defenses": ["masking+paillier"]}, "each encrypt or mask every sum; keep one")]
        * CRYPTO,
    ],
)
def test_what_goes_with_nothing_is_refused_at_once(options, said):
    with pytest.raises(UsageError, match=said):
        complete_suite(QUICK, options)


def test_an_attack_that_applies_only_with_a_named_defense_is_kept():
    # Without dp-grid-cuts no client sends a sketch of its columns, and the table has no ranges.
    options = {
        "data": ["breast-cancer[rows=60]"],
        "protocols": ["dp-gbdt[epsilon=1,trees=2,noise=distributed]"],
        "defenses": ["dp-grid-cuts[epsilon=1]"],
        "attacks": ["sketch-reading"],
    }
    (grid,) = complete_suite(QUICK, options).grids
    assert [str(d) for d in grid.defenses if d.parts] == ["dp-grid-cuts[epsilon=1]"]
    assert "server" in grid.threats
    with pytest.raises(Unfit, match="sketch-reading does not apply: "):
        complete_suite(QUICK, options | {"defenses": ["none"]})


@pytest.mark.long
def test_a_missing_extra_is_named_at_once(monkeypatch):
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    for options in ({"defenses": ["dp-sgd"]}, {"protocols": ["fedsgd-mlp"]}, {"attacks": ["dlg"]}):
        with pytest.raises(UsageError, match=r"torch.*pip install"):
            complete_suite(QUICK, options)


def test_what_was_chosen_is_told_in_a_line():
    options = {"defenses": ["reduced-leakage"]}
    text = describe_defaults(QUICK, options, complete_suite(QUICK, options))
    assert text.startswith("chosen to fit: clients 2; protocols vertical-forest[")
    assert (
        describe_defaults(QUICK, {"data": ["wine"]}, complete_suite(QUICK, {"data": ["wine"]}))
        == ""
    )


def test_a_wrong_value_of_an_attack_is_refused_as_such_and_not_as_a_missing_message(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "-a", "timberstrike[chains=0]", "-d", "split-only", "--dry-run"])
    assert stopped.value.code == 2
    assert "chains=0: give a whole number, 1 or more" in capsys.readouterr().err
