"""Defenses `lp-1st` and `lp-mst`: the active party trains on labels with randomised response.

The algorithms are the label-DP algorithms of Ghazi et al. (2021).
`fedtrees.privacy.mechanisms` contains RRTop-k. `fedtrees.defenses.grafting` builds on the
classes of this module.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import VaryingChannel
from fedtrees.core.defense import (
    Channels,
    Context,
    Defense,
    DefenseInfo,
    Deployed,
    ExampleStage,
    Requirements,
)
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import Guarantee, LabelDP
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.parameters import flag, positive
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.captured import BestSplits, Intercept, RowGradients
from fedtrees.messages.models import BoostedModel
from fedtrees.messages.vertical import ChosenSplits, NodeRows, RowStatistics, RowsToRoute
from fedtrees.privacy.mechanisms import odds_within, rank_labels, respond, true_shares
from fedtrees.privacy.noise import Response
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams

_MECHANISM = "randomised-response"
_NOISY = "made of noisy labels"

#: Forest that predicts the labels of a stage. Its leaves contain at least 20 rows, so that the
#: noise of the labels that it is grown on averages out.
PRIOR = ForestParams(trees=50, max_depth=6, min_samples_leaf=20, max_bin=32)


@dataclass(frozen=True)
class NoisyLabels(Defense):
    """Base of defenses that train on noisy labels.

    The active party replaces its labels once, before the first message. All messages and the model
    are then computed from the noisy labels. By post-processing they cost no further budget,
    whatever the number of recipients.

    Parameters
    ----------
    epsilon : float
        Budget of label-DP, in nats, above 0.

    Attributes
    ----------
    stages : int
        Number of stages in which labels are replaced.
    published : bool
        Whether labels outside the k likeliest are replaced by any of all K classes.
    """

    epsilon: float = positive()

    stages = 1
    published = False
    roles: ClassVar[frozenset[str]] = frozenset({"active"})
    protects: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    permitted_types: ClassVar[Mapping[type[Message], str]] = {
        NodeRows: _NOISY,
        ChosenSplits: _NOISY,
        RowStatistics: "encrypted",
        RowsToRoute: "rows that were not used for training",
        **dict.fromkeys((Intercept, RowGradients, BestSplits, BoostedModel), _NOISY),
    }
    applies_to: ClassVar[tuple[type[Message], ...]] = (NodeRows, RowGradients)
    example_stages: ClassVar[frozenset[str]] = frozenset({"labels"})
    requirements = Requirements(reads_local_data=True)
    info = DefenseInfo(bench_grid={"epsilon": (0.5, 2.0)})

    def claim(self) -> Guarantee:
        """Return label-DP of everything that is sent."""
        return LabelDP(float(self.epsilon))

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the largest epsilon of a row.

        It is infinite if no label was replaced, or if a response was not differentially private.
        """
        epsilons = (e.l1 / e.scale for e in transcript.events if e.mechanism == _MECHANISM)
        return LabelDP(max(epsilons, default=math.inf))

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State randomised response over all classes. In several stages the law differs by row."""
        law = Response(float(self.epsilon), max(len(schema.classes), 2))
        by_row = VaryingChannel(
            "the answers of earlier stages determine the labels among which a row is randomised",
            law,
        )
        return {("labels", "y"): law if self.stages == 1 else by_row}

    def transform_examples(
        self, stage: ExampleStage, values: NDArray[Any], ctx: Context
    ) -> NDArray[Any]:
        """Replace every label by its randomised response, stage by stage.

        Parameters
        ----------
        stage : ExampleStage
            Other kinds than ``labels`` are returned unchanged.
        values : array, shape (n,)
            True labels.
        ctx : Context

        Returns
        -------
        labels : int64 array, shape (n,)
            Noisy labels.

        Raises
        ------
        UsageError
            If the target is numeric, or has one class.
        DataError
            If there are more stages than rows.
        """
        if stage.kind != "labels":
            return values
        K, n = len(ctx.schema.classes), len(values)
        if K < 2:
            problem = "the target has one" if K else "the target is a number: name another defense"
            raise UsageError(f"{self.name!r} answers with one of several classes; {problem}")
        # A random division into stages does not depend on the labels, and therefore costs no
        # budget.
        order = ctx.rng("stages").permutation(n) if self.stages > 1 else np.arange(n)
        if n < self.stages:
            raise DataError(f"stages={self.stages}: {n} rows make {n} stages at most; give fewer")
        noisy_labels, uniform_rows = values.astype(np.int64), order[:0]
        odds = odds_within(self.epsilon)
        for rows in np.array_split(order, self.stages):
            prior = self.estimate_prior(noisy_labels, uniform_rows, rows, ctx)
            n_candidates = rank_labels(prior, odds)[1]
            # With the authors' rule a response outside the candidates has probability 0 for every
            # label among them, so that no epsilon bounds the privacy loss.
            unbounded = self.published and (n_candidates < K).any()
            cost = math.inf if unbounded else float(self.epsilon)
            ctx.record_release(_MECHANISM, l1=cost, scale=1.0, what="labels")
            randomness = ctx.rng("answers")
            noisy_labels[rows] = respond(
                noisy_labels[rows], prior, odds, randomness, published=self.published
            )
            # Only responses over all K classes follow the same noise matrix, which `true_shares`
            # inverts.
            uniform_rows = np.concatenate([uniform_rows, rows[n_candidates == K]])
        return noisy_labels

    def estimate_prior(
        self,
        noisy_labels: NDArray[np.int64],
        uniform_rows: NDArray[np.intp],
        rows: NDArray[np.intp],
        ctx: Context,
    ) -> NDArray[np.float64]:
        """Return the prior of the labels of a stage's rows.

        The prior is uniform as long as fewer than 40 rows have uniform noise, if the budget is so
        small that answers are uniform, or if the active party has no columns. Otherwise it is the
        prediction of a forest over the active party's columns, corrected for the noise of the
        labels that the forest is grown on.

        Parameters
        ----------
        noisy_labels : int64 array, shape (n,)
            Noisy labels of all rows of earlier stages.
        uniform_rows : intp array, shape (t,)
            Rows of earlier stages whose response was over all K classes. The same noise matrix
            applies to all of them.
        rows : intp array, shape (m,)
            Rows of the stage.
        ctx : Context

        Returns
        -------
        prior : float64 array, shape (m, K)
        """
        K, local_data, odds = len(ctx.schema.classes), ctx.local_data, odds_within(self.epsilon)
        too_few = len(uniform_rows) < 2 * PRIOR.min_samples_leaf
        if too_few or odds == 1 or local_data is None or not len(local_data.columns):
            return np.full((len(rows), K), 1.0 / K)
        X, cuts = local_data.X, quantile_cuts(local_data.X, PRIOR.max_bin)
        randomness = ctx.streams.child("prior", str(len(uniform_rows)))
        forest = grow_random_forest(
            X[uniform_rows], noisy_labels[uniform_rows], cuts, PRIOR, n_classes=K, seed=randomness
        )
        # The forest predicts noisy labels. Inverting the noise matrix gives shares of true labels.
        return true_shares(forest.probabilities(X[rows]), odds)


@register.defense("lp-1st")
@dataclass(frozen=True)
class OneStage(NoisyLabels):
    """LP-1ST: randomised response over all classes (Ghazi et al. 2021).

    Without prior knowledge of a label, the best RRTop-k is the one over all K classes.

    Parameters
    ----------
    epsilon : float
        Budget of label-DP, in nats, above 0.
    """

    info = replace(
        NoisyLabels.info,
        deployments=dict.fromkeys(
            ("xgboost", "nvflare", "secretflow"),
            Deployed(
                "before training, once: each label of K classes is kept with "
                "probability e^epsilon / (e^epsilon + K - 1), and otherwise replaced by "
                "one of the other labels",
                {"epsilon": "epsilon={}"},
            ),
        ),
    )


@dataclass(frozen=True)
class ManyStages(NoisyLabels):
    """Base of defenses that make labels noisy in several stages.

    Parameters
    ----------
    epsilon : float
        Budget of label-DP, in nats, above 0.
    stages : int
        Number of stages, from 2 to the number of rows.
    published : bool
        Use the rule of the authors' code for labels outside the k likeliest. It does not satisfy
        label-DP.
    """

    stages: int = 2
    published: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.stages) is not int or self.stages < 2:
            raise UsageError(
                f"stages={self.stages!r}: give a whole number, 2 or more; one stage is 'lp-1st'"
            )


@register.defense("lp-mst")
@dataclass(frozen=True)
class LPMST(ManyStages):
    """LP-MST (Ghazi et al. 2021, Algorithm 4): a prior for the labels of a row reduces its noise.

    The rows are divided among the stages at random. The labels of a stage are replaced by RRTop-k
    with a prior that comes from a forest. The forest uses the active party's columns and the noisy
    labels of earlier stages, namely those whose response was over all K classes. Their noise is
    removed from the predictions of the forest. Ghazi et al. use the predictions of a model without
    this correction, which are too close to uniform. The label of every row is used in a single
    response, so that epsilon covers the complete run.

    The code of Takahashi et al. (2023) differs in three points. The stages follow the order of the
    rows, all trials have the same seed, and a label outside the k likeliest is replaced by any of
    all K classes (`published`). A response outside the k likeliest then reveals that the true label
    is none of them, whatever epsilon is claimed.

    Parameters
    ----------
    epsilon : float
        Budget of label-DP, in nats, above 0.
    stages : int
        Number of stages, from 2 to the number of rows.
    published : bool
        Use the third rule of that code. The epsilon of the run is infinite if k < K for any row.
    """
