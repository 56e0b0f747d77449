"""Audit a model file: what it carries, what follows about its training rows, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from fedtrees.audit.client_values import first_tree_of_values
from fedtrees.audit.exposure import UNKNOWN, Summary, TreeExposure, summary
from fedtrees.audit.fields import Field, fields_of
from fedtrees.audit.leaf_values import (
    CHANCE,
    CHOICES,
    MOST_ROWS,
    certain_counts,
    explanation,
    may_be_mean,
    pairs_of,
    table_sizes,
)
from fedtrees.audit.learning_rates import settings_by_tree
from fedtrees.audit.model import ModelFile, is_logistic
from fedtrees.audit.newton import AGREES, Settings, agreement, infer_settings
from fedtrees.audit.recover import (
    Sums,
    recover_boosted,
    recover_forest,
    recover_lightgbm,
    start_of,
    sums_of,
)
from fedtrees.audit.sources import MOST_CLIENTS, Sources, find_sources
from fedtrees.core.errors import UsageError
from fedtrees.trees.forest import Forest

CHECKED_TREES = 50  # whose equations are compared with eta and lambda, spread over the model


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the auditor knows beside the file.

    Attributes
    ----------
    rows : int or None
        Rows of the training table, of all clients together.
    learning_rate, reg_lambda : float or None
        What the model was trained with.
    """

    rows: int | None = None
    learning_rate: float | None = None
    reg_lambda: float | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise UsageError(f"rows {self.rows} must be at least 1")
        if self.learning_rate is not None and not 0 < self.learning_rate < np.inf:
            raise UsageError(f"learning rate {self.learning_rate} must be a positive number")
        if self.reg_lambda is not None and not 0 <= self.reg_lambda < np.inf:
            raise UsageError(f"lambda {self.reg_lambda} must be 0 or a positive number")


@dataclass(frozen=True)
class Rows:
    """Size of the training table.

    Attributes
    ----------
    n : int or None
        Rows, all clients together, where that follows.
    n_pos : int or None
        Rows of class 1 among them.
    share : Fraction or None
        N1/N in lowest terms as the base score tells it.
    how : str
    whole : bool
        False where `n` are the rows of some clients only.
    """

    n: int | None
    n_pos: int | None
    share: Fraction | None
    how: str
    whole: bool = True

    @property
    def total(self) -> int | None:
        """Rows of the whole table, None where that does not follow."""
        return self.n if self.whole else None


@dataclass(frozen=True, eq=False)
class Audit:
    """Everything the audit found.

    Attributes
    ----------
    model : ModelFile
    fields : tuple of Field
    settings : Settings or None
        eta and lambda; None where they do not follow.
    rows : Rows
    sources : Sources
    trees : tuple of TreeExposure
    summary : Summary
    restored : bool
        Masked sums of hessians were solved for.
    """

    model: ModelFile
    fields: tuple[Field, ...]
    settings: Settings | None
    rows: Rows
    sources: Sources
    trees: tuple[TreeExposure, ...]
    summary: Summary
    restored: bool = False


def audit(model: ModelFile, known: Known | None = None) -> Audit:
    """Say what a model file gives away about the rows it was trained on.

    Parameters
    ----------
    model : ModelFile
    known : Known, optional
        What the auditor knows beside the file. Nothing that is not certain is counted as known.
    """
    known = known or Known()
    fields = fields_of(model)
    if not isinstance(model.forest, Forest):
        return _finished(model, fields, None, recover_forest(model), None, known)
    if model.library == "lightgbm":
        settings = _stated(model)
        return _finished(model, fields, settings, recover_lightgbm(model), None, known)
    settings, each = _settings_of_trees(model, known)
    every = zip(model.forest.trees, model.statistics, each, strict=True)
    sums = [sums_of(tree, statistics, s) for tree, statistics, s in every]
    trees = recover_boosted(model, sums, known.rows)
    if all(s is None for s in sums):
        trees, settings, rows = _from_values(model, trees, settings, known)
        clients = _other_clients(model, trees, settings)
        found = _finished(model, fields, settings, clients, sums, known)
        return found if found.sources.kind == "bagging" else replace(found, rows=rows)
    rates = [s and s.learning_rate for s in each]
    return _finished(model, fields, settings, trees, sums, known, rates)


def _settings_of_trees(
    model: ModelFile, known: Known
) -> tuple[Settings | None, list[Settings | None]]:
    """Return eta and lambda of the first tree and of every tree; mostly they are the same."""
    assert isinstance(model.forest, Forest)
    settings, trees = settings_of(model, known), model.forest.trees
    if settings is not None or known.learning_rate is not None:
        return settings, [settings] * len(trees)
    each = settings_by_tree(trees, model.statistics)
    return each[0] if each else None, each


def settings_of(model: ModelFile, known: Known) -> Settings | None:
    """Return eta and lambda: given, or inferred from the statistics of an XGBoost model."""
    assert isinstance(model.forest, Forest)
    trees, statistics = model.forest.trees, model.statistics
    if known.learning_rate is not None and known.reg_lambda is not None:
        given = Settings(known.learning_rate, known.reg_lambda, "given")
        worst = agreement(given, trees[:CHECKED_TREES], statistics[:CHECKED_TREES])
        if worst > AGREES:
            raise UsageError(
                f"learning rate {known.learning_rate:g} and lambda {known.reg_lambda:g} contradict "
                f"the statistics in {model.path.name}; leave them out and they are inferred"
            )
        return given
    found = infer_settings(trees, statistics)
    if found is None:
        return None
    chosen = np.unique(np.linspace(0, len(trees) - 1, CHECKED_TREES).astype(int)).tolist()
    worst = agreement(found, [trees[k] for k in chosen], [statistics[k] for k in chosen])
    return replace(found, worst=max(worst, found.worst)) if worst <= AGREES else None


def _stated(model: ModelFile) -> Settings | None:
    if model.learning_rate is None or model.reg_lambda is None:
        return None
    return Settings(model.learning_rate, model.reg_lambda, "file")


def _finished(
    model: ModelFile,
    fields: tuple[Field, ...],
    settings: Settings | None,
    trees: Sequence[TreeExposure],
    sums: Sequence[Sums | None] | None,
    known: Known,
    rates: Sequence[float | None] = (),
) -> Audit:
    sources = _sources(model, trees, sums, rates)
    named = tuple(t.of(s) for t, s in zip(trees, sources.names, strict=True))
    hidden = any(f.name == "sum_hessian" and f.state in ("masked", "zero") for f in fields)
    return Audit(
        model=model,
        fields=fields,
        settings=settings,
        rows=_rows(model, named, sources, known),
        sources=sources,
        trees=named,
        summary=summary(named),
        restored=hidden and sums is not None and any(s is not None for s in sums),
    )


def _sources(
    model: ModelFile,
    trees: Sequence[TreeExposure],
    sums: Sequence[Sums | None] | None,
    rates: Sequence[float | None],
) -> Sources:
    if sums is None or not is_logistic(model):
        names = (None,) * len(trees)
        return Sources("one", 1, names, "sources are told apart in XGBoost's models on log loss")
    h = np.array([np.nan if s is None else s.h.sum() for s in sums])
    return find_sources([t.base_score for t in trees], h, rates)


def _rows(model: ModelFile, trees: Sequence[TreeExposure], sources: Sources, known: Known) -> Rows:
    share = None
    if is_logistic(model) and model.library == "xgboost":
        assert isinstance(model.forest, Forest)
        sizes = table_sizes(start_of(model.forest, 0))
        share = None if sizes is None else sizes[0]
    first = [t for t in trees if t.base_score is not None and (t.n != UNKNOWN).all()]
    if len(first) > 1 and sources.kind != "bagging":
        first = first[:1]
    counted = first or [t for t in trees[:1] if (t.n != UNKNOWN).all()]
    if not counted:
        how = "declared" if known.rows else "does not follow"
        return Rows(known.rows, None, share, how)
    n = sum(int(t.n.sum()) for t in counted)
    same = _of_one_size(trees)
    labels = all((t.n_pos != UNKNOWN).all() for t in counted)
    several = model.forest.trees and _classes(model) > 2
    n_pos = sum(int(t.n_pos.sum()) for t in counted) if labels and not several else None
    if several:
        n = int(counted[0].n.sum())
    if sources.kind == "bagging":
        how = (
            f"the leaves of {sources.clients} clients' first trees add up to it; of a client that "
            "joined later no first tree is there"
        )
    elif sources.kind == "turns":
        how = "the first client's: the leaves of its first tree add up to it"
    elif same:
        how = (
            "the leaves of the first tree add up to it: all of the table, unless each tree saw a "
            "sample or one client's rows"
        )
    else:
        how = "the leaves of the first tree add up to it; other trees were grown on other rows"
    return Rows(n, n_pos, share, how, whole=sources.kind == "one" and same)


def _of_one_size(trees: Sequence[TreeExposure]) -> bool:
    """Tell whether all trees that are counted were grown on equally many rows."""
    return len({int(t.n.sum()) for t in trees if (t.n != UNKNOWN).all()}) <= 1


def _classes(model: ModelFile) -> int:
    return model.forest.objective.n_outputs if isinstance(model.forest, Forest) else 2


def _from_values(
    model: ModelFile, trees: list[TreeExposure], settings: Settings | None, known: Known
) -> tuple[list[TreeExposure], Settings | None, Rows]:
    """Recover what leaf values alone tell of the first tree, where the loss is that of two classes.

    The table's size is known, or is the only one near enough to be told from chance.
    """
    assert isinstance(model.forest, Forest)
    share = table_sizes(start_of(model.forest, 0)) if is_logistic(model) else None
    unknown = Rows(known.rows, None, share[0] if share else None,
                   "declared" if known.rows else "does not follow")  # fmt: skip
    if not is_logistic(model) or model.positive_weight != 1:
        return trees, settings, unknown
    tree = model.forest.trees[0]
    values, ph = tree.value[tree.leaves], _row_gradient(model.forest)
    given = known.learning_rate, known.reg_lambda
    choices = ((given[0], given[1]),) if given[0] and given[1] is not None else CHOICES
    sizes = [known.rows] if known.rows else []
    if share and may_be_mean(share[0]) and not known.rows:
        sizes = share[1]
    # of a known size nothing is left to chance but eta and lambda
    chance = np.inf if known.rows and len(choices) == 1 else CHANCE
    found = explanation(values, ph, [n for n in sizes if n <= MOST_ROWS], choices, chance)
    if found is None or (known.rows is None and found[0][1] == 0):  # of any multiple, then
        return trees, settings, unknown
    chosen, rows = found
    counts = certain_counts(pairs_of(values, ph, chosen, rows), rows)
    how = f"the value of the leaf, if eta {chosen[0]:g}, lambda {chosen[1]:g}, N {rows}"
    first = replace(trees[0], n=counts.n, n_pos=counts.n1, at_least=counts.n,
                    at_most=counts.n, how=how, base_score=ph[0])  # fmt: skip
    explains = (
        "the smallest table that explains the base score and every leaf value; it may be the first "
        "of several clients'"
    )
    n_pos = int(counts.n1.sum()) if (counts.n1 != UNKNOWN).all() else None
    how = "declared" if known.rows else explains
    size = Rows(rows, n_pos, unknown.share, how, whole=known.rows is not None)
    source = "given" if len(choices) == 1 else "inferred"
    return [first, *trees[1:]], Settings(*chosen, source), size


def _other_clients(
    model: ModelFile, trees: Sequence[TreeExposure], settings: Settings | None
) -> Sequence[TreeExposure]:
    """Return the trees with the counts of those after the first that start a client of their own.

    A first tree without counts is none: its share of positives is in the file, or there is no mean.
    """
    first = trees[0]
    if settings is None or first.base_score is None or (first.n == UNKNOWN).any():
        return trees
    assert isinstance(model.forest, Forest)
    out = [first]
    for tree, exposure in zip(model.forest.trees[1:MOST_CLIENTS], trees[1:], strict=False):
        eta, reg_lambda = settings.learning_rate, settings.reg_lambda
        start = first_tree_of_values(tree, eta, reg_lambda, first.base_score)
        if start is None:
            break
        n, how = start.n, f"the value of the leaf, if eta {eta:g}, lambda {reg_lambda:g}"
        out.append(replace(exposure, n=n, n_pos=start.n1, at_least=n, at_most=n,
                           base_score=start.p, how=how))  # fmt: skip
    return [*out, *trees[len(out) :]]


def _row_gradient(forest: Forest) -> tuple[float, float]:
    """Return gradient (of label 0) and hessian of every row before the first tree."""
    start = forest.base_margin[:, None]
    g, h = forest.objective.gradients(start, np.zeros(1))[0, 0]
    return float(g), float(h)
