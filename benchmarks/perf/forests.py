"""Random forests beside scikit-learn's."""

from collections.abc import Iterator

from sklearn.ensemble import RandomForestClassifier

from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import accuracy, table
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.sketch import quantile_cuts

ROWS, TREES = 20_000, 50


def lines(size: Size = FULL) -> Iterator[Line]:
    """Compare fully grown and shallow forests, binning included; scores on rows not seen."""
    rows, trees = size.rows(ROWS), size.trees(TREES)
    both = table(2 * rows)
    X, y = both.X[:rows], both.y[:rows]
    for depth in (None, 8):
        params = ForestParams(trees=trees, max_depth=depth)
        model = RandomForestClassifier(trees, max_depth=depth, random_state=0, n_jobs=1)
        grown = []

        def ours(params: ForestParams = params, grown: list = grown) -> None:  # type: ignore[type-arg]
            grown.append(grow_random_forest(X, y, quantile_cuts(X, params.max_bin), params))

        calls = {"ours": ours, "theirs": lambda model=model: model.fit(X, y)}
        seconds = medians(calls, size.repeats)
        unseen = both.X[rows:]
        scores = [
            accuracy(both.y[rows:], found)
            for found in (grown[-1].predict(unseen), model.predict_proba(unseen))
        ]
        what = f"random forest, {rows:,} x 28, {trees} trees, "
        what += "fully grown" if depth is None else f"depth {depth}"
        what += f" (accuracy {scores[0]:.3f}, theirs {scores[1]:.3f})"
        yield ratio(what, seconds["ours"], seconds["theirs"], "scikit-learn", 1.5)
