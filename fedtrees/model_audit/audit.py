"""Audit a model file: list its statistics and derive how many training rows are in each leaf.

`audit` is the entry point. It computes the learning rate and the L2 penalty of the training
(`fedtrees.model_audit.training_settings`), derives the rows and labels per leaf
(`fedtrees.model_audit.leaf_counts` for XGBoost, `fedtrees.model_audit.first_trees` for files that
contain counts, `fedtrees.model_audit.leaf_value_counts` for files without statistics), and assigns
the trees to clients (`fedtrees.model_audit.tree_sources`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fedtrees.attacks.clients.masked_hessians import AGREES
from fedtrees.core.errors import UsageError
from fedtrees.model_audit.exposure import Known, Rows, Summary, TreeExposure, summary
from fedtrees.model_audit.first_trees import (
    LeafStatistics,
    recover_forest,
    recover_lightgbm,
    samples_rows,
)
from fedtrees.model_audit.leaf_counts import first_round, recover_boosted, start_of, sums_of
from fedtrees.model_audit.leaf_value_counts import count_from_values, label_share
from fedtrees.model_audit.model import ModelFile, is_logistic
from fedtrees.model_audit.readers import LIGHTGBM_STATISTICS, XGBOOST_STATISTICS, state_of
from fedtrees.model_audit.training_settings import (
    Settings,
    agreement,
    infer_settings,
    is_unshrunk,
    settings_by_tree,
)
from fedtrees.model_audit.tree_sources import Sources, find_sources
from fedtrees.trees.boosted.forest import Forest

STATISTICS = {"xgboost": XGBOOST_STATISTICS, "lightgbm": LIGHTGBM_STATISTICS}
# If the probability that all rows of a tree are by chance in leaves of one value is smaller than
# this, the tree was grown on other rows.
ALL_IN_ONE = 1e-6
ONCE = "every training row was used once, with weight 1 and an unscaled objective"
# This condition replaces `ONCE` if trees of one training were grown on different rows.
SAMPLED = "every row on which a tree was grown had weight 1 and an unscaled objective"
DROPPED = "DART: trees were dropped in training, and leaf values were rescaled afterwards"
DROPPED_HINT = (
    "It is a DART model, whose trees were dropped in training and rescaled afterwards: leaf values "
    "do not follow from the sums of their leaves. The sums in the file still describe its rows."
)
CHECKED_TREES = 50  # number of trees on which eta and lambda are verified, spread over the model


_REVEALS = {
    "sum_hessian": "how much the rows of every node weigh: their number, wherever they share one "
    "prediction",
    "base_weights": "the step of every inner node; with loss_changes it gives sum_hessian back",
    "loss_changes": "the gain of every split; with base_weights it gives sum_hessian back",
    "leaf_count": "the number of training rows in every leaf of every tree",
    "leaf_weight": "the hessian sum of every leaf; with leaf_value its labels in the first tree",
    "internal_count": "the number of training rows in every inner node",
    "internal_weight": "the hessian sum of every inner node",
    "internal_value": "the step of every inner node",
    "split_gain": "the gain of every split",
    "feature_infos": "smallest and largest training value of every column",
    "counts": "rows of each class in every node",
    "distinct": "rows in every node, each counted once",
    "base_score": "the share of class 1 in the (first) training table",
    "cats": "the names of all categories of the training table, rare ones included",
}


@dataclass(frozen=True)
class Field:
    """One kind of number in a model file.

    Attributes
    ----------
    name : str
        Name in the file, for example ``sum_hessian``.
    state : {"present", "masked", "zero", "absent"}
        A masked field contains one constant, which training never leaves.
    value : float or None
        The constant of a masked field.
    needed : bool
        Whether predictions need it.
    reveals : str
        The information about training rows that the field reveals if it is present.
    """

    name: str
    state: str
    value: float | None
    needed: bool
    reveals: str


@dataclass(frozen=True, eq=False)
class Audit:
    """All results of the audit of one model file.

    Attributes
    ----------
    model : ModelFile
        Contents of the file.
    fields : tuple of Field
        State of every kind of number in the file.
    settings : Settings or None
        Learning rate eta and regularisation lambda. None if they cannot be inferred.
    rows : Rows
        Size of the training table.
    sources : Sources
        Clients that grew the trees.
    trees : tuple of TreeExposure
        Rows and labels in the leaves of each tree.
    summary : Summary
        Numbers of leaves over all trees.
    restored : bool
        Whether masked sums of hessians were computed from other statistics.
    assumes : tuple of str
        Conditions under which the counts are correct and which the file does not show. Empty if the
        file contains the counts themselves.
    hint : str
        A sentence on the input that would allow more counts, or empty.
    """

    model: ModelFile
    fields: tuple[Field, ...]
    settings: Settings | None
    rows: Rows
    sources: Sources
    trees: tuple[TreeExposure, ...]
    summary: Summary
    restored: bool = False
    assumes: tuple[str, ...] = ()
    hint: str = ""


def audit(model: ModelFile, background: Known | None = None) -> Audit:
    """Return the information about training rows that a model file reveals.

    Parameters
    ----------
    model : ModelFile
        Result of `fedtrees.model_audit.readers.read_model`.
    background : Known, optional
        Background knowledge of the auditor, for example the size of the training table.

    Returns
    -------
    audit : Audit
        Counts are exact under the conditions in `Audit.assumes`. All remaining counts are bounds or
        unknown.

    Raises
    ------
    UsageError
        If `background` contradicts the statistics in the file.
    """
    background = background or Known()
    if not isinstance(model.forest, Forest):
        return _complete_audit(model, None, recover_forest(model), background)
    if model.library == "lightgbm":
        eta, reg_lambda = model.learning_rate, model.reg_lambda
        settings = None
        if eta is not None and reg_lambda is not None:
            settings = Settings(eta, reg_lambda, "file")
        return _complete_audit(model, settings, recover_lightgbm(model), background)
    if model.dropout:
        every_tree = enumerate(model.boosted.trees)
        outputs = model.boosted.objective.n_outputs
        trees = [TreeExposure.of((t, t % outputs), tree.leaves, DROPPED) for t, tree in every_tree]
        return replace(_complete_audit(model, None, trees, background), hint=DROPPED_HINT)
    settings, each = _settings_of_trees(model, background)
    every = zip(model.boosted.trees, model.statistics, each, strict=True)
    sums = [sums_of(tree, statistics, s) for tree, statistics, s in every]
    trees = recover_boosted(model, sums, background)
    if all(s is None for s in sums):
        values = count_from_values(model, trees, settings, background)
        result = _complete_audit(model, values.settings, values.trees, background, sums)
        rows = result.rows if result.sources.kind == "bagging" else values.rows or result.rows
        return replace(result, rows=rows, assumes=values.assumes, hint=values.hint)
    rates = [None if s is None else s.learning_rate for s in each]
    result = _complete_audit(model, settings, trees, background, sums, rates)
    return replace(result, assumes=_conditions(result))


def _conditions(result: Audit) -> tuple[str, ...]:
    """Return the conditions under which sums of hessians are numbers of training rows.

    A file contains sums over the rows that each tree saw, weighted and scaled. It cannot show that
    these rows are the training table: rows of weight 2, or a custom objective with doubled
    gradients, leave the sums of twice as many rows. It can show the contrary, if trees of one
    training add up to different numbers of rows.
    """
    if not result.summary.counted and not any((t.at_least > 0).any() for t in result.trees):
        return ()
    totals = {t.rows for t in result.trees} - {None}
    sampled = result.sources.kind == "one" and len(totals) > 1
    return (SAMPLED if sampled else ONCE,)


def _settings_of_trees(
    model: ModelFile, background: Known
) -> tuple[Settings | None, list[Settings | None]]:
    """Return the eta and lambda that all trees share, and those of every tree.

    Some federations train with a different learning rate for each client. The first element is then
    the setting of the first tree.
    """
    settings, trees = _common_settings(model, background), model.boosted.trees
    if settings is not None or background.learning_rate is not None:
        return settings, [settings] * len(trees)
    each = settings_by_tree(trees, model.statistics)
    return each[0] if each else None, each


def _common_settings(model: ModelFile, background: Known) -> Settings | None:
    """Return the eta and lambda of all trees of an XGBoost model, declared or inferred.

    The result is None if no values explain all trees. Raises `UsageError` if the values that the
    auditor declares contradict the statistics.
    """
    trees, statistics = model.boosted.trees, model.statistics
    if background.settings is not None:
        declared = Settings(*background.settings, "given")
        worst = agreement(declared, trees[:CHECKED_TREES], statistics[:CHECKED_TREES])
        if worst > AGREES:
            raise UsageError(
                f"learning rate {background.learning_rate:g} and lambda {background.reg_lambda:g} "
                f"contradict the statistics in {model.path.name}; leave them out and they are "
                "inferred"
            )
        return replace(declared, unshrunk=is_unshrunk(trees, statistics, *background.settings))
    inferred = infer_settings(trees, statistics)
    if inferred is None:
        return None
    chosen = np.unique(np.linspace(0, len(trees) - 1, CHECKED_TREES).astype(int)).tolist()
    worst = agreement(inferred, [trees[k] for k in chosen], [statistics[k] for k in chosen])
    return replace(inferred, worst=max(worst, inferred.worst)) if worst <= AGREES else None


def _complete_audit(
    model: ModelFile,
    settings: Settings | None,
    trees: Sequence[TreeExposure],
    background: Known,
    sums: Sequence[LeafStatistics | None] = (),
    rates: Sequence[float | None] = (),
) -> Audit:
    """Add the sources, the size of the table and the summary to the trees, and return the audit."""
    fields, sources = fields_of(model), _sources(model, trees, sums, rates)
    table = _shown_rows(model, trees, background)
    named = tuple(
        replace(
            t,
            source=s,
            index=model.place_of(t.at),
            saw_all_rows=t.rows is not None and t.rows == table,
        )
        for t, s in zip(trees, sources.names, strict=True)
    )
    listed = tuple(t for t in named if t.index >= 0)  # without trees that are not in the file
    hidden = any(f.name == "sum_hessian" and f.state in ("masked", "zero") for f in fields)
    return Audit(
        model=model,
        fields=fields,
        settings=settings,
        rows=_rows(model, named, sources, background),
        sources=sources,
        trees=listed,
        summary=summary(listed),
        restored=hidden and any(s is not None for s in sums),
    )


def _shown_rows(model: ModelFile, trees: Sequence[TreeExposure], background: Known) -> int | None:
    """Return the number of rows of the training table, None if it is not known.

    It is either declared, or the largest tree of a LightGBM model whose parameters exclude
    sampling. A tree of fewer rows was grown on a sample, or on the rows of one client or of one
    training.
    """
    if background.rows is not None or model.library != "lightgbm" or samples_rows(model):
        return background.rows
    return max((t.rows for t in trees if t.rows is not None), default=None)


def _sources(
    model: ModelFile,
    trees: Sequence[TreeExposure],
    sums: Sequence[LeafStatistics | None],
    rates: Sequence[float | None],
) -> Sources:
    """Assign the trees to clients, in XGBoost's models on the log loss only."""
    if not sums or not is_logistic(model):
        unnamed = (None,) * len(trees)
        return Sources(
            "one", 1, unnamed, "sources are distinguished only in models of XGBoost with log loss"
        )
    h = np.array([np.nan if s is None else s.h.sum() for s in sums])
    # The trees that one training grows in parallel (num_parallel_tree) have the same source.
    each = first_round(model)
    first_of_round = trees[::each]
    starts = [t for t in first_of_round if t.base_score is not None]
    apart = all(_has_other_rows(model, *pair) for pair in pairwise(starts))
    sources = find_sources([t.base_score for t in first_of_round], h[::each], rates[::each], apart)
    names = np.repeat(np.array(sources.names, dtype=object), each)[: len(trees)]
    return replace(sources, names=tuple(names.tolist()))


def _has_other_rows(model: ModelFile, before: TreeExposure, tree: TreeExposure) -> bool:
    """Return whether a tree that starts from one base score has other rows than the one before.

    Every row of `tree` entered it with the same prediction. If its rows came from the table of
    `before`, all of them would have to be in leaves of one value there. The function returns True
    if that has a probability below `ALL_IN_ONE`.
    """
    grown = model.boosted.trees[before.at]
    _, value = np.unique(grown.value[grown.leaves], return_inverse=True)
    if before.rows is None or not before.rows or tree.rows is None:
        return False
    share = np.bincount(value, weights=before.n).max() / before.rows
    return bool(share**tree.rows < ALL_IN_ONE)


def _rows(
    model: ModelFile, trees: Sequence[TreeExposure], sources: Sources, background: Known
) -> Rows:
    """Return the size of the training table, as first trees count it or the auditor declares it."""
    share = None
    # With scale_pos_weight, the base score is the share of weighted rows.
    if is_logistic(model) and model.library == "xgboost" and model.positive_weight == 1:
        share = label_share(start_of(model.boosted, 0))
    each = first_round(model) if isinstance(model.forest, Forest) else 1
    first = [t for t in trees[::each] if t.base_score is not None and t.rows is not None]
    counted = first or [t for t in trees[:1] if t.rows is not None]
    classes = model.forest.objective.n_outputs if isinstance(model.forest, Forest) else 1
    if sources.kind != "bagging" or classes > 1:
        counted = counted[:1]
    if not counted:
        how = "declared" if background.rows else "does not follow"
        return Rows(background.rows, None, share, how, declared=background.rows is not None)
    n_pos = None
    # In a forest of bootstrap samples, the positives of one tree are not those of the table.
    drawn = len({int(t.n_pos.sum()) for t in trees}) > 1 and not isinstance(model.forest, Forest)
    if classes == 1 and not drawn and all(t.exact.all() for t in counted):
        n_pos = sum(int(t.n_pos.sum()) for t in counted)
    same = len({t.rows for t in trees} - {None}) <= 1
    complete, how = sources.kind == "one" and same, _how(sources, same)
    return Rows(sum(t.rows or 0 for t in counted), n_pos, share, how, complete)


def _how(sources: Sources, same: bool) -> str:
    """Return how the first trees determine the number of rows, as a sentence.

    `same` is True if all trees whose rows are counted have the same number of rows.
    """
    if sources.kind == "bagging":
        return (
            f"sum over the leaves of the first trees of {sources.clients} clients, if no two "
            "clients have the same row; rows of clients that joined later are not counted"
        )
    if sources.kind == "turns":
        return "sum over the leaves of the first client's first tree, without rows of other clients"
    if same:
        return (
            "sum over the leaves of the first tree: all rows of the table, unless this tree was "
            "trained on a sample or on the rows of one client, or rows were added later"
        )
    return "sum over the leaves of the first tree; other trees were grown on other rows"


def fields_of(model: ModelFile) -> tuple[Field, ...]:
    """Return the state of every kind of number in the file, except splits and leaf values.

    Parameters
    ----------
    model : ModelFile
        Contents of the file.

    Returns
    -------
    tuple of Field
        Statistics of the library's format, including those that this file lacks.
    """
    out = []
    for name in STATISTICS.get(model.library, [*model.raw] or ["counts"]):
        state, constant = state_of(model.raw[name]) if name in model.raw else ("absent", None)
        if name == "base_weights" and state == "present" and _leaves_only(model):
            # Only inner nodes reveal something. The weights of leaves repeat the leaf values.
            state, constant = "zero", None
        # A forest of random tests predicts from its counts, so that they are needed.
        out.append(Field(name, state, constant, model.released is not None, _REVEALS[name]))
    if model.library == "lightgbm":
        state = "present" if model.ranges else "absent"
        out.append(Field("feature_infos", state, None, False, _REVEALS["feature_infos"]))
    if model.library == "xgboost":
        out.append(Field("base_score", "present", None, True, _REVEALS["base_score"]))
    if model.categories:  # needed to code the columns of a data frame
        name = {"xgboost": "cats", "lightgbm": "pandas_categorical"}.get(model.library, "columns")
        out.append(Field(name, "present", None, True, _REVEALS["cats"]))
    return tuple(out)


def _leaves_only(model: ModelFile) -> bool:
    """Return whether the weights of all inner nodes are 0, so that only those of leaves remain."""
    weights = model.raw["base_weights"]
    inner = [w[t.feature >= 0] for w, t in zip(weights, model.boosted.trees, strict=True) if len(w)]
    return any(len(w) for w in inner) and all((w == 0).all() for w in inner)
