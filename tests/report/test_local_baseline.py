"""The federation under a recipe is compared with parties that train on their local data only."""

import pytest
from synthetic_run import Table

from fedtrees.report.findings import RunAnalysis
from fedtrees.report.local_baseline import compare_with_training_alone


def compare(folder, federated, local=(0.78, 0.80), recipe="split-only", seeds=(0, 1)):
    """Return the comparison of a recipe, from the AUC by seed with it and of single parties."""
    table = Table(folder)
    for seed in seeds:
        table.train("none", seed, 0.85)
        table.train("split-only", seed, federated[seed])
        table.add("reference", "", seed, "auc", 0.5, protocol="majority-class")
    for seed, auc in enumerate(local):
        table.add("reference", "", seed, "auc", auc, protocol="local-only")
    analysis = RunAnalysis(folder, table.rows())
    return compare_with_training_alone(analysis.settings[0], recipe)


def test_a_recipe_below_the_training_of_single_parties_costs_accuracy(tmp_path):
    comparison = compare(tmp_path, (0.774, 0.780))
    assert comparison.joining_costs
    assert comparison.gain.mean == pytest.approx(-0.013)
    assert comparison.sentence == (
        "A party that trains without the others reaches AUC 0.790 on average; with this recipe the "
        "federation reaches 0.777, so that joining costs accuracy (2 seeds)."
    )


def test_a_recipe_above_the_training_of_single_parties_is_stated_with_all_three(tmp_path):
    comparison = compare(tmp_path, (0.82, 0.82))
    assert not comparison.joining_costs
    assert comparison.sentence == (
        "A party that trains without the others reaches AUC 0.790 on average; with this recipe the "
        "federation reaches 0.820, and 0.850 without a defense (2 seeds)."
    )


def test_only_seeds_with_both_trainings_are_compared(tmp_path):
    comparison = compare(tmp_path, (0.78, 0.9), local=(0.78,))
    assert comparison.federated.mean == pytest.approx(0.78)
    assert comparison.sentence.endswith("so that joining gains no accuracy (1 seed).")


@pytest.mark.parametrize("options", [{"local": ()}, {"recipe": "leaf-rounding"}])
def test_nothing_is_stated_if_one_of_the_two_was_not_measured(tmp_path, options):
    comparison = compare(tmp_path, (0.78, 0.78), **options)
    assert not comparison.joining_costs
    assert comparison.sentence == ""
