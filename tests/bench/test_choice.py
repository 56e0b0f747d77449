"""Every defense, protocol and attack that a user names is actually tried.

For all of them the models are trained. A few run until the verdict, and all do with `pytest -m
slow`.
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
# A small substitute for the default suite; the defaults around it are chosen as usual.
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
    """Return a folder for the cells of earlier runs, so that later runs reuse them."""
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


def trained_defenses(rows, **conditions):
    """Return the defenses with which a model was trained."""
    rows = [row for row in rows if row["stage"] == "train" and row["status"] == "ok"]
    return {
        row["defense"]
        for row in rows
        if all(row[key] == value for key, value in conditions.items())
    }


def named(kind, of_networks):
    def marks(name):
        if name in of_networks:
            return [pytest.mark.extra("torch")]
        return [] if name in WHOLE else [pytest.mark.slow]

    return [pytest.param(name, marks=marks(name)) for name in register.names(kind)]


def without(kind, of_networks):
    return [name for name in register.names(kind) if name not in of_networks]


def small_spec(name):
    more_limits = {"rounds": 2, "iterations": 2} if name == "fedxgbllr" else {}
    return str(defaults.limit_size(Spec(name), {"trees": 2, "max_depth": 2, **more_limits}))


def fitting_pairs(options, monkeypatch):
    """Train the defaults for some options; return the pairs of protocol and defense that ran."""
    monkeypatch.setattr(defaults, "SIZE", {"trees": 2, "max_depth": 2})
    pairs = set()
    for group in build_plan(complete_suite(Suite.parse(SUITE, "x"), options)).groups:
        try:
            run_training(group.train, federation_of(group.train.federation_config, None))
        except Unfit:
            continue
        parts = [defense_part.name for defense_part in group.train.defense.parts] or ["none"]
        pairs |= {(group.train.protocol.name, part) for part in parts}
    return pairs


@pytest.mark.long
@pytest.mark.parametrize("name", without("defense", OF_NETWORKS))
def test_models_are_trained_with_every_defense_and_without(name, monkeypatch):
    ran = fitting_pairs({"defenses": [name]}, monkeypatch)
    assert {protocol for protocol, part in ran if part == name}
    assert {part for _, part in ran} == {"none", name}


@pytest.mark.parametrize("name", without("protocol", {*NEURAL, *ALONE}))
def test_models_of_every_protocol_are_trained_with_and_without_a_defense(name, monkeypatch):
    ran = fitting_pairs({"protocols": [small_spec(name)]}, monkeypatch)
    assert {protocol for protocol, _ in ran} == {name}
    assert {"none"} < {part for _, part in ran}


@pytest.mark.long(but=("id-lmid",))
@pytest.mark.parametrize("name", named("defense", OF_NETWORKS))
def test_every_defense_is_tried_together_with_the_undefended_baseline(small, name):
    rows, verdict = small("-d", name, *(WIDE if name in OF_NETWORKS else ()))
    defenses = trained_defenses(rows)
    assert "none" in defenses
    assert any(
        name in {part.name for part in parse_one(defense_text).parts} for defense_text in defenses
    )
    assert name in verdict
    assert "No defense was" not in verdict


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [case for case in named("protocol", NEURAL) if case.values[0] not in ALONE]
)
def test_every_protocol_is_tried_with_and_without_a_defense(small, name):
    rows, verdict = small("-p", small_spec(name), *(WIDE if name in NEURAL else ()))
    ran = trained_defenses(rows, protocol=name)
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


def test_protocols_of_the_suite_come_first_and_others_only_if_none_of_them_fits():
    assert [
        row_protocols
        for row_protocols, *_ in axes(complete_suite(QUICK, {"defenses": ["split-only"]}))
    ] == [["fedtree-hist"]]
    ((protocols, defenses, threats, data, clients),) = axes(
        complete_suite(QUICK, {"defenses": ["id-lmid[xi=0.3]"]})
    )
    assert protocols == ["vertical-forest", "secureboost"]
    assert (defenses, threats) == (["none", "id-lmid"], ["passive", "active"])
    assert (data, clients) == (["breast-cancer"], [2])
    two_defenses = {"defenses": ["id-lmid[xi=0.3]", "secure-sum"]}
    assert [row_defenses for _, row_defenses, *_ in axes(complete_suite(QUICK, two_defenses))] == [
        ["none", "secure-sum"], ["none", "id-lmid"],
    ]  # fmt: skip


def test_a_protocol_that_needs_its_defense_is_included_for_a_users_table():
    """The bundled table declares no ranges, so dp-gbdt needs dp-grid-cuts."""
    wine = complete_suite(Suite.load("recipes"), {"data": ["wine"]})
    assert {protocol.name for grid in wine.grids for protocol in grid.protocols} == {
        "fedtree-hist",
        "dp-gbdt",
    }


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
def test_an_attack_is_tried_under_threats_to_which_it_applies():
    threats_by_protocol = {
        protocol: threats
        for protocols, _, threats, *_ in axes(complete_suite(QUICK, {"attacks": ["few-shot"]}))
        for protocol in protocols
    }
    assert threats_by_protocol == {
        protocol: ["passive[labels=20]"] for protocol in ("vertical-forest", "secureboost")
    }
    assert axes(complete_suite(QUICK, {"attacks": ["histogram-peeling"]}))[0][2] == ["server"]


def test_vertical_tables_choose_vertical_protocols(tmp_path):
    for name, text in (("a", "k,x,y\n"), ("b", "k,z\n")):
        lines = (
            f"r{number},{number % 7}" + (f",{number % 2}" if name == "a" else "")
            for number in range(60)
        )
        (tmp_path / name).write_text(text + "\n".join(lines), encoding="utf-8")
    files = ",".join(str(tmp_path / name) for name in "ab")
    table = {"csv": files, "id": "k", "target": "y"}
    (grid, *_) = complete_suite(QUICK, {"data": [table]}).grids
    assert {register.get("protocol", protocol.name).layout for protocol in grid.protocols} == {
        "vertical"
    }
    assert grid.clients == (2,)


@pytest.mark.parametrize(
    ("options", "error_message"),
    [
        ({"protocols": ["fedtree-hist"], "defenses": ["id-lmid[xi=0.3]"]}, "of the types NodeRows"),
        ({"protocols": ["fedtree-hist"], "attacks": ["union"]}, "union does not apply: "),
        *[({"defenses": ["masking+paillier"]}, "each encrypt or mask every sum; keep one")]
        * CRYPTO,
    ],
)
def test_combinations_that_fit_nothing_are_refused_at_once(options, error_message):
    with pytest.raises(UsageError, match=error_message):
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


def test_chosen_defaults_are_described_in_one_line():
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
