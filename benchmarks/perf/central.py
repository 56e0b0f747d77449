"""Compare the central engines with XGBoost, LightGBM and scikit-learn."""

from collections.abc import Iterator

from sklearn.ensemble import RandomForestClassifier

from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import Work, accuracy, table
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams

FOREST_ROWS, FOREST_TREES = 20_000, 50
# Values of the growth measurements. All parameters but one have their usual value.
STEPS = {
    "rows": (1_000, 10_000, 100_000, 300_000, 1_000_000),
    "columns": (5, 28, 100, 300),
    "bins": (16, 64, 256, 1024),
    "depth": (2, 4, 6, 8, 10),
}


def lines(
    rows: int, trees: int, target: float | None, size: Size, classes: int = 2
) -> Iterator[Line]:
    """Compare boosting with and without binning on one thread.

    Parameters
    ----------
    rows : int
        Rows of the table.
    trees : int
        Number of rounds.
    target : float or None
        Upper limit of the ratio to XGBoost.
    size : Size
        Scale of the measurement.
    classes : int
        Number of classes. Several classes are compared with binning only.
    """
    rows = size.rows(rows)
    data, work = table(rows, classes=classes), Work(size.trees(trees), classes=classes)
    for binned in (True, False) if classes == 2 else (True,):
        calls = {
            "ours": rivals.ours(data, work, binned=binned),
            "XGBoost": rivals.xgboost(data, work, binned=binned),
        }
        lightgbm_call = rivals.lightgbm(data, work, binned=binned)
        if lightgbm_call is not None:
            calls["LightGBM"] = lightgbm_call
        if not binned:
            calls["scikit-learn HGB"] = rivals.sklearn_hist(data, work)
        seconds = medians(calls, size.repeats)
        how = "binned before" if binned else "binning included"
        what = f"{rows:,} x 28, {work.trees} trees depth 6, 256 bins, {how}"
        if classes > 2:
            what = f"softmax, {rows:,} x 28, {classes} classes, {work.trees} rounds depth 6"
        for name in list(seconds)[1:]:
            goal = target if name == "XGBoost" else None
            yield ratio(what, seconds["ours"], seconds[name], name, goal)
        if lightgbm_call is None:
            yield Line(what, "not compared", rivals.NO_LIGHTGBM)


def small(size: Size = FULL) -> Iterator[Line]:
    """Compare at 100,000 rows."""
    yield from lines(100_000, trees=100, target=1.0, size=size)


def large(size: Size = FULL) -> Iterator[Line]:
    """Compare at a million rows, with fewer trees because each tree costs the same."""
    yield from lines(1_000_000, trees=10, target=1.5, size=size)


def multiclass(size: Size = FULL) -> Iterator[Line]:
    """Compare with ten classes, which need ten trees per round."""
    yield from lines(50_000, trees=10, target=None, size=size, classes=10)


def by(name: str, size: Size = FULL) -> Iterator[Line]:
    """Vary one parameter of `STEPS`. Rows are binned before."""
    for step in size.cases(STEPS[name]):
        shape = {"rows": 100_000, "columns": 28}
        work = {} if name in shape else {name: step}
        shape |= {name: step} if name in shape else {}
        data = table(size.rows(shape["rows"]), shape["columns"])
        task = Work(size.trees(10), **work)
        calls = {
            "ours": rivals.ours(data, task, binned=True),
            "theirs": rivals.xgboost(data, task, binned=True),
        }
        seconds = medians(calls, size.repeats)
        comma = "," if name == "rows" else ""
        what = {"columns": f"{step} features", "depth": f"depth {step}"}.get(name)
        yield ratio(what or f"{step:{comma}} {name}", seconds["ours"], seconds["theirs"], "XGBoost")


def forests(size: Size = FULL) -> Iterator[Line]:
    """Compare random forests, fully grown and limited in depth, binning included."""
    rows, trees = size.rows(FOREST_ROWS), size.trees(FOREST_TREES)
    all_rows = table(2 * rows)
    X, y = all_rows.X[:rows], all_rows.y[:rows]
    for depth in (None, 8):
        params = ForestParams(trees=trees, max_depth=depth)
        model = RandomForestClassifier(trees, max_depth=depth, random_state=0, n_jobs=1)
        grown = []

        def ours(params: ForestParams = params, grown: list = grown) -> None:  # type: ignore[type-arg]
            grown.append(grow_random_forest(X, y, quantile_cuts(X, params.max_bin), params))

        calls = {"ours": ours, "theirs": lambda model=model: model.fit(X, y)}
        seconds = medians(calls, size.repeats)
        unseen = all_rows.X[rows:]
        scores = [
            accuracy(all_rows.y[rows:], predictions)
            for predictions in (grown[-1].predict(unseen), model.predict_proba(unseen))
        ]
        what = f"random forest, {rows:,} x 28, {trees} trees, "
        what += "fully grown" if depth is None else f"depth {depth}"
        what += f" (accuracy {scores[0]:.3f}, theirs {scores[1]:.3f})"
        yield ratio(what, seconds["ours"], seconds["theirs"], "scikit-learn", 1.5)
