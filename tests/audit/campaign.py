"""Audit models of random settings, trained on tables we know; compare every number it states.

``python tests/audit/campaign.py --models 1000 --first 0`` draws model by model from its seed, and
prints the seed and parameters of each model of which a certain count, a bound, a setting or a
prediction is wrong. ``--seed 17`` runs one again. The version of XGBoost is the installed one.

Counts are compared under the conditions that the audit states: a row of weight 2 counts as two, and
of sampled rows, which are not known here, counts are no more than all rows. Sentences that state no
condition have to hold for the table. `load_model` has to predict what the library predicts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightgbm as lgb
import numpy as np
import xgboost as xgb

from fedtrees import load_model
from fedtrees.core.errors import DataError, UsageError
from fedtrees.model_audit import Known, audit, read_model
from fedtrees.model_audit.audit import Audit
from fedtrees.model_audit.model import without_statistics
from fedtrees.model_audit.verdict import to_json, verdict

READ = ("binary:logistic", "binary:logitraw", "multi:softprob", "multi:softmax", "reg:squarederror")
OTHERS = (
    "binary:hinge", "reg:logistic", "count:poisson", "reg:gamma", "reg:tweedie",
    "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror", "reg:squaredlogerror",
    "rank:pairwise", "survival:cox",
)  # fmt: skip
CLASSES = ("multi:softprob", "multi:softmax")


@dataclass(frozen=True, eq=False)
class Held:
    """A table that some trees were grown on; a row of weight 2 counts as two rows."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    weighted: bool
    kinds: tuple[str, ...]
    margin: np.ndarray | None = None  # what rows start from instead of the base score

    def matrix(self) -> xgb.DMatrix:
        return xgb.DMatrix(
            self.X, self.y, weight=self.weight if self.weighted else None, nthread=1,
            base_margin=self.margin,
            feature_types=list(self.kinds), enable_categorical="c" in self.kinds,
        )  # fmt: skip

    def some(self, rows: np.ndarray) -> Held:
        margin = None if self.margin is None else self.margin[rows]
        taken = {"X": self.X[rows], "y": self.y[rows], "weight": self.weight[rows]}
        return replace(self, **taken, margin=margin)


@dataclass(frozen=True, eq=False)
class Made:
    """A model file, and which table each tree of the file was grown on."""

    path: Path
    held: tuple[Held, ...]
    grown_by: tuple[int, ...]
    params: dict[str, Any]
    kind: str
    sampled: bool = False  # trees saw some of the rows
    settings: tuple[tuple[float, float], ...] = ()  # eta and lambda that trees were grown with
    starts: dict[int, float] = field(default_factory=dict)  # base scores that are not the file's
    expected: np.ndarray | None = None  # predictions of XGBoost's scikit-learn interface


def pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def table(rng: np.random.Generator, objective: str, classes: int) -> Held:
    """Draw a small table: few rows, columns of few values, duplicates, rare classes, weights."""
    n = int(rng.integers(4, 30)) if rng.random() < 0.3 else int(rng.integers(20, 160))
    columns, kinds = [], []
    for _ in range(int(rng.integers(1, 5))):
        kind = pick(rng, "normal", "normal", "binary", "few", "category")
        kinds.append("c" if kind == "category" else "float")
        if kind == "normal":
            columns.append(rng.normal(size=n))
        else:
            columns.append(rng.integers(0, {"binary": 2}.get(kind, 5), n).astype(float))
    X = np.column_stack(columns).astype(np.float32)
    signal = X.sum(axis=1) + rng.normal(size=n) * pick(rng, 0.1, 1.0, 3.0)
    if rng.random() < 0.25:
        X[rng.random(X.shape) < 0.2] = np.nan
    if objective in ("reg:squarederror", *OTHERS) and not objective.startswith("binary"):
        y = np.abs(signal) + 0.1 if objective in OTHERS else signal
        if objective == "reg:logistic" or rng.random() < 0.2:
            y = (signal > np.median(signal)).astype(float)
        if objective == "count:poisson" or rng.random() < 0.2:
            y = np.rint(y)
        if objective == "reg:gamma":
            y = np.abs(y) + 0.1
    elif objective in CLASSES:
        cuts = np.quantile(signal, np.sort(rng.random(classes - 1)))
        y = np.searchsorted(cuts, signal)
    else:
        y = signal > np.quantile(signal, pick(rng, 0.5, 0.5, 0.3, 0.8, 0.95))
    held = Held(X, np.asarray(y, float), np.ones(n), False, tuple(kinds))
    if rng.random() < 0.15:  # duplicates
        held = held.some(rng.integers(0, n, n))
    weights = pick(rng, *[None] * 7, (1,), (1, 2, 3), (2,), (0.5, 1), (0.5,), (0, 1), "any")
    if weights is not None:
        drawn = (
            rng.uniform(0.2, 3, n) if weights == "any" else rng.choice(np.array(weights, float), n)
        )
        drawn[0] = max(drawn[0], 0.5)
        held = replace(held, weight=drawn.astype(np.float32).astype(float), weighted=True)
    if rng.random() < 0.04 and objective not in CLASSES:
        margin = pick(
            rng, np.zeros(n), np.full(n, 0.4), rng.choice([-0.5, 0.5], n), rng.normal(size=n)
        )
        held = replace(held, margin=margin[: len(held.y)].astype(np.float32))
    return held


def parameters(rng: np.random.Generator, objective: str, classes: int, d: int) -> dict[str, Any]:
    """Draw a value of every booster parameter, the default more often than not."""

    def mostly(default: Any, *others: Any, share: float = 0.3) -> Any:
        return pick(rng, *others) if rng.random() < share else default

    params = {
        "objective": objective,
        "nthread": 1,
        "verbosity": 0,
        "seed": int(rng.integers(1000)),
        "eta": pick(rng, 0.3, 0.3, 0.1, 1.0, 0.5, 0.05, round(rng.uniform(0.01, 1), 3)),
        "lambda": pick(rng, 1.0, 1.0, 1.0, 0.0, 10.0, 0.5, 2.0, round(rng.uniform(0, 5), 2)),
        "alpha": mostly(0.0, 1.0, 2.0, 3.0, 5.0, 0.5, 0.25, 1.5, round(rng.uniform(0, 3), 2)),
        "gamma": mostly(0.0, 0.1, 1.0, 5.0, share=0.2),
        "max_depth": pick(rng, 1, 1, 1, 2, 3, 3, 4, 6),
        "min_child_weight": mostly(1.0, 0.0, 0.1, 5.0, 20.0),
        "max_delta_step": mostly(0.0, 0.1, 0.5, 1.0, 5.0, share=0.15),
        "subsample": mostly(1.0, 0.5, 0.8, 0.95, share=0.15),
        "num_parallel_tree": mostly(1, 2, 3, share=0.15),
        "tree_method": mostly("hist", "exact", "approx"),
        "scale_pos_weight": mostly(1.0, 2.0, 3.0, 5.0, 0.5, 2.5, 10.0, share=0.2),
        "base_score": mostly(
            None, 0.5, 0.9, 0.1, 0.3, 0.25, round(rng.uniform(0.02, 0.98), 3), share=0.4
        ),
    }  # fmt: skip
    for name, share in (
        ("colsample_bytree", 0.1),
        ("colsample_bylevel", 0.05),
        ("colsample_bynode", 0.05),
    ):
        params[name] = mostly(1.0, 0.5, 0.8, share=share)
    if rng.random() < 0.2:
        params |= {"grow_policy": "lossguide", "max_leaves": pick(rng, 0, 3, 5, 8)}
        params["tree_method"] = mostly("hist", "approx")
        if params["max_leaves"]:
            params["max_depth"] = mostly(0, 3)
    if params["tree_method"] != "exact":
        params["max_bin"] = mostly(256, 2, 4, 16)
        params["max_cat_to_onehot"] = mostly(4, 1, 10)
        params["max_cat_threshold"] = mostly(64, 1, 2)
    if rng.random() < 0.1:
        params["monotone_constraints"] = f"({','.join(str(pick(rng, -1, 0, 1)) for _ in range(d))})"
    if rng.random() < 0.05 and d > 1:
        params["interaction_constraints"] = f"[[{','.join(map(str, range(d - 1)))}]]"
    if objective in CLASSES:
        params["num_class"] = classes
        params["multi_strategy"] = mostly("one_output_per_tree", "multi_output_tree", share=0.05)
    if objective == "reg:quantileerror":
        params["quantile_alpha"] = 0.5
    if rng.random() < 0.04:
        params |= {"booster": "dart", "rate_drop": 0.3, "one_drop": pick(rng, 0, 1),
                   "sample_type": pick(rng, "uniform", "weighted"),
                   "normalize_type": pick(rng, "tree", "forest"), "skip_drop": 0.1}  # fmt: skip
    if rng.random() < 0.03:
        params["sampling_method"] = "gradient_based"
    return {name: value for name, value in params.items() if value is not None}


def make(seed: int, folder: Path) -> Made | str:
    """Train a model; return why XGBoost refuses these settings, if it does."""
    rng = np.random.default_rng([seed, 20240])
    if rng.random() < 0.12:
        return make_lightgbm(rng, folder)
    objective = pick(rng, *READ, *READ, READ[0], READ[0], READ[0], pick(rng, *OTHERS))
    classes = int(rng.integers(2, 5))
    held = table(rng, objective, classes)
    params = parameters(rng, objective, classes, held.X.shape[1])
    if params["tree_method"] == "exact":
        held = replace(held, kinds=("float",) * held.X.shape[1])
    kind = pick(rng, *["central"] * 7, "continued", "continued", "refreshed", "pruned", "sliced",
                "early", *["bagging"] * 3, "served", "scaled", "forest")  # fmt: skip
    rounds = int(rng.integers(1, 8))
    try:
        return train(rng, kind, held, params, rounds, folder)
    except (ValueError, IndexError) as error:  # XGBoostError is a ValueError, estimators raise both
        return str(error).strip().splitlines()[0]


def train(
    rng: np.random.Generator,
    kind: str,
    held: Held,
    params: dict[str, Any],
    rounds: int,
    folder: Path,
) -> Made:
    path = folder / f"m.{pick(rng, 'json', 'json', 'ubj')}"
    settings = [_shrunk(params)]
    if kind == "bagging" and params["objective"] not in CLASSES and params.get("booster") != "dart":
        return bagging(rng, held, params, min(rounds, 4), folder / "m.json")
    if kind == "forest":  # as XGBRFClassifier and XGBRFRegressor
        rounds = 1
        params = params | {"eta": 1.0, "num_parallel_tree": 5, "subsample": 0.8,
                           "colsample_bynode": 0.8}  # fmt: skip
        settings = [_shrunk(params)]
    data, tables = held.matrix(), (held,)
    if kind == "scaled" and params["objective"] in SCALED:
        factor = pick(rng, 2.0, 3.0, 0.5)
        booster = xgb.train(params, data, rounds, obj=_scaled(params["objective"], factor))
        # a multiple of gradients and hessians is a weight of all rows
        tables = (replace(held, weight=held.weight * factor, weighted=True),)
    elif kind == "served" and params["objective"] in SCALED and not held.weighted:
        return serve(rng, held, params, path)
    elif kind == "early":
        booster = xgb.train(params, data, 12, evals=[(data, "all")], early_stopping_rounds=1,
                            verbose_eval=False)  # fmt: skip
    else:
        booster = xgb.train(params, data, rounds)
    per_round = _trees(booster) // max(booster.num_boosted_rounds(), 1)
    grown_by = [0] * _trees(booster)
    if kind == "continued":
        order = rng.permutation(len(held.y))
        same = rng.random() < 0.3
        parts = [order, order] if same else np.array_split(order, 2)
        tables = (held.some(parts[0]), held.some(parts[1]))
        booster = xgb.train(params, tables[0].matrix(), rounds)
        more = dict(params)
        for name in rng.choice(["eta", "lambda", "alpha", "max_depth"], 2, replace=False):
            more[name] = {"eta": 0.2, "lambda": 3.0, "alpha": 1.0, "max_depth": 2}[name]
        if rng.random() < 0.2 and params["objective"] not in CLASSES:
            more["base_score"] = pick(rng, 0.5, 0.2, 0.75)
        settings.append(_shrunk(more))
        before = _trees(booster)
        booster = xgb.train(more, tables[1].matrix(), 2, xgb_model=booster)
        grown_by = [0] * before + [1] * (_trees(booster) - before)
        if same:
            tables, grown_by = (tables[0],), [0] * len(grown_by)
    elif kind in ("refreshed", "pruned"):
        updater = "refresh" if kind == "refreshed" else "prune"
        update = {"process_type": "update", "updater": updater, "refresh_leaf": pick(rng, 0, 1, 1)}
        rest = {k: v for k, v in params.items() if k not in ("tree_method", "subsample")}
        if rng.random() < 0.5 and kind == "refreshed":
            rest["lambda"] = 3.0
            settings.append(_shrunk(rest))
        if kind == "refreshed":
            tables = (held, held.some(rng.permutation(len(held.y))[: 3 * len(held.y) // 4]))
            grown_by = [1] * len(grown_by)
        booster = xgb.train(rest | update, tables[-1].matrix(), rounds, xgb_model=booster)
    elif kind == "sliced" and rounds > 2:
        begin, step = pick(rng, (0, 2), (0, 1), (1, 1), (0, 3))
        booster = booster[begin : rounds - 1 : step]
        grown_by = grown_by[: _trees(booster)]
    assert len(grown_by) == _trees(booster), (kind, per_round)
    booster.save_model(path)
    sampled = params["subsample"] < 1 and kind != "refreshed"
    sampled = sampled or params.get("sampling_method") == "gradient_based"
    return Made(path, tables, tuple(grown_by), params, kind, sampled, tuple(settings))


SCALED = ("binary:logistic", "reg:squarederror")


def _scaled(objective: str, factor: float) -> Any:
    """Return the objective with gradients and hessians multiplied by a factor."""

    def gradients(margin: np.ndarray, data: xgb.DMatrix) -> tuple[np.ndarray, np.ndarray]:
        y, weight = data.get_label(), data.get_weight()
        weight = factor * (weight if len(weight) else np.ones(len(y)))
        if objective == "reg:squarederror":
            return weight * (margin - y), weight
        p = 1 / (1 + np.exp(-margin.astype(np.float64)))
        return weight * (p - y), weight * p * (1 - p)

    return gradients


def serve(rng: np.random.Generator, held: Held, params: dict[str, Any], path: Path) -> Made:
    """Train by XGBoost's scikit-learn interface, which predicts with its best iteration."""
    names = {"eta": "learning_rate", "lambda": "reg_lambda", "alpha": "reg_alpha"}
    dropped = ("nthread", "seed", "verbosity", "base_score")
    given = {names.get(k, k): v for k, v in params.items() if k not in dropped}
    kind = xgb.XGBRegressor if params["objective"] == "reg:squarederror" else xgb.XGBClassifier
    model = kind(n_estimators=8, early_stopping_rounds=2, n_jobs=1, enable_categorical=True,
                 feature_types=list(held.kinds), **given)  # fmt: skip
    half = rng.permutation(len(held.y))[: len(held.y) // 2]
    model.fit(held.X, held.y, eval_set=[(held.X[half], held.y[half])], verbose=False)
    booster, regression = model.get_booster(), kind is xgb.XGBRegressor
    # `save_model` of the interface marks its files so; XGBoost 3.0 fails beside a new scikit-learn
    marked = {"_estimator_type": "regressor" if regression else "classifier"}
    booster.set_attr(scikit_learn=json.dumps(marked))
    booster.save_model(path)
    expected = model.predict(held.X) if regression else model.predict_proba(held.X)[:, 1]
    return Made(path, (replace(held, margin=None),), (0,) * _trees(booster), params, "served",
                params["subsample"] < 1, (_shrunk(params),), expected=expected)  # fmt: skip


def _shrunk(params: dict[str, Any]) -> tuple[float, float]:
    return params["eta"] / params["num_parallel_tree"], params["lambda"]


def _trees(booster: xgb.Booster) -> int:
    return len(booster.get_dump())


def bagging(rng, held: Held, params: dict[str, Any], rounds: int, path: Path) -> Made:
    """What Flower's and NVFlare's servers do: each round every client grows a round of its own."""
    clients = int(rng.integers(2, 5))
    parts = np.array_split(rng.permutation(len(held.y)), clients)
    if rng.random() < 0.5:
        parts = [part[: max(len(part) // (k + 1), 2)] for k, part in enumerate(parts)]
    tables = tuple(held.some(part) for part in parts)
    model, grown_by, starts = None, [], {}
    for number in range(rounds):
        arrived = []
        for c in rng.permutation(clients).tolist():
            if model is None:
                booster = xgb.train(params, tables[c].matrix(), 1)
            else:
                booster = xgb.Booster(params)
                booster.load_model(bytearray(json.dumps(model).encode()))
                done = booster.num_boosted_rounds()
                booster.update(tables[c].matrix(), done)
                booster = booster[done : done + 1]
            arrived.append((c, json.loads(booster.save_raw("json"))))
        for c, update in arrived:
            trees = update["learner"]["gradient_booster"]["model"]["trees"]
            for _ in trees:
                if number == 0:
                    starts[len(grown_by)] = _score(update)
                grown_by.append(c)
            model = _appended(model, update)
    path.write_text(json.dumps(model))
    return Made(path, tables, tuple(grown_by), params, "bagging", params["subsample"] < 1,
                (_shrunk(params),), starts)  # fmt: skip


def _score(model: dict[str, Any]) -> float:
    score = json.loads(model["learner"]["learner_model_param"]["base_score"])
    return float(np.ravel(score)[0])


def _appended(model: dict[str, Any] | None, update: dict[str, Any]) -> dict[str, Any]:
    if model is None:
        return update
    mine = model["learner"]["gradient_booster"]["model"]
    each = len(update["learner"]["gradient_booster"]["model"]["trees"])
    for tree in update["learner"]["gradient_booster"]["model"]["trees"]:
        tree["id"] = len(mine["trees"])
        mine["trees"].append(tree)
        mine["tree_info"].append(0)
    mine["gbtree_model_param"]["num_trees"] = str(len(mine["trees"]))
    mine["iteration_indptr"] = list(range(0, len(mine["trees"]) + 1, each))
    return model


def make_lightgbm(rng: np.random.Generator, folder: Path) -> Made | str:
    objective = pick(rng, "binary", "binary", "regression", "multiclass", "poisson")
    classes = int(rng.integers(3, 5))
    named = {"binary": READ[0], "multiclass": CLASSES[0], "poisson": "count:poisson"}
    held = table(rng, named.get(objective, "reg:squarederror"), classes)
    held = replace(held, kinds=("float",) * held.X.shape[1])
    params = {
        "objective": objective, "num_threads": 1, "verbose": -1, "seed": int(rng.integers(1000)),
        "learning_rate": pick(rng, 0.1, 0.3, 1.0), "num_leaves": pick(rng, 2, 4, 8),
        "min_data_in_leaf": pick(rng, 1, 3, 10), "min_sum_hessian_in_leaf": pick(rng, 0, 1e-3, 1),
        "lambda_l1": pick(rng, 0, 0, 0, 1, 2, 0.5), "lambda_l2": pick(rng, 0, 0, 1, 5),
        "max_delta_step": pick(rng, 0, 0, 0, 0.3), "path_smooth": pick(rng, 0, 0, 0, 1),
        "boosting": pick(rng, "gbdt", "gbdt", "gbdt", "dart", "goss", "rf"),
        "bagging_fraction": pick(rng, 1.0, 0.6), "bagging_freq": pick(rng, 0, 1),
        "feature_fraction": pick(rng, 1.0, 0.7), "extra_trees": pick(rng, False, False, True),
        "boost_from_average": pick(rng, True, True, False),
        "use_quantized_grad": pick(rng, *[False] * 8, True), "zero_as_missing": False,
        "min_gain_to_split": pick(rng, 0, 0, 0.5),
    }  # fmt: skip
    if objective == "binary":
        params |= pick(rng, {}, {}, {"scale_pos_weight": 3.0}, {"is_unbalance": True})
    if objective == "multiclass":
        params["num_class"] = classes
    if rng.random() < 0.1:
        params["monotone_constraints"] = [pick(rng, -1, 0, 1) for _ in held.X[0]]
    path = folder / "m.txt"

    def data(part: Held) -> lgb.Dataset:
        weight = part.weight if part.weighted else None
        return lgb.Dataset(part.X, part.y, weight=weight, params={"verbose": -1})

    try:
        booster = lgb.train(params, data(held), int(rng.integers(1, 5)))
        kind = pick(rng, "central", "central", "refit")
        simple = params["boosting"] == "gbdt" and not params["use_quantized_grad"]
        simple = simple and not params["path_smooth"]
        if kind == "refit" and objective == "binary" and simple:  # LightGBM crashes on others
            booster = booster.refit(held.X, held.y[::-1].copy())
    except lgb.basic.LightGBMError as error:
        return str(error)
    booster.save_model(path)
    trees = booster.num_trees()
    bare = replace(held, weight=np.ones(len(held.y)))  # LightGBM counts rows whatever they weigh
    sampled = params["boosting"] in ("goss", "rf") or (
        params["bagging_fraction"] < 1 and params["bagging_freq"] > 0
    )
    return Made(path, (bare,), (0,) * trees, params, f"lightgbm {kind}", sampled)


def leaves_of(made: Made) -> list[np.ndarray]:
    """Return which leaf of every tree each row of each table reaches, by the libraries' numbers."""
    if made.path.suffix == ".txt":
        booster = lgb.Booster(model_file=str(made.path))
        return [
            np.asarray(booster.predict(h.X, pred_leaf=True)).reshape(len(h.y), -1)
            for h in made.held
        ]
    booster = xgb.Booster({"nthread": 1}, model_file=str(made.path))
    return [
        np.asarray(booster.predict(h.matrix(), pred_leaf=True)).reshape(len(h.y), -1).astype(int)
        for h in made.held
    ]  # fmt: skip


def predictions_differ(made: Made) -> list[str]:
    """Return by how much `load_model` predicts otherwise than the library does."""
    try:
        forest = load_model(made.path)
    except DataError as error:
        return [f"read by the audit and refused by load_model: {error}"]
    X = made.held[0].X
    if made.path.suffix == ".txt":
        expected = lgb.Booster(model_file=str(made.path)).predict(X)
    elif made.expected is not None:
        expected = made.expected
    else:
        booster = xgb.Booster({"nthread": 1}, model_file=str(made.path))
        expected = booster.predict(replace(made.held[0], margin=None).matrix(), output_margin=True)
        found = forest.margin(X)
        expected = np.asarray(expected).reshape(found.shape)
        return _differences(found, expected)
    return _differences(forest.predict(X), np.asarray(expected))


def _differences(found: np.ndarray, expected: np.ndarray) -> list[str]:
    """Float32 sums in another order differ by roundings of their largest terms."""
    off = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    return [f"predictions differ by {off.max():g}"] if not off.max(initial=0) < 1e-4 else []


WORDS = ("exactly", "at least", "for certain")
CONDITIONAL = ("If every", "In that case", "under these conditions", "Under the conditions")


def unconditional(made: Made, found: Audit) -> list[str]:
    """Return the sentences without a condition that the table contradicts.

    Of LightGBM the rows of leaves are compared elsewhere, as the rows that a tree saw; here remain
    sentences about the table.
    """
    out = []
    sentences = [part for line in verdict(found) for part in re.split(r"(?<=\.) ", line)]
    for sentence in sentences:
        claims = any(word in sentence for word in WORDS) and "no leaf" not in sentence.lower()
        if claims and made.path.suffix != ".txt" and not any(c in sentence for c in CONDITIONAL):
            out.append(f"no condition: {sentence}")
    return out


def _not_alone(made: Made, found: Audit, reached: list[np.ndarray]) -> list[str]:
    """Return the leaves that are said to hold one row of the table, and hold others.

    Weights are a condition that the verdict states.
    """
    held = made.held[0]
    if len(made.held) > 1 or (held.weighted and not (held.weight == 1).all()):
        return []
    out = []
    for t in found.trees:
        for leaf, alone in zip(t.leaf.tolist(), t.isolated, strict=True):
            number = found.model.number_of(t.at, leaf)
            if alone and (reached[0][:, t.index] == number).sum() != 1:
                out.append(f"tree {t.index} leaf {number}: one row")
    return out


def faults(made: Made, found: dict[str, Any], reached: list[np.ndarray]) -> list[str]:
    """Return what is wrong in the JSON of an audit."""
    out = []
    outputs = int(made.params.get("num_class", 1))
    parallel = int(made.params.get("num_parallel_tree", 1))
    for tree in found["trees"]:
        t = tree["index"]
        held = made.held[made.grown_by[t]]
        at = reached[made.grown_by[t]][:, t]
        numbers = {leaf["id"] for leaf in tree["leaves"]}
        if not set(at.tolist()) <= numbers:
            out.append(f"tree {t}: leaves {sorted(set(at.tolist()))} are called {sorted(numbers)}")
            continue
        if tree["output"] != t // parallel % outputs and made.path.suffix != ".txt":
            out.append(f"tree {t}: output {tree['output']}")
        one = tree["output"] if outputs > 1 else 1
        for leaf in tree["leaves"]:
            inside = at == leaf["id"]
            n = float(held.weight[inside].sum())
            n_pos = float(held.weight[inside & (held.y == one)].sum())
            said = f"tree {t} leaf {leaf['id']}: {leaf}, truth {n:g} rows, {n_pos:g} positive"
            rows = n, n_pos, int((inside & (held.weight > 0)).sum())
            out += [f"{said} ({fault})" for fault in _wrong(leaf, *rows, made.sampled)]
    return out + _wrong_model(made, found["model"])


def _mixed(made: Made, found: Audit, reached: list[np.ndarray]) -> list[str]:
    """Return the leaves that are called pure and that rows of the table of another label reach.

    Rows of weight 0 are none, and where rows of weight 2 count as two a number of rows may agree
    that is not theirs: the verdict says that counts take every row to weigh 1.
    """
    held = made.held[0]
    if len(made.held) > 1 or (held.weighted and not (held.weight == 1).all()):
        return []
    one = found.model.forest.objective.n_outputs > 1
    out = []
    for t in found.trees:
        label = held.y == (t.output if one else 1)
        numbers = [found.model.number_of(t.at, leaf) for leaf in t.leaf.tolist()]
        for number, pure in zip(numbers, t.pure, strict=True):
            if pure and len(np.unique(label[reached[0][:, t.index] == number])) > 1:
                out.append(f"tree {t.index} leaf {number}: pure")
    return out


def _wrong(leaf: dict[str, Any], n: float, n_pos: float, rows: int, sampled: bool) -> list[str]:
    """Return which numbers of a leaf are wrong.

    Of broken weights, of which the verdict says that they may happen to add up to whole numbers in
    a first tree, counts of later trees are next to their sum, and bounds hold for rows.
    """
    near = 1e-3 if n % 1 == 0 else 0.999
    out = []
    if leaf["n"] is not None and (leaf["n"] > n + near or (leaf["n"] < n - near and not sampled)):
        out.append("rows")
    if leaf["n_pos"] is not None:
        negative = None if leaf["n"] is None else leaf["n"] - leaf["n_pos"]
        more = leaf["n_pos"] > n_pos + near or (
            negative is not None and negative > n - n_pos + near
        )
        if more or (not sampled and leaf["n_pos"] < n_pos - near):
            out.append("labels")
    if leaf["at_least"] is not None and leaf["at_least"] > max(n, rows) + near:
        out.append("at least")
    if leaf["at_most"] is not None and leaf["at_most"] < n - near and not sampled:
        out.append("at most")
    return out


def _wrong_model(made: Made, said: dict[str, Any]) -> list[str]:
    out = []
    used = [made.held[k] for k in sorted(set(made.grown_by))]
    n = sum(float(h.weight.sum()) for h in used)
    n_pos = sum(float(h.weight[h.y == 1].sum()) for h in used)
    if said["rows"] is not None:
        short = said["rows"] < n - 1e-3 and said["rows_whole"]
        if said["rows"] > n + 1e-3 or short:
            out.append(f"rows {said['rows']}, whole {said['rows_whole']}, of {n:g}")
        if said["positives"] is not None:
            negative = said["rows"] - said["positives"]
            if said["positives"] > n_pos + 1e-3 or negative > n - n_pos + 1e-3:
                out.append(f"positives {said['positives']} of {n_pos:g}")
    if said["sources"]["kind"] == "bagging" and said["sources"]["clients"] > len(used):
        out.append(f"{said['sources']['clients']} clients, not {len(used)}")
    if said["settings_source"] == "inferred":
        eta, lam = said["learning_rate"], said["reg_lambda"]
        if not any(
            abs(eta - e) <= 2e-3 * e and abs(lam - x) <= 2e-3 * max(x, 1) for e, x in made.settings
        ):
            out.append(f"eta {eta:g} and lambda {lam:g}, not {made.settings}")
    return out


def check(seed: int, folder: Path) -> tuple[str, list[str], Counter[str]]:
    """Make and audit one model; return what it is, what is wrong, and how much was counted."""
    tally: Counter[str] = Counter()
    made = make(seed, folder)
    if isinstance(made, str):
        return f"not trained: {made}", [], tally
    about = f"{made.kind} {made.params}"
    try:
        model = read_model(made.path)
    except DataError as error:
        refused = made.params["objective"] not in (*READ, "binary", "regression", "multiclass") or (
            "multi_output_tree" in str(error)
            or "weight_drop of shape" in str(error)  # XGBoost keeps weights of pruned trees
            or "sends them apart" in str(error) or "trees of the model do not divide" in str(error)
        )  # fmt: skip
        return f"refused: {error}", [] if refused else [f"{about}: {error}"], tally
    reached, out = leaves_of(made), predictions_differ(made)
    rng = np.random.default_rng([seed, 1])
    for name, variant, known in _variants(rng, made, model):
        try:
            found = audit(variant, known)
        except UsageError:  # what is declared is not what a later training used
            continue
        said = to_json(found)
        out += [f"{name}: {fault}" for fault in faults(made, said, reached)]
        out += [f"{name}: {fault}" for fault in _mixed(made, found, reached)]
        out += [f"{name}: {fault}" for fault in _not_alone(made, found, reached)]
        out += [f"{name}: {fault}" for fault in unconditional(made, found)]
        tally["pure"] += found.summary.pure
        if name == "whole":
            tally += Counter(models=1, leaves=found.summary.leaves, counted=found.summary.counted,
                             exact=found.summary.exact)  # fmt: skip
            tally[f"sources {found.sources.kind}"] += 1
            tally[made.params.get("booster", made.kind)] += 1
            tally["settings"] += found.settings is not None
        if name == "stripped" and found.summary.counted:
            out.append("stripped: counted without knowing anything")
    return about, out, tally


def _variants(
    rng: np.random.Generator, made: Made, model: Any
) -> list[tuple[str, Any, Known | None]]:
    """Return the model as it is and, of some, with settings declared, masked, and without sums."""
    out = [("whole", model, None)]
    if len(made.held) == 1 and not made.held[0].weighted and rng.random() < 0.3:
        out.append(("sized", model, Known(rows=len(made.held[0].y))))
    if made.path.suffix == ".txt":
        return out
    if rng.random() < 0.2 and len(set(made.settings)) == 1:
        eta, lam = made.settings[0]
        out.append(("declared", model, Known(learning_rate=eta, reg_lambda=lam)))
    if rng.random() < 0.08 and made.path.suffix == ".json":
        text = json.loads(made.path.read_text())
        booster = text["learner"]["gradient_booster"]
        for tree in booster.get("gbtree", booster)["model"]["trees"]:  # DART has a part gbtree
            tree["sum_hessian"] = [1.0] * len(tree["sum_hessian"])
        masked = made.path.with_name("masked.json")
        masked.write_text(json.dumps(text))
        out.append(("masked", read_model(masked), None))
    if rng.random() < 0.1:
        out.append(("stripped", without_statistics(model), None))
    return out


def campaign(first: int, models: int, folder: Path) -> tuple[list[str], Counter[str]]:
    """Check models of seeds from `first` on; return what is wrong, a text a model, and a tally."""
    wrong, tally = [], Counter[str]()
    for seed in range(first, first + models):
        about, faults_of, counted = check(seed, folder)
        tally += counted
        if not counted:
            tally[about.split(":")[0]] += 1
        if faults_of:
            wrong.append(f"seed {seed}: {about}\n  " + "\n  ".join(faults_of[:6]))
    return wrong, tally


def options_of(about: str | None) -> argparse.Namespace:
    """Return which models are asked for: of how many seeds, from the first one on."""
    options = argparse.ArgumentParser(description=about)
    options.add_argument("--models", type=int, default=1000)
    options.add_argument("--first", type=int, default=0, help="seed of the first model")
    options.add_argument("--seed", type=int, help="check this one alone")
    given = options.parse_args()
    if given.seed is not None:
        given.first, given.models = given.seed, 1
    return given


def main() -> None:
    given = options_of(__doc__)
    with TemporaryDirectory() as folder:
        wrong, tally = campaign(given.first, given.models, Path(folder))
    print("\n".join(wrong))
    print(f"{len(wrong)} of {given.models} models wrong; {dict(tally)}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
