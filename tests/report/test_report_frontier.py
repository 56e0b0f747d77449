"""The frontier: worst case per seed, incomplete and dominated points, lines between budgets."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import Table, write_run

from fedtrees.report.figures import model
from fedtrees.report.figures.interactive import draw_panel
from fedtrees.report.figures.model import FigurePanel, panels_of
from fedtrees.report.findings import frontiers
from fedtrees.report.frontier import budgets, non_dominated, over_budgets
from fedtrees.report.results import family, load_rows, ordered
from fedtrees.report.statistics import attack_metrics, worst_case

COARSE = st.integers(0, 4).map(float)  # few values, so that ties are common


def brute_force(points, lower):
    sign = -1 if lower else 1
    return [
        not any(
            (sign * v >= sign * u and b <= a) and (sign * v > sign * u or b < a) for v, b in points
        )
        for u, a in points
    ]


@given(st.lists(st.tuples(COARSE, COARSE), min_size=1, max_size=12), st.booleans())
def test_non_dominated_points_equal_those_of_brute_force(points, lower):
    utility, advantage = zip(*points, strict=True)
    assert non_dominated(utility, advantage, lower=lower).tolist() == brute_force(points, lower)


@given(st.lists(st.tuples(COARSE, COARSE), min_size=1, max_size=12))
def test_some_point_is_never_dominated(points):
    assert non_dominated(*zip(*points, strict=True)).any()


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def test_the_worst_case_is_taken_per_seed_and_not_of_the_means(table):
    for seed, (advantage_a, advantage_b) in enumerate([(0.1, 0.3), (0.4, 0.2)]):
        table.train("none", seed, 0.8)
        table.attack("none", seed, "a", advantage_a)
        table.attack("none", seed, "b", advantage_b)
    point = table.frontier().point("none")
    assert point.leakage.advantages == (0.3, 0.4)
    assert point.leakage.strongest == ("b", "a")
    # The worst of the two means would be 0.25.
    assert point.advantage.mean == pytest.approx(0.35)
    assert point.attacks == (("a", 1), ("b", 1))


def test_worst_case_equals_the_maximum_over_attacks(rows):
    result = worst_case(rows, "ra")
    finished = rows[(rows["metric"] == "ra") & (rows["status"] == "ok")]
    keys = ["setting", "defense_spec", "threat", "seed"]
    expected = finished.groupby(keys, observed=True)["advantage"].max()
    assert len(result) == len(expected)
    for key, value in zip(result[keys].itertuples(index=False), result["advantage"], strict=True):
        assert value == expected[tuple(key)]


def test_a_null_advantage_is_not_an_advantage_of_zero(table):
    table.train("none", 0, 0.8)
    table.attack("none", 0, "a", "")
    table.attack("none", 0, "b", -0.2)
    assert table.frontier().point("none").advantage.mean == -0.2


def test_only_null_advantages_leave_a_point_undrawn(table):
    table.train("none", 0, 0.8)
    table.attack("none", 0, "a", "")
    point = table.frontier(metric="ra").point("none")
    assert not point.drawn


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_a_failed_attack_makes_the_point_incomplete_and_is_named(table, status):
    for seed in (0, 1):
        table.train("none", seed, 0.8)
        table.attack("none", seed, "a", 0.3)
    table.trouble("none", 1, "milp", status)
    point = table.frontier().point("none")
    assert point.incomplete
    assert point.coverage.failed == (("milp", "milp", status, 1),)
    assert f"milp ({status}, 1 seed)" in str(point.coverage)


def test_a_skipped_attack_does_not_make_a_point_incomplete(table):
    table.train("none", 0, 0.8)
    table.attack("none", 0, "a", 0.3)
    table.trouble("none", 0, "milp", "skipped")
    assert not table.frontier().point("none").incomplete


def test_an_incomplete_point_is_not_on_the_front_and_dominates_no_other(table):
    table.train("good", 0, 0.9)
    table.attack("good", 0, "a", 0.0)
    table.trouble("good", 0, "milp", "timeout")
    table.train("none", 0, 0.8)
    table.attack("none", 0, "a", 0.5)
    frontier = table.frontier()
    assert frontier.point("good").drawn
    assert frontier.front == ("none",)


def test_a_point_whose_attack_failed_is_not_on_the_front_and_dominates_no_other(table):
    for defense, utility, advantage in (
        ("good", 0.9, -0.3),
        ("calm", 0.85, -0.01),
        ("none", 0.8, 0.5),
    ):
        table.train(defense, 0, utility)
        table.attack(defense, 0, "a", advantage)
    frontier = table.frontier()
    assert frontier.point("good").attack_failed
    assert not frontier.point("calm").attack_failed  # within the margin of blind
    assert frontier.front == ("calm",)


@pytest.mark.parametrize("status", ["skipped", "failed"])
def test_of_a_defense_without_any_finished_attack_it_is_known_whether_one_applies(table, status):
    table.train("none", 0, 0.8)
    table.attack("none", 0, "a", 0.5)
    table.train("x", 0, 0.8)
    table.trouble("x", 0, "a", status)
    point = table.frontier().point("x")
    assert not point.drawn
    assert point.untouched == (status == "skipped")


def test_lower_is_better_turns_the_front_around(table):
    for defense, loss, advantage in [("none", 0.2, 0.5), ("x", 0.4, 0.1), ("y", 0.5, 0.2)]:
        table.add("train", defense, 0, "log_loss", loss)
        table.attack(defense, 0, "a", advantage)
    assert table.frontier(utility="log_loss").front == ("none", "x")


def test_a_panel_without_the_usual_metrics_shows_the_first_it_has(table):
    table.add("train", "none", 0, "r2", 0.7)
    table.add("attack", "none", 0, "v_measure", 0.6, attack="a", threat="t", advantage=0.2)
    frontier = table.frontier()
    assert (frontier.metric, frontier.utility) == ("v_measure", "r2")
    assert frontier.point("none").advantage.mean == 0.2


def test_budgets_of_one_defense_are_joined_in_order_of_the_number(rows):
    for frontier in frontiers(rows):
        assert (
            "laplace-hist[epsilon=1]",
            "laplace-hist[epsilon=4]",
            "laplace-hist[epsilon=16]",
        ) in frontier.lines
        assert len(frontier.lines) == 2


def test_a_line_joins_only_points_that_agree_in_all_other_parameters():
    specs = [f"x[epsilon={epsilon},depth={depth}]" for epsilon in (1, 10) for depth in (3, 10)]
    by_spec = budgets(specs)
    assert {budget.name for budget in by_spec.values()} == {"epsilon"}
    assert len({budget.rest for budget in by_spec.values()}) == 2
    assert by_spec["x[epsilon=10,depth=10]"].rest != by_spec["x[epsilon=10,depth=3]"].rest


def test_infinite_budgets_have_a_value():
    by_spec = budgets(["x[epsilon=inf]", "x[epsilon=2]"])
    assert by_spec["x[epsilon=inf]"].value == math.inf


def test_a_composed_defense_is_a_family_of_its_own():
    assert family("split-only+laplace-hist[epsilon=4]") == "split-only+laplace-hist"


def test_undefended_comes_first_and_numbers_count_as_numbers():
    specs = {"b[e=16]", "b[e=4]", "none", "a"}
    assert ordered(specs) == ["none", "a", "b[e=4]", "b[e=16]"]


def test_every_front_of_a_run_is_the_brute_force_one(rows):
    for frontier in frontiers(rows):
        solid = [p for p in frontier.drawn if not p.incomplete]
        pairs = [(p.utility.mean, p.advantage.mean) for p in solid]
        keep = brute_force(pairs, lower=False)
        assert set(frontier.front) == {p.defense for p, k in zip(solid, keep, strict=True) if k}


def test_intervals_contain_their_mean_and_single_seeds_have_none(rows, table):
    for frontier in frontiers(rows):
        for point in frontier.drawn:
            assert point.advantage.low <= point.advantage.mean <= point.advantage.high
            assert point.advantage.n == 3
    table.train("none", 0, 0.8)
    table.attack("none", 0, "a", 0.5)
    assert np.isnan(table.frontier().point("none").advantage.low)


def test_references_are_the_means_over_seeds(rows):
    frontier = frontiers(rows)[0]
    setting = frontier.panel.setting
    selected = rows[(rows["stage"] == "reference") & (rows["metric"] == "auc")
                & (rows["dataset"] == setting.dataset)
                & (rows["partition"] == setting.partition)]  # fmt: skip
    expected = selected.groupby("protocol")["value"].mean()
    assert {name: estimate.mean for name, estimate in frontier.references} == pytest.approx(
        expected.to_dict()
    )


def test_metrics_without_an_advantage_cannot_be_chosen(rows):
    names = attack_metrics(rows)
    assert names[0] == "ra"
    assert "specificity_z" not in names
    assert "ra_of" not in names


def test_references_belong_to_the_protocol_and_the_blind_guess_is_named(table):
    for seed in (0, 1):
        table.train("none", seed, 0.9)
        table.attack("none", seed, "a", 0.5)
        for protocol, auc in (("q", 0.8), ("other", 0.6)):
            place = {"protocol": "active-only", "protocol_params": protocol}
            table.add("reference", "none", seed, "auc", auc, **place)
        blind_columns = {"attack": "blind", "threat": "t", "protocol": "", "blind_guess": "cl"}
        table.add("blind", "", seed, "ra", 0.4, **blind_columns)
    data = table.frontier()
    assert [(name, estimate.mean) for name, estimate in data.references] == [("active-only", 0.8)]
    assert data.blind == ("cl",)
    assert panels_of([data])[0].blind == "blind (cl)"
    assert data.undefended.mean == pytest.approx(0.9)


def test_notes_above_a_frontier_do_not_overlap(table):
    for seed in (0, 1):
        table.train("none", seed, 0.9)
        table.train("shield", seed, 0.7)
        for defense in ("none", "shield"):
            table.attack(defense, seed, "a", 0.5)
        for name, auc in (("active-only", 0.89), ("local-only", 0.7), ("majority-class", 0.2)):
            table.add("reference", "none", seed, "auc", auc, protocol=name)
    data = table.frontier()
    assert [name for name, _ in panels_of([data])[0].vertical_lines] == [
        "local-only",
        "active-only",
        "undefended",
    ]
    figure = draw_panel(FigurePanel(data, model.palette(["none", "shield"]), (-0.1, 0.6)))
    shifts = {note.text: note.yshift for note in figure.layout.annotations if note.y == 1}
    assert shifts["active-only"] != shifts["undefended"]
    assert shifts["off the axis: majority-class 0.200"] > max(
        shift for text, shift in shifts.items() if "off" not in text
    )


def test_budgets_of_a_protocol_are_one_ordered_line_with_the_majority_class(table):
    for epsilon, auc, leak in ((10, 0.72, 0.8), (0.1, 0.69, 0.1), (1, 0.71, 0.5)):
        place = {"protocol": "noisy", "protocol_params": f"epsilon={epsilon}"}
        table.add("train", "none", 0, "auc", auc, **place)
        attack_columns = {"attack": "a", "threat": "t", "advantage": leak, "blind": 0.0}
        table.add("attack", "none", 0, "ra", leak, **place, **attack_columns)
        for name, value in (("majority-class", 0.5), ("local-only", auc - 0.1)):
            reference_place = {"protocol": name, "protocol_params": f"noisy[epsilon={epsilon}]"}
            table.add("reference", "none", 0, "auc", value, **reference_place)
    table.train("none", 0, 0.9)  # a run of a protocol without budgets
    table.attack("none", 0, "a", 0.5)
    write_run(table.folder, table.lines)
    all_frontiers = frontiers(load_rows(table.folder))
    (joined,) = over_budgets(all_frontiers)
    line = tuple(f"noisy[epsilon={e}]" for e in (0.1, 1, 10))
    assert joined.lines == (line,)
    assert [joined.point(spec).advantage.mean for spec in line] == [0.1, 0.5, 0.8]
    # Although it is far off, it is on the axis.
    assert panels_of([joined])[0].vertical_lines == [
        ("majority-class", 0.5)
    ]  # far off, and on the axis all the same
    assert str(joined.panel) == "d \N{MIDDLE DOT} p \N{MIDDLE DOT} noisy \N{MIDDLE DOT} t"
    assert len(all_frontiers) == 4
