"""Defenses: hooks on a protocol, and the claim they make. They fail closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import Aggregation
from fedtrees.core.cut_plan import CutPlan
from fedtrees.core.errors import (
    GlassWallError,
    ProtocolError,
    UnguardedMessageError,
    UsageError,
)
from fedtrees.core.guarantee import ActedOnNothing, Guarantee, NoGuarantee
from fedtrees.core.holding import Holding
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.party import acting_party
from fedtrees.core.schema import Schema
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import BudgetEvent, Transcript


@dataclass(frozen=True, eq=False)
class Level:
    """Nodes that wait for splits, as whoever has the labels knows them.

    Attributes
    ----------
    tree, round : int
        Numbers of the tree, and of the round that it belongs to.
    nodes : int32 array, shape (k,)
        The root, or children in pairs.
    counts : int64 array, shape (k, K)
        Their rows by class; 0 columns where the target is a number.
    totals : int64 array, shape (K,)
        All training rows by class.
    offsets : int32 array, shape (d + 1,)
        Candidates of column f are ``offsets[f]:offsets[f + 1]``.
    others : bool array, shape (d,)
        Columns of other parties.
    left : int64 array, shape (k, candidates, K), or None
        Rows by class up to each candidate, without those that have no value. None unless a part
        `counts_classes`.
    """

    tree: int
    round: int
    nodes: NDArray[np.int32]
    counts: NDArray[np.int64]
    totals: NDArray[np.int64]
    offsets: NDArray[np.int32]
    others: NDArray[np.bool_]
    left: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Context:
    """What a hook may know: who acts, the public parameters, that party's coins, the ledger.

    Attributes
    ----------
    party, role : str
        Who is about to send, or whose data is prepared.
    schema : Schema
    parameters : mapping
        Public parameters of the protocol (trees, max_depth, reg_lambda, ...).
    streams : Streams
        The acting party's own random streams.
    ledger : list of BudgetEvent
        Where `spend` enters what a noisy release cost.
    acted : set of int
        Where a composition enters which of its parts changed something.
    level : Level or None
        What `candidates` and `shown` are asked about, where parties hold columns.
    """

    party: str
    role: str
    schema: Schema
    parameters: Mapping[str, Any]
    streams: Streams
    ledger: list[BudgetEvent]
    acted: set[int] = field(default_factory=set)
    level: Level | None = None
    _held: Holding | None = None
    _draws: Counter[str] = field(default_factory=Counter)

    @property
    def held(self) -> Holding | None:
        """What the acting party holds, for its own hooks alone.

        Raises
        ------
        GlassWallError
            If another party acts, or none.
        """
        party = acting_party()
        if party is None or party.name != self.party:
            raise GlassWallError(f"what {self.party!r} holds is for its own hooks alone")
        return self._held

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a fresh generator of the acting party, another at every call."""
        self._draws[purpose] += 1
        return self.streams.rng(purpose, self._draws[purpose])

    def spend(self, mechanism: str, *, l1: float, scale: float, what: str) -> None:
        """Enter one noisy release into the budget ledger."""
        self.ledger.append(BudgetEvent(self.party, mechanism, l1, scale, what))


@dataclass(frozen=True)
class Declared:
    """What everyone knows a defense does to the statistics, so that attacks can adapt to it.

    Attributes
    ----------
    noise_variance : float
        Variance added to each element of each client's histogram, in squared gradient units.
    rounding : float
        Step to which leaf values are rounded; 0 means not at all.
    histogram_step : float
        Step to which each element of a client's histogram is rounded, in gradient units.
    least_rows : int
        A bin that is sent holds at least so many rows; others are sent as 0.
    row_variance : float
        Variance of the noise on each row's gradient, in squared gradient units: the row brings the
        same noise to every sum of its tree.
    unit_hessian : bool
        Every row's hessian is 1, so that sums of hessians count rows.
    """

    noise_variance: float = 0.0
    rounding: float = 0.0
    histogram_step: float = 0.0
    least_rows: int = 0
    row_variance: float = 0.0
    unit_hessian: bool = False


@dataclass(frozen=True)
class Stage:
    """When `Defense.rows` is called, and on what.

    Attributes
    ----------
    kind : {"labels", "gradients", "example-gradients"}
        ``labels``: once, before training, y of shape (n,). ``gradients``: every round of boosting,
        after clipping, int64 in fixed point, shape (K, n, 2). ``example-gradients``: every step of
        a network, float32, shape (n, parameters).
    bits : pair of int
        Binary places of fixed-point gradients and of hessians.
    """

    kind: Literal["labels", "gradients", "example-gradients"]
    bits: tuple[int, int] = (0, 0)


class Defense:
    """Base of all defenses; every hook is optional, the default changes nothing.

    Fail closed: at the first send by a role in `at`, a message that reveals something in
    `protects` must be of a type in `guards` or in `exempts`, or the run stops.

    Attributes
    ----------
    name : str
        Set by ``@register.defense``.
    at : frozenset of str
        Roles whose outgoing messages pass `outgoing`.
    protects : frozenset of Reveal
        What the claim speaks of.
    guards : tuple of Message types
        Types `outgoing` handles.
    exempts : mapping of Message type to str
        Types let through although they reveal it, each with the reason why that is acceptable.
    requires : tuple of Message types
        It makes sense only where one of these crosses; empty: one of `guards`.
    guarantee : Guarantee
        What is claimed, where that does not depend on parameters.
    stages : frozenset of str
        Kinds of `Stage` that `rows` acts on; labels are there in every protocol.
    gradient_clip : float or None
        Clients clip each row's gradient to [-R, R] and hessian to [0, 2R] before summing.
    least_leaf_rows : int
        Clients that grow trees by themselves leave so many rows on either side of a split.
    unit_hessian : bool
        Whether `rows` makes every hessian 1.
    bounds_hessian : bool
        Whether it is right only while hessians keep to the loss's own bound.
    counts_classes : bool
        Whether `candidates` reads `Level.left`: then class counts are summed beside gradients.
    """

    name: ClassVar[str] = "defense"
    at: ClassVar[frozenset[str]] = frozenset()
    protects: ClassVar[frozenset[Reveal]] = frozenset()
    guards: ClassVar[tuple[type[Message], ...]] = ()
    exempts: ClassVar[Mapping[type[Message], str]] = {}
    requires: ClassVar[tuple[type[Message], ...]] = ()
    guarantee: ClassVar[Guarantee] = NoGuarantee()
    stages: ClassVar[frozenset[str]] = frozenset({"labels", "gradients", "example-gradients"})
    gradient_clip: float | None = None
    least_leaf_rows: int = 0
    unit_hessian: ClassVar[bool] = False
    bounds_hessian: ClassVar[bool] = False
    counts_classes: ClassVar[bool] = False

    def claim(self) -> Guarantee:
        """State what is guaranteed, as published; by default `guarantee`."""
        return self.guarantee

    def declares(self, schema: Schema, parameters: Mapping[str, Any]) -> Declared:
        """Publish what the defense does to the statistics (its parameters are no secret)."""
        return Declared()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose what a run really spent; by default the claim."""
        return self.claim()

    def rows(self, stage: Stage, values: NDArray[Any], ctx: Context) -> NDArray[Any]:
        """Change what belongs to a party's single rows: labels, or gradients before it sums them.

        Parameters
        ----------
        stage : Stage
        values : array
            As the stage says; the first axis of labels and the second of gradients are the rows.
        ctx : Context
        """
        return values

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Change what leaves a party."""
        return message

    def candidates(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Restrict which splits may be chosen; `mask` is bool, shape (n_nodes, total_bins)."""
        return mask

    def shown(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Restrict of which nodes other parties are told the rows; `mask` is bool, (n_nodes,).

        Where they are not told of the root, a tree is grown without them. Nodes are shown in pairs,
        and nothing below a node that is not.
        """
        return mask

    def audience(self, message: Message, receivers: Sequence[str], ctx: Context) -> Sequence[str]:
        """Restrict which parties get a message."""
        return receivers

    def summed(self) -> tuple[type[Message], ...]:
        """Name the reply types of which only the sum over parties can be opened."""
        return ()

    def aggregation(self) -> Aggregation | None:
        """Make what seals and sums in one run; None: the ideal functionality does."""
        return None

    def undone_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> str | None:
        """Return why these principals together open what it seals, None if they do not."""
        return None

    def cuts(self) -> CutPlan | None:
        """Say how cut points are settled in place of the protocol's way; None: in that way."""
        return None

    def finish(self, model: Any, ctx: Context) -> Any:
        """Repair the model after training, on the record."""
        return model

    def answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Change what an inference query gets back."""
        return scores


@dataclass(frozen=True)
class Composition:
    """Defenses applied left to right as written. An empty one is `none`.

    Raises
    ------
    UsageError
        If one part makes hessians 1 and another counts on their bound, or two parts say how cut
        points are settled, or bring cryptography for sums.
    """

    parts: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        for one in (p for p in self.parts if p.unit_hessian):
            for other in (p for p in self.parts if p.bounds_hessian):
                raise UsageError(
                    f"{one.name!r} makes every row's hessian 1, and {other.name!r} counts on the "
                    "loss's own bound on it; leave one of them out"
                )
        settling = [p.name for p in self.parts if p.cuts() is not None]
        if len(settling) > 1:
            raise UsageError(
                f"{' and '.join(map(repr, settling))} each say how cut points are settled; keep one"
            )
        sealing = [p.name for p in self.parts if type(p).aggregation is not Defense.aggregation]
        if len(sealing) > 1:
            raise UsageError(f"{' and '.join(map(repr, sealing))} each seal every sum; keep one")

    @property
    def gradient_clip(self) -> float | None:
        """The tightest clip of the parts, None where no part clips."""
        clips = [p.gradient_clip for p in self.parts if p.gradient_clip is not None]
        return min(clips) if clips else None

    @property
    def least_leaf_rows(self) -> int:
        """The strictest of the parts' limits, 0 where no part sets one."""
        return max((p.least_leaf_rows for p in self.parts), default=0)

    @property
    def summed(self) -> tuple[type[Message], ...]:
        """Reply types of which only the sum can be opened."""
        return tuple(t for p in self.parts for t in p.summed())

    def declares(self, schema: Schema, parameters: Mapping[str, Any]) -> Declared:
        """Return what the parts publish together."""
        parts = [p.declares(schema, parameters) for p in self.parts]
        return Declared(
            noise_variance=sum(p.noise_variance for p in parts),
            rounding=max((p.rounding for p in parts), default=0.0),
            histogram_step=max((p.histogram_step for p in parts), default=0.0),
            least_rows=max((p.least_rows for p in parts), default=0),
            row_variance=sum(p.row_variance for p in parts),
            unit_hessian=any(p.unit_hessian for p in parts),
        )

    @property
    def cut_plan(self) -> CutPlan | None:
        """How a part wants cut points settled, None where none has a say."""
        return next((plan for p in self.parts if (plan := p.cuts()) is not None), None)

    @property
    def restricts_splits(self) -> bool:
        """Whether any part has a say in which splits may be chosen."""
        return any(type(p).candidates is not Defense.candidates for p in self.parts)

    @property
    def hides_nodes(self) -> bool:
        """Whether any part has a say in which nodes other parties are told of."""
        return any(type(p).shown is not Defense.shown for p in self.parts)

    @property
    def counts_classes(self) -> bool:
        """Whether any part reads the class counts of candidates."""
        return any(p.counts_classes for p in self.parts)

    def mismatch(
        self, protocol: str, says: Sequence[type[Message]], serves: frozenset[str]
    ) -> str | None:
        """Return why a part makes no sense in a protocol, None if all do.

        Parameters
        ----------
        protocol : str
            Its name.
        says : sequence of Message types
            What crosses in it.
        serves : frozenset of str
            Hooks and limits that its parties keep to: of ``rows``, ``candidates``, ``shown``,
            ``gradient_clip`` and ``least_leaf_rows``.
        """
        for part in self.parts:
            wanted = part.requires or part.guards
            if wanted and not any(issubclass(said, wanted) for said in says):
                names = ", ".join(t.__name__ for t in wanted)
                return f"{part.name!r} acts on {names}, which do not cross in {protocol!r}"
            uses = {
                "rows": type(part).rows is not Defense.rows and part.stages != {"labels"},
                "candidates": type(part).candidates is not Defense.candidates,
                "shown": type(part).shown is not Defense.shown,
                "gradient_clip": part.gradient_clip is not None,
                "least_leaf_rows": part.least_leaf_rows > 0,
            }
            unserved = sorted(name for name, used in uses.items() if used and name not in serves)
            if unserved:
                return (
                    f"{part.name!r} works through {', '.join(unserved)}, which no party of "
                    f"{protocol!r} keeps to"
                )
        return None

    def claims(self) -> list[Guarantee]:
        """Return each part's claim, in order."""
        return [p.claim() for p in self.parts]

    def spent(self, transcript: Transcript) -> list[Guarantee]:
        """Return what each part spent in a run, in order; what never acted guarantees nothing."""
        return [
            p.spent(transcript) if i in transcript.acted else ActedOnNothing()
            for i, p in enumerate(self.parts)
        ]

    def rows(self, stage: Stage, values: NDArray[Any], ctx: Context) -> NDArray[Any]:
        """Pass what belongs to a party's rows through every part."""
        for i, part in enumerate(self.parts):
            changed = part.rows(stage, values, ctx)
            if i not in ctx.acted and not _equal(changed, values):
                ctx.acted.add(i)
            values = changed
        return values

    def candidates(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Pass the candidate mask through every part."""
        for i, part in enumerate(self.parts):
            changed = part.candidates(mask.copy(), tree, ctx)
            if i not in ctx.acted and not np.array_equal(changed, mask):
                ctx.acted.add(i)
            mask = changed
        return mask

    def shown(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Pass the mask of nodes through every part."""
        for i, part in enumerate(self.parts):
            changed = part.shown(mask.copy(), tree, ctx)
            if i not in ctx.acted and not np.array_equal(changed, mask):
                ctx.acted.add(i)
            mask = changed
        return mask

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Pass a message through every part that acts at this role.

        Raises
        ------
        UnguardedMessageError
            If it reveals what a part protects and that part neither guards nor exempts it.
        """
        for i, part in enumerate(self.parts):
            if ctx.role not in part.at:
                continue
            exposed = message.reveals & part.protects
            if isinstance(message, part.guards):
                sent = part.outgoing(message, ctx)
                if not isinstance(sent, Message):
                    raise ProtocolError(
                        f"{part.name!r}: outgoing returned a {type(sent).__name__}; "
                        "return the message to send"
                    )
                if i not in ctx.acted and (exposed - sent.reveals or _differ(sent, message)):
                    ctx.acted.add(i)
                message = sent
            elif exposed and not isinstance(message, tuple(part.exempts)):
                raise UnguardedMessageError(
                    f"{part.name!r} claims to protect {', '.join(sorted(exposed))}, but "
                    f"{ctx.party!r} is about to send {type(message).__name__}, which it neither "
                    "guards nor exempts; add the type to guards, or to exempts with a reason"
                )
        return message

    def audience(self, message: Message, receivers: Sequence[str], ctx: Context) -> Sequence[str]:
        """Pass the receivers through every part."""
        for i, part in enumerate(self.parts):
            chosen = part.audience(message, receivers, ctx)
            if list(chosen) != list(receivers):
                ctx.acted.add(i)
            receivers = chosen
        return receivers

    def seals(self, message: Message, ctx: Context) -> bool:
        """Tell whether a part lets only sums of such a reply be opened."""
        acting = [i for i, part in enumerate(self.parts) if isinstance(message, part.summed())]
        ctx.acted.update(acting)
        return bool(acting)

    def aggregation(self) -> Aggregation | None:
        """Make what seals and sums in one run; None where no part brings any."""
        return next((made for p in self.parts if (made := p.aggregation()) is not None), None)

    def undone_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> str | None:
        """Return why these principals together open what a part seals, None if they do not."""
        reasons = (part.undone_by(principals, roles) for part in self.parts)
        return next((reason for reason in reasons if reason is not None), None)

    def sums_exactly(self, schema: Schema, parameters: Mapping[str, Any]) -> bool:
        """Tell whether sums are of what rows bring, without noise or rounding."""
        told, plan = self.declares(schema, parameters), self.cut_plan
        noisy = told.noise_variance or told.row_variance or told.histogram_step
        return not noisy and (plan is None or plan.epsilon is None)

    def finish(self, model: Any, ctx: Context) -> Any:
        """Pass the model through every part."""
        for i, part in enumerate(self.parts):
            repaired = part.finish(model, ctx)
            if i not in ctx.acted and not _equal(repaired, model):
                ctx.acted.add(i)
            model = repaired
        return model

    def answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Pass inference scores through every part."""
        for i, part in enumerate(self.parts):
            changed = part.answer(scores, ctx)
            if i not in ctx.acted and not _equal(changed, scores):
                ctx.acted.add(i)
            scores = changed
        return scores


def _differ(a: Message, b: Message) -> bool:
    """Tell whether two messages say different things."""
    return not _equal(a, b)


def _equal(a: Any, b: Any) -> bool:
    """Tell whether two values are the same: arrays, and what dataclasses and tuples hold."""
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if is_dataclass(a):
        return all(_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)
