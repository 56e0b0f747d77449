"""Changes of utility: paired by seed, settled or not, and in log-loss if AUC is undefined."""

import pandas as pd
import pytest

from fedtrees.report.cost import Utility, UtilityChange, utility_changes, utility_of
from fedtrees.report.statistics import t_estimate

AUC = Utility("auc")


def price(*changes):
    by_seed = dict(enumerate(changes))
    return UtilityChange(AUC, t_estimate(changes), by_seed)


@pytest.mark.parametrize(
    ("changes", "expected", "tier"),
    [
        ((0.0, 0.0, 0.0), "same", 0),
        ((0.001, -0.001, 0.0), "equal", 0),
        ((0.02, 0.03, 0.04), "ok", 0),
        ((-0.05, -0.051, -0.052), "worse", 2),
        ((-0.03, 0.02, -0.08), "unsettled", 1),
        ((-0.01, 0.02, -0.02), "unsettled", 0),
        ((-0.3,), "one", 2),
        ((), "unknown", 2),
    ],
)
def test_settled_and_tier_of_a_change(changes, expected, tier):
    assert (price(*changes).settled, price(*changes).tier) == (expected, tier)


def test_how_many_seeds_would_settle_it():
    p = price(-0.02, 0.0, 0.02)
    assert p.seeds_needed == 18  # (1.96 * 0.02 / 0.01)^2 = 15.4, and two


def rows(*lines):
    names = ["defense_spec", "seed", "metric", "value"]
    frame = pd.DataFrame([dict(zip(names, line, strict=True)) for line in lines])
    return frame.assign(status="ok", stage="train")


def test_if_auc_is_undefined_on_a_seed_all_changes_are_in_log_loss():
    trains = rows(
        ("none", 0, "auc", 0.9), ("none", 0, "log_loss", 0.3), ("none", 1, "log_loss", 0.4),
        ("x", 0, "auc", 0.9), ("x", 0, "log_loss", 0.5), ("x", 1, "log_loss", 0.6),
    )  # fmt: skip
    utility = utility_of(trains)
    assert (utility.metric, utility.fallen, utility.lacking, utility.seeds) == (
        "log_loss", "auc", 1, 2)  # fmt: skip
    change = utility_changes(trains, utility, float("nan"))["x"]
    assert change.change.mean == pytest.approx(-0.2)  # more log-loss is worse


def test_a_model_no_better_than_the_constant_one_has_collapsed():
    trains = rows(("none", 0, "r2", 0.5), ("noise", 0, "r2", -2.8e14), ("calm", 0, "r2", 0.45))
    changes = utility_changes(trains, Utility("r2"), 0.0)
    assert changes["noise"].collapsed
    assert changes["noise"].tier == 2
    assert not changes["calm"].collapsed
    assert not utility_changes(trains, Utility("r2"), float("nan"))["noise"].collapsed
