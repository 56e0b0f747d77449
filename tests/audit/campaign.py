"""Audit models of random settings, trained on known tables, and compare every number in the report.

``python tests/audit/campaign.py --models 1000 --first 0`` draws each model from its seed, and
prints the seed and parameters of each model with a wrong certain count, bound, setting or
prediction. ``--seed 17`` repeats one model. The installed version of XGBoost is used.

Counts are compared under the conditions in the report: a row of weight 2 counts as two, and for
sampled rows, which are unknown here, counts must not exceed the counts of all rows. Sentences
without a condition must be true for the table. `load_model` must predict what the library
predicts.
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

SUPPORTED_OBJECTIVES = (
    "binary:logistic",
    "binary:logitraw",
    "multi:softprob",
    "multi:softmax",
    "reg:squarederror",
)
OTHER_OBJECTIVES = (
    "binary:hinge", "reg:logistic", "count:poisson", "reg:gamma", "reg:tweedie",
    "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror", "reg:squaredlogerror",
    "rank:pairwise", "survival:cox",
)  # fmt: skip
CLASSES = ("multi:softprob", "multi:softmax")


@dataclass(frozen=True, eq=False)
class TrainingTable:
    """A table on which some trees were grown. A row of weight 2 counts as two rows."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    weighted: bool
    kinds: tuple[str, ...]
    # margin from which rows start instead of the base score
    margin: np.ndarray | None = None

    def matrix(self) -> xgb.DMatrix:
        return xgb.DMatrix(
            self.X, self.y, weight=self.weight if self.weighted else None, nthread=1,
            base_margin=self.margin,
            feature_types=list(self.kinds), enable_categorical="c" in self.kinds,
        )  # fmt: skip

    def take(self, rows: np.ndarray) -> TrainingTable:
        margin = None if self.margin is None else self.margin[rows]
        selected = {"X": self.X[rows], "y": self.y[rows], "weight": self.weight[rows]}
        return replace(self, **selected, margin=margin)


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model file, and the index of the table on which each tree of the file was grown."""

    path: Path
    tables: tuple[TrainingTable, ...]
    grown_by: tuple[int, ...]
    params: dict[str, Any]
    kind: str
    sampled: bool = False  # each tree was grown on a sample of the rows
    settings: tuple[tuple[float, float], ...] = ()  # eta and lambda of the training
    # base scores that differ from that of the file
    starts: dict[int, float] = field(default_factory=dict)
    expected: np.ndarray | None = None  # predictions of XGBoost's scikit-learn interface


def pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def draw_table(rng: np.random.Generator, objective: str, classes: int) -> TrainingTable:
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
    if objective in ("reg:squarederror", *OTHER_OBJECTIVES) and not objective.startswith("binary"):
        y = np.abs(signal) + 0.1 if objective in OTHER_OBJECTIVES else signal
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
    drawn_table = TrainingTable(X, np.asarray(y, float), np.ones(n), False, tuple(kinds))
    if rng.random() < 0.15:  # duplicates
        drawn_table = drawn_table.take(rng.integers(0, n, n))
    weights = pick(rng, *[None] * 7, (1,), (1, 2, 3), (2,), (0.5, 1), (0.5,), (0, 1), "any")
    if weights is not None:
        weight_of_row = (
            rng.uniform(0.2, 3, n) if weights == "any" else rng.choice(np.array(weights, float), n)
        )
        weight_of_row[0] = max(weight_of_row[0], 0.5)
        drawn_table = replace(
            drawn_table, weight=weight_of_row.astype(np.float32).astype(float), weighted=True
        )
    if rng.random() < 0.04 and objective not in CLASSES:
        margin = pick(
            rng, np.zeros(n), np.full(n, 0.4), rng.choice([-0.5, 0.5], n), rng.normal(size=n)
        )
        drawn_table = replace(drawn_table, margin=margin[: len(drawn_table.y)].astype(np.float32))
    return drawn_table


def draw_parameters(
    rng: np.random.Generator, objective: str, classes: int, n_columns: int
) -> dict[str, Any]:
    """Draw a value of every booster parameter. Defaults have the largest probability."""

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
        params["monotone_constraints"] = (
            f"({','.join(str(pick(rng, -1, 0, 1)) for _ in range(n_columns))})"
        )
    if rng.random() < 0.05 and n_columns > 1:
        params["interaction_constraints"] = f"[[{','.join(map(str, range(n_columns - 1)))}]]"
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


def train_model(seed: int, folder: Path) -> ModelFile | str:
    """Train a model, or return the message with which the library refuses the settings."""
    rng = np.random.default_rng([seed, 20240])
    if rng.random() < 0.12:
        return train_lightgbm(rng, folder)
    objective = pick(
        rng,
        *SUPPORTED_OBJECTIVES,
        *SUPPORTED_OBJECTIVES,
        SUPPORTED_OBJECTIVES[0],
        SUPPORTED_OBJECTIVES[0],
        SUPPORTED_OBJECTIVES[0],
        pick(rng, *OTHER_OBJECTIVES),
    )
    classes = int(rng.integers(2, 5))
    training_table = draw_table(rng, objective, classes)
    params = draw_parameters(rng, objective, classes, training_table.X.shape[1])
    if params["tree_method"] == "exact":
        training_table = replace(training_table, kinds=("float",) * training_table.X.shape[1])
    kind = pick(rng, *["central"] * 7, "continued", "continued", "refreshed", "pruned", "sliced",
                "early", *["bagging"] * 3, "served", "scaled", "forest")  # fmt: skip
    rounds = int(rng.integers(1, 8))
    try:
        return train_xgboost(rng, kind, training_table, params, rounds, folder)
    # XGBoostError is a ValueError, and estimators raise both.
    except (ValueError, IndexError) as error:
        return str(error).strip().splitlines()[0]


def train_xgboost(
    rng: np.random.Generator,
    how: str,
    training_table: TrainingTable,
    params: dict[str, Any],
    rounds: int,
    folder: Path,
) -> ModelFile:
    path = folder / f"m.{pick(rng, 'json', 'json', 'ubj')}"
    settings = [_effective_settings(params)]
    if how == "bagging" and params["objective"] not in CLASSES and params.get("booster") != "dart":
        return train_bagging(rng, training_table, params, min(rounds, 4), folder / "m.json")
    if how == "forest":  # the settings of XGBRFClassifier and XGBRFRegressor
        rounds = 1
        params = params | {"eta": 1.0, "num_parallel_tree": 5, "subsample": 0.8,
                           "colsample_bynode": 0.8}  # fmt: skip
        settings = [_effective_settings(params)]
    matrix, tables = training_table.matrix(), (training_table,)
    if how == "scaled" and params["objective"] in SCALED:
        factor = pick(rng, 2.0, 3.0, 0.5)
        booster = xgb.train(params, matrix, rounds, obj=_scaled(params["objective"], factor))
        # A factor of gradients and hessians is equivalent to a weight of all rows.
        tables = (replace(training_table, weight=training_table.weight * factor, weighted=True),)
    elif how == "served" and params["objective"] in SCALED and not training_table.weighted:
        return train_with_sklearn_interface(rng, training_table, params, path)
    elif how == "early":
        booster = xgb.train(
            params, matrix, 12, evals=[(matrix, "all")], early_stopping_rounds=1, verbose_eval=False
        )
    else:
        booster = xgb.train(params, matrix, rounds)
    per_round = _count_trees(booster) // max(booster.num_boosted_rounds(), 1)
    grown_by = [0] * _count_trees(booster)
    if how == "continued":
        order = rng.permutation(len(training_table.y))
        same_rows = rng.random() < 0.3
        parts = [order, order] if same_rows else np.array_split(order, 2)
        tables = (training_table.take(parts[0]), training_table.take(parts[1]))
        booster = xgb.train(params, tables[0].matrix(), rounds)
        later_params = dict(params)
        for name in rng.choice(["eta", "lambda", "alpha", "max_depth"], 2, replace=False):
            later_params[name] = {"eta": 0.2, "lambda": 3.0, "alpha": 1.0, "max_depth": 2}[name]
        if rng.random() < 0.2 and params["objective"] not in CLASSES:
            later_params["base_score"] = pick(rng, 0.5, 0.2, 0.75)
        settings.append(_effective_settings(later_params))
        n_before = _count_trees(booster)
        booster = xgb.train(later_params, tables[1].matrix(), 2, xgb_model=booster)
        grown_by = [0] * n_before + [1] * (_count_trees(booster) - n_before)
        if same_rows:
            tables, grown_by = (tables[0],), [0] * len(grown_by)
    elif how in ("refreshed", "pruned"):
        updater = "refresh" if how == "refreshed" else "prune"
        update = {"process_type": "update", "updater": updater, "refresh_leaf": pick(rng, 0, 1, 1)}
        update_params = {k: v for k, v in params.items() if k not in ("tree_method", "subsample")}
        if rng.random() < 0.5 and how == "refreshed":
            update_params["lambda"] = 3.0
            settings.append(_effective_settings(update_params))
        if how == "refreshed":
            tables = (
                training_table,
                training_table.take(
                    rng.permutation(len(training_table.y))[: 3 * len(training_table.y) // 4]
                ),
            )
            grown_by = [1] * len(grown_by)
        booster = xgb.train(update_params | update, tables[-1].matrix(), rounds, xgb_model=booster)
    elif how == "sliced" and rounds > 2:
        first_round, step = pick(rng, (0, 2), (0, 1), (1, 1), (0, 3))
        booster = booster[first_round : rounds - 1 : step]
        grown_by = grown_by[: _count_trees(booster)]
    assert len(grown_by) == _count_trees(booster), (how, per_round)
    booster.save_model(path)
    sampled = params["subsample"] < 1 and how != "refreshed"
    sampled = sampled or params.get("sampling_method") == "gradient_based"
    return ModelFile(path, tables, tuple(grown_by), params, how, sampled, tuple(settings))


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


def train_with_sklearn_interface(
    rng: np.random.Generator, training_table: TrainingTable, params: dict[str, Any], path: Path
) -> ModelFile:
    """Train with XGBoost's scikit-learn interface, which predicts with its best iteration."""
    names = {"eta": "learning_rate", "lambda": "reg_lambda", "alpha": "reg_alpha"}
    dropped = ("nthread", "seed", "verbosity", "base_score")
    sklearn_params = {names.get(k, k): v for k, v in params.items() if k not in dropped}
    estimator_class = (
        xgb.XGBRegressor if params["objective"] == "reg:squarederror" else xgb.XGBClassifier
    )
    model = estimator_class(
        n_estimators=8,
        early_stopping_rounds=2,
        n_jobs=1,
        enable_categorical=True,
        feature_types=list(training_table.kinds),
        **sklearn_params,
    )
    validation_rows = rng.permutation(len(training_table.y))[: len(training_table.y) // 2]
    model.fit(
        training_table.X,
        training_table.y,
        eval_set=[(training_table.X[validation_rows], training_table.y[validation_rows])],
        verbose=False,
    )
    booster, regression = model.get_booster(), estimator_class is xgb.XGBRegressor
    # `save_model` of the interface writes this attribute, but XGBoost 3.0 fails with a new
    # scikit-learn.
    attributes = {"_estimator_type": "regressor" if regression else "classifier"}
    booster.set_attr(scikit_learn=json.dumps(attributes))
    booster.save_model(path)
    expected = (
        model.predict(training_table.X)
        if regression
        else model.predict_proba(training_table.X)[:, 1]
    )
    return ModelFile(
        path,
        (replace(training_table, margin=None),),
        (0,) * _count_trees(booster),
        params,
        "served",
        params["subsample"] < 1,
        (_effective_settings(params),),
        expected=expected,
    )


def _effective_settings(params: dict[str, Any]) -> tuple[float, float]:
    return params["eta"] / params["num_parallel_tree"], params["lambda"]


def _count_trees(booster: xgb.Booster) -> int:
    return len(booster.get_dump())


def train_bagging(
    rng, training_table: TrainingTable, params: dict[str, Any], rounds: int, path: Path
) -> ModelFile:
    """Train as the servers of Flower and NVFlare do: in each round every client grows one round
    of trees.
    """
    clients = int(rng.integers(2, 5))
    parts = np.array_split(rng.permutation(len(training_table.y)), clients)
    if rng.random() < 0.5:
        parts = [part[: max(len(part) // (k + 1), 2)] for k, part in enumerate(parts)]
    tables = tuple(training_table.take(part) for part in parts)
    model, grown_by, starts = None, [], {}
    for round_number in range(rounds):
        updates = []
        for client in rng.permutation(clients).tolist():
            if model is None:
                booster = xgb.train(params, tables[client].matrix(), 1)
            else:
                booster = xgb.Booster(params)
                booster.load_model(bytearray(json.dumps(model).encode()))
                n_rounds = booster.num_boosted_rounds()
                booster.update(tables[client].matrix(), n_rounds)
                booster = booster[n_rounds : n_rounds + 1]
            updates.append((client, json.loads(booster.save_raw("json"))))
        for client, update in updates:
            trees = update["learner"]["gradient_booster"]["model"]["trees"]
            for _ in trees:
                if round_number == 0:
                    starts[len(grown_by)] = _base_score(update)
                grown_by.append(client)
            model = _append_trees(model, update)
    path.write_text(json.dumps(model))
    return ModelFile(
        path,
        tables,
        tuple(grown_by),
        params,
        "bagging",
        params["subsample"] < 1,
        (_effective_settings(params),),
        starts,
    )


def _base_score(model: dict[str, Any]) -> float:
    score = json.loads(model["learner"]["learner_model_param"]["base_score"])
    return float(np.ravel(score)[0])


def _append_trees(model: dict[str, Any] | None, update: dict[str, Any]) -> dict[str, Any]:
    if model is None:
        return update
    model_part = model["learner"]["gradient_booster"]["model"]
    trees_per_round = len(update["learner"]["gradient_booster"]["model"]["trees"])
    for tree in update["learner"]["gradient_booster"]["model"]["trees"]:
        tree["id"] = len(model_part["trees"])
        model_part["trees"].append(tree)
        model_part["tree_info"].append(0)
    model_part["gbtree_model_param"]["num_trees"] = str(len(model_part["trees"]))
    model_part["iteration_indptr"] = list(range(0, len(model_part["trees"]) + 1, trees_per_round))
    return model


def train_lightgbm(rng: np.random.Generator, folder: Path) -> ModelFile | str:
    objective = pick(rng, "binary", "binary", "regression", "multiclass", "poisson")
    classes = int(rng.integers(3, 5))
    named = {
        "binary": SUPPORTED_OBJECTIVES[0],
        "multiclass": CLASSES[0],
        "poisson": "count:poisson",
    }
    training_table = draw_table(rng, named.get(objective, "reg:squarederror"), classes)
    training_table = replace(training_table, kinds=("float",) * training_table.X.shape[1])
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
        params["monotone_constraints"] = [pick(rng, -1, 0, 1) for _ in training_table.X[0]]
    path = folder / "m.txt"

    def data(part: TrainingTable) -> lgb.Dataset:
        weight = part.weight if part.weighted else None
        return lgb.Dataset(part.X, part.y, weight=weight, params={"verbose": -1})

    try:
        booster = lgb.train(params, data(training_table), int(rng.integers(1, 5)))
        kind = pick(rng, "central", "central", "refit")
        can_refit = params["boosting"] == "gbdt" and not params["use_quantized_grad"]
        can_refit = can_refit and not params["path_smooth"]
        # LightGBM crashes on other models.
        if kind == "refit" and objective == "binary" and can_refit:
            booster = booster.refit(training_table.X, training_table.y[::-1].copy())
    except lgb.basic.LightGBMError as error:
        return str(error)
    booster.save_model(path)
    trees = booster.num_trees()
    # LightGBM counts rows without their weights.
    unweighted = replace(training_table, weight=np.ones(len(training_table.y)))
    sampled = params["boosting"] in ("goss", "rf") or (
        params["bagging_fraction"] < 1 and params["bagging_freq"] > 0
    )
    return ModelFile(path, (unweighted,), (0,) * trees, params, f"lightgbm {kind}", sampled)


def reached_leaves(model_file: ModelFile) -> list[np.ndarray]:
    """Return the leaf of every tree that each row of each table reaches, numbered by the
    library.
    """
    if model_file.path.suffix == ".txt":
        booster = lgb.Booster(model_file=str(model_file.path))
        return [
            np.asarray(booster.predict(one_table.X, pred_leaf=True)).reshape(len(one_table.y), -1)
            for one_table in model_file.tables
        ]
    booster = xgb.Booster({"nthread": 1}, model_file=str(model_file.path))
    return [
        np.asarray(booster.predict(one_table.matrix(), pred_leaf=True))
        .reshape(len(one_table.y), -1)
        .astype(int)
        for one_table in model_file.tables
    ]


def predictions_differ(model_file: ModelFile) -> list[str]:
    """Return a message if `load_model` predicts otherwise than the library."""
    try:
        forest = load_model(model_file.path)
    except DataError as error:
        return [f"read by the audit and refused by load_model: {error}"]
    X = model_file.tables[0].X
    if model_file.path.suffix == ".txt":
        expected = lgb.Booster(model_file=str(model_file.path)).predict(X)
    elif model_file.expected is not None:
        expected = model_file.expected
    else:
        booster = xgb.Booster({"nthread": 1}, model_file=str(model_file.path))
        expected = booster.predict(
            replace(model_file.tables[0], margin=None).matrix(), output_margin=True
        )
        predicted = forest.margin(X)
        expected = np.asarray(expected).reshape(predicted.shape)
        return _differences(predicted, expected)
    return _differences(forest.predict(X), np.asarray(expected))


def _differences(predicted: np.ndarray, expected: np.ndarray) -> list[str]:
    """Compare predictions with a tolerance, because the order of float32 sums changes roundings."""
    difference = np.abs(predicted - expected) / np.maximum(1.0, np.abs(expected))
    return (
        [f"predictions differ by {difference.max():g}"]
        if not difference.max(initial=0) < 1e-4
        else []
    )


WORDS = ("exactly", "at least", "for certain")
CONDITIONAL = ("If every", "In that case", "under these conditions", "Under the conditions")


def find_unconditional_claims(model_file: ModelFile, report: Audit) -> list[str]:
    """Return the sentences that claim a number without stating a condition.

    LightGBM's counts of rows per leaf need no condition, and are compared elsewhere.
    """
    sentences_found = []
    sentences = [part for line in verdict(report) for part in re.split(r"(?<=\.) ", line)]
    for sentence in sentences:
        claims = any(word in sentence for word in WORDS) and "no leaf" not in sentence.lower()
        if (
            claims
            and model_file.path.suffix != ".txt"
            and not any(condition in sentence for condition in CONDITIONAL)
        ):
            sentences_found.append(f"no condition: {sentence}")
    return sentences_found


def _find_wrong_isolated_leaves(
    model_file: ModelFile, report: Audit, reached: list[np.ndarray]
) -> list[str]:
    """Return the leaves that are reported to contain exactly one row of the table, but contain
    another number.

    Tables with weights are skipped, because the verdict states their weights as a condition.
    """
    training_table = model_file.tables[0]
    if len(model_file.tables) > 1 or (
        training_table.weighted and not (training_table.weight == 1).all()
    ):
        return []
    wrong_leaves = []
    for tree in report.trees:
        for leaf, is_isolated in zip(tree.leaf.tolist(), tree.isolated, strict=True):
            number = report.model.number_of(tree.at, leaf)
            if is_isolated and (reached[0][:, tree.index] == number).sum() != 1:
                wrong_leaves.append(f"tree {tree.index} leaf {number}: one row")
    return wrong_leaves


def find_faults(
    model_file: ModelFile, exported: dict[str, Any], reached: list[np.ndarray]
) -> list[str]:
    """Return the wrong numbers in the JSON of an audit."""
    found_faults = []
    outputs = int(model_file.params.get("num_class", 1))
    parallel = int(model_file.params.get("num_parallel_tree", 1))
    for tree in exported["trees"]:
        tree_index = tree["index"]
        training_table = model_file.tables[model_file.grown_by[tree_index]]
        reached_leaf = reached[model_file.grown_by[tree_index]][:, tree_index]
        numbers = {leaf["id"] for leaf in tree["leaves"]}
        if not set(reached_leaf.tolist()) <= numbers:
            found_faults.append(
                f"tree {tree_index}: leaves {sorted(set(reached_leaf.tolist()))} are called "
                f"{sorted(numbers)}"
            )
            continue
        if tree["output"] != tree_index // parallel % outputs and model_file.path.suffix != ".txt":
            found_faults.append(f"tree {tree_index}: output {tree['output']}")
        class_index = tree["output"] if outputs > 1 else 1
        for leaf in tree["leaves"]:
            is_inside = reached_leaf == leaf["id"]
            n = float(training_table.weight[is_inside].sum())
            n_pos = float(
                training_table.weight[is_inside & (training_table.y == class_index)].sum()
            )
            description = (
                f"tree {tree_index} leaf {leaf['id']}: {leaf}, truth {n:g} rows, {n_pos:g} positive"
            )
            rows = n, n_pos, int((is_inside & (training_table.weight > 0)).sum())
            found_faults += [
                f"{description} ({fault})"
                for fault in _wrong_numbers(leaf, *rows, model_file.sampled)
            ]
    return found_faults + _wrong_model_numbers(model_file, exported["model"])


def _find_wrong_pure_leaves(
    model_file: ModelFile, report: Audit, reached: list[np.ndarray]
) -> list[str]:
    """Return the leaves that are reported as pure, but contain rows of several labels.

    Tables with weights are skipped: rows of weight 0 do not count, and the verdict states that
    all rows have weight 1.
    """
    training_table = model_file.tables[0]
    if len(model_file.tables) > 1 or (
        training_table.weighted and not (training_table.weight == 1).all()
    ):
        return []
    is_multiclass = report.model.forest.objective.n_outputs > 1
    wrong_leaves = []
    for tree in report.trees:
        label = training_table.y == (tree.output if is_multiclass else 1)
        numbers = [report.model.number_of(tree.at, leaf) for leaf in tree.leaf.tolist()]
        for number, is_pure in zip(numbers, tree.pure, strict=True):
            if is_pure and len(np.unique(label[reached[0][:, tree.index] == number])) > 1:
                wrong_leaves.append(f"tree {tree.index} leaf {number}: pure")
    return wrong_leaves


def _wrong_numbers(
    leaf: dict[str, Any], n: float, n_pos: float, rows: int, sampled: bool
) -> list[str]:
    """Return the names of the wrong numbers of a leaf.

    Fractional weights may add up to integers in a first tree, which the verdict states. Then
    counts of later trees are close to the sum of weights, and bounds are valid for rows.
    """
    tolerance = 1e-3 if n % 1 == 0 else 0.999
    wrong_names = []
    if leaf["n"] is not None and (
        leaf["n"] > n + tolerance or (leaf["n"] < n - tolerance and not sampled)
    ):
        wrong_names.append("rows")
    if leaf["n_pos"] is not None:
        negative = None if leaf["n"] is None else leaf["n"] - leaf["n_pos"]
        too_many = leaf["n_pos"] > n_pos + tolerance or (
            negative is not None and negative > n - n_pos + tolerance
        )
        if too_many or (not sampled and leaf["n_pos"] < n_pos - tolerance):
            wrong_names.append("labels")
    if leaf["at_least"] is not None and leaf["at_least"] > max(n, rows) + tolerance:
        wrong_names.append("at least")
    if leaf["at_most"] is not None and leaf["at_most"] < n - tolerance and not sampled:
        wrong_names.append("at most")
    return wrong_names


def _wrong_model_numbers(model_file: ModelFile, exported: dict[str, Any]) -> list[str]:
    found_faults = []
    used_tables = [model_file.tables[k] for k in sorted(set(model_file.grown_by))]
    n = sum(float(one_table.weight.sum()) for one_table in used_tables)
    n_pos = sum(float(one_table.weight[one_table.y == 1].sum()) for one_table in used_tables)
    if exported["rows"] is not None:
        too_few = exported["rows"] < n - 1e-3 and exported["rows_whole"]
        if exported["rows"] > n + 1e-3 or too_few:
            found_faults.append(
                f"rows {exported['rows']}, whole {exported['rows_whole']}, of {n:g}"
            )
        if exported["positives"] is not None:
            negative = exported["rows"] - exported["positives"]
            if exported["positives"] > n_pos + 1e-3 or negative > n - n_pos + 1e-3:
                found_faults.append(f"positives {exported['positives']} of {n_pos:g}")
    if exported["sources"]["kind"] == "bagging" and exported["sources"]["clients"] > len(
        used_tables
    ):
        found_faults.append(f"{exported['sources']['clients']} clients, not {len(used_tables)}")
    if exported["settings_source"] == "inferred":
        eta, lam = exported["learning_rate"], exported["reg_lambda"]
        if not any(
            abs(eta - true_eta) <= 2e-3 * true_eta
            and abs(lam - true_lam) <= 2e-3 * max(true_lam, 1)
            for true_eta, true_lam in model_file.settings
        ):
            found_faults.append(f"eta {eta:g} and lambda {lam:g}, not {model_file.settings}")
    return found_faults


def check_model(seed: int, folder: Path) -> tuple[str, list[str], Counter[str]]:
    """Train and audit one model; return its description, its faults, and counts of events."""
    tally: Counter[str] = Counter()
    model_file = train_model(seed, folder)
    if isinstance(model_file, str):
        return f"not trained: {model_file}", [], tally
    description = f"{model_file.kind} {model_file.params}"
    try:
        model = read_model(model_file.path)
    except DataError as error:
        expected_refusal = model_file.params["objective"] not in (
            *SUPPORTED_OBJECTIVES,
            "binary",
            "regression",
            "multiclass",
        ) or (
            "multi_output_tree" in str(error)
            # XGBoost keeps the weights of pruned trees.
            or "weight_drop of shape" in str(error)
            or "sends them apart" in str(error)
            or "trees of the model do not divide" in str(error)
        )
        return f"refused: {error}", [] if expected_refusal else [f"{description}: {error}"], tally
    leaves, found_faults = reached_leaves(model_file), predictions_differ(model_file)
    rng = np.random.default_rng([seed, 1])
    for name, variant, declared in _variants(rng, model_file, model):
        try:
            report = audit(variant, declared)
        except UsageError:  # The declared settings are not those of a later training.
            continue
        exported = to_json(report)
        found_faults += [f"{name}: {fault}" for fault in find_faults(model_file, exported, leaves)]
        found_faults += [
            f"{name}: {fault}" for fault in _find_wrong_pure_leaves(model_file, report, leaves)
        ]
        found_faults += [
            f"{name}: {fault}" for fault in _find_wrong_isolated_leaves(model_file, report, leaves)
        ]
        found_faults += [
            f"{name}: {fault}" for fault in find_unconditional_claims(model_file, report)
        ]
        tally["pure"] += report.summary.pure
        if name == "unchanged":
            tally += Counter(
                models=1,
                leaves=report.summary.leaves,
                counted=report.summary.counted,
                exact=report.summary.exact,
            )
            tally[f"sources {report.sources.kind}"] += 1
            tally[model_file.params.get("booster", model_file.kind)] += 1
            tally["settings"] += report.settings is not None
        if name == "stripped" and report.summary.counted:
            found_faults.append("stripped: counted without knowing anything")
    return description, found_faults, tally


def _variants(
    rng: np.random.Generator, model_file: ModelFile, model: Any
) -> list[tuple[str, Any, Known | None]]:
    """Return the model unchanged and, for some models, with declared settings, masked, and
    without sums.
    """
    variants = [("unchanged", model, None)]
    if len(model_file.tables) == 1 and not model_file.tables[0].weighted and rng.random() < 0.3:
        variants.append(("sized", model, Known(rows=len(model_file.tables[0].y))))
    if model_file.path.suffix == ".txt":
        return variants
    if rng.random() < 0.2 and len(set(model_file.settings)) == 1:
        eta, lam = model_file.settings[0]
        variants.append(("declared", model, Known(learning_rate=eta, reg_lambda=lam)))
    if rng.random() < 0.08 and model_file.path.suffix == ".json":
        file_content = json.loads(model_file.path.read_text())
        booster = file_content["learner"]["gradient_booster"]
        # DART models have a part "gbtree".
        for tree in booster.get("gbtree", booster)["model"]["trees"]:
            tree["sum_hessian"] = [1.0] * len(tree["sum_hessian"])
        masked_path = model_file.path.with_name("masked.json")
        masked_path.write_text(json.dumps(file_content))
        variants.append(("masked", read_model(masked_path), None))
    if rng.random() < 0.1:
        variants.append(("stripped", without_statistics(model), None))
    return variants


def campaign(first: int, models: int, folder: Path) -> tuple[list[str], Counter[str]]:
    """Check the models of seeds from `first` on; return one message per faulty model, and counts
    of events.
    """
    messages, tally = [], Counter[str]()
    for seed in range(first, first + models):
        description, found_faults, counted = check_model(seed, folder)
        tally += counted
        if not counted:
            tally[description.split(":")[0]] += 1
        if found_faults:
            messages.append(f"seed {seed}: {description}\n  " + "\n  ".join(found_faults[:6]))
    return messages, tally


def parse_options(description: str | None) -> argparse.Namespace:
    """Return the options of the command line: the number of models and the first seed."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--models", type=int, default=1000)
    options.add_argument("--first", type=int, default=0, help="seed of the first model")
    options.add_argument("--seed", type=int, help="check this one alone")
    arguments = options.parse_args()
    if arguments.seed is not None:
        arguments.first, arguments.models = arguments.seed, 1
    return arguments


def main() -> None:
    arguments = parse_options(__doc__)
    with TemporaryDirectory() as folder:
        messages, tally = campaign(arguments.first, arguments.models, Path(folder))
    print("\n".join(messages))
    print(f"{len(messages)} of {arguments.models} models wrong; {dict(tally)}")
    sys.exit(bool(messages))


if __name__ == "__main__":
    main()
