"""Choose the learner that trains the reference models for a view.

LiRA and RMIA are meaningless if the reference models come from another learner than the model under
attack, and no error would show it. `trainer_of` therefore returns the learner of the protocol or
None. If it returns None, the attack omits both tests.

In protocols in which clients train on local data, the candidates of a reference model are assigned
at random to as many clients as the federation has, because the adversary does not know which client
has which row. The numbers of rows of the clients are used if the released model contains them
(`other_client_sizes`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.clients.client_sizes import row_counts
from fedtrees.attacks.clients.client_trees import blocks_of
from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.membership.leaf_sums import client_gradients, fixed_point_bits
from fedtrees.attacks.membership.references import (
    Trainer,
    answer_logits,
    boosted_trainer,
    class_logits,
    deal_rows,
    forest_logits,
    leaf_count_trainer,
    local_forest_trainer,
    random_forest_trainer,
    train_each,
)
from fedtrees.attacks.observations.reading import leaf_noise, releases_leaves
from fedtrees.attacks.observations.replay import (
    cuts_of,
    hides,
    params_of,
    sent_back,
    trees_grown_locally,
)
from fedtrees.core.channel import Change, Channel, Mechanism, Share, chained
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.messages.additive import AdditiveModel
from fedtrees.messages.forests import PrivateForest
from fedtrees.messages.horizontal import Histogram
from fedtrees.messages.vertical import OpenedBinSums
from fedtrees.privacy.mechanisms import permute_and_flip
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import BoostingState, OwnerRows, add_trees
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.histogram import to_fixed
from fedtrees.trees.boosted.losses import (
    Objective,
    SquaredError,
    estimated_score,
    objective_of,
    start_margin,
)
from fedtrees.trees.boosted.noisy_leaves import noisy_leaf_values
from fedtrees.trees.cut_points import xgboost_cuts
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.forest.random_decision import RandomDecisionForest
from fedtrees.trees.forest.random_forest import RandomForest


def shared_model(view: View) -> Forest | None:
    """Return the ensemble of the clients' trees, None if the view does not show them."""
    shared = blocks_of(view)
    if shared is None:
        return None
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    if shared.score is not None:
        trees = tuple(t for block in shared.blocks for t in block.trees)
        return Forest(trees, start_margin(objective, shared.score), objective)
    scores = [s for block in shared.blocks if (s := block.score) is not None]
    return _mean([b.trees for b in shared.blocks], scores, objective) if scores else None


def _sizes_of_shared_trees(view: View) -> NDArray[np.float64]:
    """Return the relative numbers of rows of the clients that the adversary does not control.

    All are 1 if the shared trees do not reveal them.
    """
    other_clients = [
        name for name, role in view.roles.items()
        if role == "client" and name not in view.principals
    ]  # fmt: skip
    victims = observe_clients(view, max_level="statistics")
    sizes = row_counts(view, [victim.evidence for victim in victims])
    if sizes is None or len(sizes) != len(other_clients) or not all(sizes):
        return np.ones(len(other_clients))
    owners = [victim.owner for victim in victims]
    if set(owners) == set(other_clients):
        sizes = [sizes[owners.index(name)] for name in other_clients]
    return np.array(sizes, dtype=np.float64)


def client_trainer(view: View, objective: Objective) -> Trainer:
    """Return the learner that simulates a federation whose clients share their local trees.

    The rows are distributed by `deal_rows`, in proportion to the numbers of rows that the trees of
    the clients reveal. The clients then grow trees in the order that the parameters of the protocol
    declare.
    """
    sizes = _sizes_of_shared_trees(view)

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], NDArray[np.float64]]:
        rng, rows = np.random.default_rng(0), every.take(np.arange(n))

        def train(used: NDArray[np.bool_]) -> NDArray[np.float64]:
            parts = deal_rows(every, n, used, sizes, rng)
            return forest_logits(_train_federation(view, parts, objective), rows)

        return train_each(train)

    return trainer


@dataclass(eq=False)
class _Client:
    """A client of a reference federation: its rows, their margins so far, and its growth."""

    rows: Table
    growth: BoostingState
    score: NDArray[np.float32]
    margin: NDArray[np.float32]
    trees: list[Tree] = field(default_factory=list)

    @staticmethod
    def of(view: View, rows: Table, objective: Objective) -> _Client:
        """Prepare the local training of a client.

        Parameters
        ----------
        view : View
            Its public parameters describe the training.
        rows : Table
            Local data of the client.
        objective : Objective
            Loss of the boosting.
        """
        params, base_score = params_of(view), view.parameters["base_score"]
        score = np.full(objective.n_outputs, base_score or 0, dtype=np.float32)
        if base_score is None:
            sums = objective.target_sums(rows.y, None)
            score = estimated_score(objective, sums, view.parameters["intercept"])
        cuts = xgboost_cuts(rows.X, params.max_bin)
        owned = OwnerRows(bin_rows(rows.X, cuts), rows.y, None)
        growth = BoostingState(owned, cuts, params, objective, Streams(0))
        start = start_margin(objective, score)
        return _Client(rows, growth, score, np.repeat(start[:, None], len(rows), axis=1))

    def grow(self, at: int, each: int) -> list[Tree]:
        """Return the client's trees of the next rounds, grown on top of the current model."""
        margin = self.margin.copy()
        return [t for i in range(each) for t in self.growth.round(at * each + i, margin)]


def _train_federation(view: View, parts: Sequence[Table], objective: Objective) -> Forest:
    """Return the model of a federation whose clients have these rows."""
    p, clients = view.parameters, [_Client.of(view, part, objective) for part in parts]
    if "local_trees" not in p:
        each = [c.grow(0, p["trees"]) for c in clients]
        return _mean(each, [c.score for c in clients], objective)
    start, trees = start_margin(objective, clients[0].score), list[Tree]()
    for at in range(p["trees"]):
        turn = clients if "arrival" in p else [clients[at % len(clients)]]
        grown = [t for c in turn for t in c.grow(at, p["local_trees"])]
        for c in clients:
            if not trees:  # the base score of the first client becomes that of the model
                c.margin = np.repeat(start[:, None], len(c.rows), axis=1)
            add_trees(grown, c.rows.X, c.margin, len(trees))
        trees += grown
    return Forest(tuple(trees), start, objective)


def _mean(models: Sequence[Sequence[Tree]], scores: Sequence[Any], objective: Objective) -> Forest:
    """Return one model whose margin is the mean of the margins of several models."""
    share = np.float32(1 / len(models))
    scaled = tuple(replace(t, value=t.value * share) for trees in models for t in trees)
    starts = [start_margin(objective, score) for score in scores]
    return Forest(scaled, np.mean(starts, axis=0, dtype=np.float64), objective)


Floats = NDArray[np.float64]

#: Data that greedy training uses to choose splits: message or stage, and field.
_READ = (
    (Histogram, "sums"),
    (OpenedBinSums, "sums"),
    ("gradients", "g"),
    ("labels", "y"),
)


def trainer_of(view: View, model: Any) -> Trainer | None:
    """Return the learner that trained a model of trees or shape functions.

    Parameters
    ----------
    view : View
        Its public parameters describe the training.
    model : Forest, RandomForest, RandomDecisionForest or AdditiveModel
        The model under attack.

    Returns
    -------
    Trainer or None
        None if fedtrees has no learner that trains like the protocol. For example, this is the case
        for greedy training on noisy sums or on sums that lack suppressed bins, because both change
        which splits are chosen, and for ``min_data_in_leaf > 1``.
    """
    if isinstance(model, AdditiveModel):
        return machine_trainer(view, model)
    if isinstance(model, RandomDecisionForest):
        return leaf_count_trainer(model, lambda counts, rng: _release_counts(view, counts, rng))
    if isinstance(model, RandomForest):
        return _random_forest_trainer(view, model)
    if releases_leaves(view):
        return leaf_sum_trainer(view, model)
    if _reads_noise(view):  # noise changes which splits greedy training chooses
        return None
    if trees_grown_locally(view):
        return client_trainer(view, model.objective)
    if hides([*view.changes(Histogram, "sums", "client"), *sent_back(view)]):
        return None  # clients suppress bins, which also changes which splits are chosen
    if (
        view.parameters.get("min_data_in_leaf", 1) > 1
    ):  # the engine here has no bound on the rows of a leaf
        return None
    if "gamma" in view.parameters:  # the least gain of a split: splits are chosen by gain
        return boosted_trainer(params_of(view), model.objective, cuts_of(view))
    return None


def _random_forest_trainer(view: View, model: RandomForest) -> Trainer:
    """Return the learner of random forests: one forest per client, or one forest of all rows."""
    p = view.parameters
    params = ForestParams(**{k: v for k, v in p.items() if k in ForestParams.__dataclass_fields__})
    least = max(params.min_samples_leaf, view.defense.requirements.min_leaf_rows)
    params = replace(params, min_samples_leaf=least)
    is_client = "client" in view.roles.values()
    if is_client and "cuts" not in p:  # clients settle no common cut points
        # Every client contributes the same number of trees, in the order of the clients.
        first_trees = model.trees[:: p["trees"]]
        counts = [t.counts[0].sum() for t in first_trees if t.counts is not None]
        return local_forest_trainer(
            params, model.n_classes, other_client_sizes(view, np.array(counts, dtype=np.float64))
        )
    return random_forest_trainer(params, model.n_classes, cuts_of(view))


def other_client_sizes(view: View, sizes: Floats) -> Floats:
    """Return the relative numbers of rows of the clients that the adversary does not control.

    Parameters
    ----------
    view : View
        Contains the roles of the parties.
    sizes : float64 array, shape (c,)
        Numbers of rows of all clients in their order, as far as the model contains them.

    Returns
    -------
    sizes : float64 array
        One number per client outside the adversary. All are 1 if `sizes` does not have one entry
        per client.
    """
    clients = [name for name, role in view.roles.items() if role == "client"]
    is_other = np.array([name not in view.principals for name in clients])
    return sizes[is_other] if len(sizes) == len(clients) else np.ones(int(is_other.sum()))


def _reads_noise(view: View) -> bool:
    """Return whether a protocol or defense adds random noise to the sums that choose splits."""
    return any(draws_noise(view.changes(site, field)) for site, field in _READ)


def draws_noise(changes: Iterable[Change]) -> bool:
    """Return whether any of the changes is random."""
    return any(
        isinstance(change, Share | Mechanism)
        or (isinstance(change, Channel) and not change.deterministic)
        for change in changes
    )


def _release_counts(
    view: View, counts: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return class counts of leaves as the protocol releases them."""
    changes = view.changes(PrivateForest, "counts", "server")
    if any(isinstance(change, Mechanism) for change in changes):
        p = view.parameters
        sharpness = p["epsilon"] / p["trees"] if math.isfinite(p["epsilon"]) else math.inf
        labels = permute_and_flip(counts, sharpness, rng)
        return np.asarray(np.eye(counts.shape[2], dtype=np.int64)[labels])
    law = chained(changes)
    return counts if law is None else np.asarray(law.in_units_of(1.0).send(counts, rng))


def leaf_sum_trainer(view: View, model: Forest) -> Trainer:
    """Return the learner that fills the leaves of trees whose splits ignore the data.

    It keeps the splits of the model under attack, which are public, and releases the sums of each
    leaf with the noise that the protocol states.
    """
    params, bits = params_of(view), fixed_point_bits(view)
    objective, outputs = model.objective, model.objective.n_outputs
    noise = leaf_noise(view, model.trees, 1.0)
    numbers = isinstance(objective, SquaredError)
    start = np.reshape(model.base_margin, (-1, 1)).astype(np.float32)

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], Floats]:
        leaf, rows = model.apply(every.X), every.take(np.arange(n))
        place = [np.searchsorted(t.leaves, at) for t, at in zip(model.trees, leaf.T, strict=True)]
        rng = np.random.default_rng(0)

        def released(t: int, gh: Floats, used: NDArray[np.bool_]) -> NDArray[np.float32]:
            leaves = len(model.trees[t].leaves)
            at = place[t][used]
            counted = [np.bincount(at, x[used], leaves) for x in gh.T]
            sums = np.stack(counted, axis=1).astype(np.float64)
            scale = 0.0
            if noise is not None:
                variance = np.array([noise[t].cell_g, noise[t].cell_h], dtype=np.float64)
                sums = sums + rng.standard_normal(sums.shape) * np.sqrt(variance)
                scale = math.sqrt(variance[0])
            return noisy_leaf_values(to_fixed(sums, bits), params, bits, scale)

        def train(used: NDArray[np.bool_]) -> Floats:
            margin = np.repeat(start, len(every), axis=1)
            for first in range(0, len(model.trees), outputs):
                gh = client_gradients(view, objective, margin, every.y, bits)
                for k in range(outputs):
                    margin[k] += released(first + k, gh[k], used)[place[first + k]]
            return answer_logits(objective.predict(margin[:, :n]), rows, numbers)

        return train_each(train)

    return trainer


def machine_trainer(view: View, model: AdditiveModel) -> Trainer | None:
    """Return the learner that merges explainable boosting machines of clients.

    It is interpret-core itself, with the parameters of the protocol. Only the first outer bag of
    each client is trained, because the released model is the mean over bags and each costs as
    much as the first.

    Parameters
    ----------
    view : View
        Its public parameters describe the training.
    model : AdditiveModel
        The model under attack. The weights of its bags are the numbers of rows of the clients.

    Returns
    -------
    Trainer or None
        None if interpret-core is not installed, or if the range of a column that a differentially
        private machine needs is not declared.
    """
    p, bags = view.parameters, view.parameters["outer_bags"]
    sizes = other_client_sizes(view, model.message.bag_weights[::bags])
    settings = {
        "feature_names": list(view.schema.names),
        "feature_types": ["continuous"] * len(view.schema.features),
        **{name: p[name] for name in ("max_bins", "max_rounds", "learning_rate")},
        "outer_bags": 1,
        "n_jobs": 1,
    }
    try:
        if "bin_share" in p and math.isfinite(p["epsilon"]):
            from interpret.privacy import DPExplainableBoostingClassifier as Machine

            ranges = [f.declared_range for f in view.schema.features]
            if None in ranges:
                return None
            settings |= {
                "epsilon": p["epsilon"], "delta": p["delta"], "bin_budget_frac": p["bin_share"],
                "privacy_bounds": dict(enumerate(ranges)),
            }  # fmt: skip
        else:
            from interpret.glassbox import ExplainableBoostingClassifier as Machine

            settings["interactions"] = 0
    except ImportError:
        return None

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], Floats]:
        rng, rows = np.random.default_rng(0), every.take(np.arange(n))

        def train(used: NDArray[np.bool_]) -> Floats:
            parts = deal_rows(every, n, used, sizes, rng)
            margin, total = np.zeros(n), 0
            for part in parts:
                if len(np.unique(part.y)) < 2:  # such a client sends no model
                    continue
                machine = Machine(**settings, random_state=int(rng.integers(2**31)))
                with warnings.catch_warnings():  # the noise of a reference model may have a seed
                    warnings.simplefilter("ignore")
                    machine.fit(part.X.astype(np.float64), part.y)
                margin += len(part) * machine.decision_function(rows.X.astype(np.float64))
                total += len(part)
            p_one = 1 / (1 + np.exp(-margin / max(total, 1)))
            return class_logits(p_one, rows.y)

        return train_each(train)

    return trainer
