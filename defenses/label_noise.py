"""LP-MST: training on labels that passed randomised response (Ghazi et al. 2021)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Memory
from fedtrees.core.defense import Context, Defense, Place, Stage
from fedtrees.core.deployment import Deployed
from fedtrees.core.errors import DataError, UsageError, check_flag, check_positive
from fedtrees.core.guarantee import Guarantee, LabelDP
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.captured import BestSplits, Intercept, RowGradients
from fedtrees.messages.models import BoostedModel
from fedtrees.messages.vertical import ChosenSplits, NodeRows, RowStatistics, RowsToRoute
from fedtrees.privacy.noise import Response
from fedtrees.privacy.randomised_response import odds_within, ranked, respond, true_shares
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.sketch import quantile_cuts

_MECHANISM = "randomised-response"
_NOISY = "made of noisy labels"

#: What a stage's labels are predicted with: averaged over many rows, for it is grown on noise.
PRIOR = ForestParams(trees=50, max_depth=6, min_samples_leaf=20, max_bin=32)


@dataclass(frozen=True)
class NoisyLabels(Defense):
    """Base of defenses that train on noisy labels: all that crosses is made of these.

    The active party replaces its labels once, before the first message. Passing on what was made of
    them costs nothing more (post-processing), to however many parties.

    `epsilon`: Of label-DP, in nats, above 0.
    """

    epsilon: float

    acts_through = frozenset({"rows"})
    at: ClassVar[frozenset[str]] = frozenset({"active"})
    protects: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    exempts: ClassVar[Mapping[type[Message], str]] = {
        NodeRows: _NOISY,
        ChosenSplits: _NOISY,
        RowStatistics: "encrypted",
        RowsToRoute: "rows that nobody trained on",
        **dict.fromkeys((Intercept, RowGradients, BestSplits, BoostedModel), _NOISY),
    }
    requires: ClassVar[tuple[type[Message], ...]] = (NodeRows, RowGradients)
    acts_on: ClassVar[frozenset[str]] = frozenset({"labels"})
    reads_rows: ClassVar[bool] = True
    tries: ClassVar[Mapping[str, tuple[float, ...]]] = {"epsilon": (0.5, 2.0)}

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)

    def claim(self) -> Guarantee:
        """Return label-DP."""
        return LabelDP(float(self.epsilon))

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the most that a row was asked for; infinite where no epsilon bounds it."""
        asked = (e.l1 / e.scale for e in transcript.events if e.mechanism == _MECHANISM)
        return LabelDP(max(asked, default=math.inf))

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State the odds of an answer where all classes are alike; later stages know more."""
        law = Response(float(self.epsilon), max(len(schema.classes), 2))
        many = Memory("answers of stages before say among which labels a row is answered", law)
        return {("labels", "y"): law if self.parts == 1 else many}

    def rows(self, stage: Stage, values: NDArray[Any], ctx: Context) -> NDArray[Any]:
        """Answer for every label in its stage, believing what the stages before suggest.

        Raises `UsageError` if the target is a number, or has one class. Raises `DataError` if there
        are more stages than rows.
        """
        if stage.kind != "labels":
            return values
        K, n = len(ctx.schema.classes), len(values)
        if K < 2:
            why = "the target has one" if K else "the target is a number: name another defense"
            raise UsageError(f"{self.name!r} answers with one of several classes; {why}")
        order = ctx.rng("stages").permutation(n) if self.parts > 1 else np.arange(n)
        if n < self.parts:
            raise DataError(f"stages={self.parts}: {n} rows make {n} stages at most; give fewer")
        said, told, odds = values.astype(np.int64), order[:0], odds_within(self.epsilon)
        for rows in np.array_split(order, self.parts):
            prior = self.believed(said, told, rows, ctx)
            among = ranked(prior, odds)[1]
            unbounded = self.as_published and (among < K).any()
            cost = math.inf if unbounded else float(self.epsilon)
            ctx.spend(_MECHANISM, l1=cost, scale=1.0, what="labels")
            randomness = ctx.rng("answers")
            said[rows] = respond(said[rows], prior, odds, randomness, published=self.as_published)
            told = np.concatenate([told, rows[among == K]])
        return said

    @property
    def parts(self) -> int:
        """How many stages."""
        return 1

    @property
    def as_published(self) -> bool:
        """Whether labels out of the likeliest are answered by any."""
        return False

    def believed(
        self,
        said: NDArray[np.int64],
        told: NDArray[np.intp],
        rows: NDArray[np.intp],
        ctx: Context,
    ) -> NDArray[np.float64]:
        """Return the prior of a stage's rows, float64, shape (m, K).

        All classes alike, as long as few rows are told; then what a forest over the active party's
        columns makes of noisy labels, less their noise.

        `said`: int64 array, shape (n,). Noisy labels.
        `told`: intp array. Rows of stages before, answered among all K classes: their noise is the
        same everywhere.
        `rows`: intp array, shape (m,).
        """
        K, held, odds = len(ctx.schema.classes), ctx.held, odds_within(self.epsilon)
        few = len(told) < 2 * PRIOR.min_samples_leaf
        if few or odds == 1 or held is None or not len(held.columns):
            return np.full((len(rows), K), 1.0 / K)
        X, cuts = held.X, quantile_cuts(held.X, PRIOR.max_bin)
        randomness = ctx.streams.child("prior", str(len(told)))
        forest = grow_random_forest(X[told], said[told], cuts, PRIOR, n_classes=K, seed=randomness)
        return true_shares(forest.probabilities(X[rows]), odds)


@register.defense("lp-1st")
@dataclass(frozen=True)
class OneStage(NoisyLabels):
    """LP-1ST: randomised response over all classes (Ghazi et al. 2021).

    Where nothing is known of a label, the best RRTop-k answers with any of the K classes.

    `epsilon`: Of label-DP, in nats, above 0.
    """

    deployed: ClassVar[Mapping[str, Deployed]] = dict.fromkeys(
        ("xgboost", "nvflare", "secretflow"),
        Deployed(
            "before training, once: each label of K classes stays with probability "
            "e^epsilon / (e^epsilon + K - 1), else is one of the others",
            {"epsilon": "epsilon={}"},
        ),
    )


@dataclass(frozen=True)
class ManyStages(NoisyLabels):
    """What is common to defenses whose labels are made noisy in stages.

    `epsilon`: float. Of label-DP, in nats, above 0.
    `stages`: 2 or more, and no more than rows.
    `published`: The rule of the authors' code for labels that are not among the likeliest: not
    label-DP.
    """

    stages: int = 2
    published: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.stages) is not int or self.stages < 2:
            raise UsageError(
                f"stages={self.stages!r}: give a whole number, 2 or more; one stage is 'lp-1st'"
            )
        check_flag("published", self.published)

    @property
    def parts(self) -> int:
        """How many stages."""
        return self.stages

    @property
    def as_published(self) -> bool:
        """Whether labels out of the likeliest are answered by any."""
        return self.published


@register.defense("lp-mst")
@dataclass(frozen=True)
class LPMST(ManyStages):
    """LP-MST (Ghazi et al. 2021, Algorithm 4): what is known of a row already spares noise.

    Rows are dealt out over stages at random. A stage's labels are answered with RRTop-k, believing
    what a forest of the active party's own columns, grown on noisy labels of the stages before,
    says of them. It is grown on rows that were answered among all K classes, and the noise of these
    is taken out of what it says (Ghazi et al. take a model's forecast as it is, which is too flat).
    Every row is asked for once, so that epsilon is that of the whole run.

    In the code of Takahashi et al. (2023) stages go by the order of rows, all trials have one seed,
    and a label that is not among the k likeliest is answered by any of all K (`published`): an
    answer out of the k then says that the label is none of them, at whatever epsilon is claimed.

    Parameters
    ----------
    epsilon : float
        Of label-DP, in nats, above 0.
    stages : int
        2 or more, and no more than rows.
    published : bool
        Answer as that code does; what was spent is then infinite wherever k < K.
    """
