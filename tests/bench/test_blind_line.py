"""The name of the best blind guess is read from a cell's rows, for errors and for shares."""

import pytest

from fedtrees.core.claims import Claim
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.experiments.evaluate import blind_baseline
from fedtrees.metrics.metric import Metric, Score


@pytest.mark.parametrize(("best", "whose"), [(0.0, "near"), (1.0, "far")])
def test_the_best_guess_is_the_one_that_the_best_value_is_of(best, whose):
    @register.metric("tested-line")
    class Tested(Metric[float]):
        of, main = Claim, ("tested",)
        measures = (Measure("tested", "tested", best=best),)

        def truth(self, case):
            return None

        def score(self, claims, truth):
            return []

    scored = {name: [Score("tested", v)] for name, v in (("near", 0.1), ("far", 0.9))}
    top = Tested().best_of(scored)["tested"]
    assert (top.value, top.guess) == ({"near": 0.1, "far": 0.9}[whose], whose)
    rows = [{"metric": "tested", "value": top.value}]
    rows += [
        {"metric": "tested", "value": scores[0].value, "attack_params": name}
        for name, scores in scored.items()
    ]
    line = blind_baseline(rows)
    assert (line.scores["tested"], line.best["tested-line"]) == (top.value, whose)
