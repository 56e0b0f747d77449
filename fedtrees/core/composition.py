"""Several defenses as one: every hook in order, and what they allow together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core import hooks
from fedtrees.core.aggregation import Aggregation
from fedtrees.core.channel import Change, Share
from fedtrees.core.cut_plan import CutPlan
from fedtrees.core.defense import Context, Defense, Place, Stage
from fedtrees.core.errors import UnguardedMessageError
from fedtrees.core.guarantee import ActedOnNothing, Guarantee
from fedtrees.core.messages import Message
from fedtrees.core.reasons import Reason, Unfit
from fedtrees.core.schema import Schema
from fedtrees.core.sensitivity import misplaced
from fedtrees.core.transcript import Transcript


@dataclass(frozen=True)
class Composition:
    """Defenses applied left to right as written. An empty one is `none`.

    Raises `Unfit` if one part makes hessians 1 and another counts on their bound, two parts say how
    cut points are settled, answer for labels, or bring cryptography for sums, or one acts before
    the noise that another's claim counts on (`fedtrees.core.sensitivity`).
    """

    parts: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        for one in (p for p in self.parts if p.unit_hessian):
            for other in (p for p in self.parts if p.bounds_hessian):
                raise Unfit(Reason("hessians-of-one", subject=one.name, other=other.name))
        once = {
            "cuts-settled-twice": [p.name for p in self.parts if p.cuts() is not None],
            "sums-sealed-twice": [p.name for p in self.parts if "aggregation" in p.acts_through],
            "labels-answered-twice": [p.name for p in self.parts if p.acts_on == {"labels"}],
        }
        for code, names in once.items():
            if len(names) > 1:
                raise Unfit(Reason(code, names=" and ".join(map(repr, names))))
        reason = misplaced(self.parts)
        if reason:
            raise Unfit(reason)

    @property
    def gradient_clip(self) -> float | None:
        """The tightest clip of the parts, None where no part clips."""
        clips = [p.gradient_clip for p in self.parts if p.gradient_clip is not None]
        return min(clips) if clips else None

    @property
    def proven(self) -> bool:
        """Whether no part does without a proof that what is summed unread is clipped."""
        return all(p.proven for p in self.parts)

    @property
    def least_leaf_rows(self) -> int:
        """The strictest of the parts' limits, 0 where no part sets one."""
        return max((p.least_leaf_rows for p in self.parts), default=0)

    @property
    def summed(self) -> tuple[type[Message], ...]:
        """Reply types of which only the sum can be opened."""
        return tuple(t for p in self.parts for t in p.summed())

    def changes(
        self, place: Place, schema: Schema, parameters: Mapping[str, Any], role: str = ""
    ) -> list[Change]:
        """Return what the parts state of a field, as written: those that act at a role, or all."""
        acting = (p for p in self.parts if isinstance(place[0], str) or not role or role in p.at)
        each = (p.channels(schema, parameters).get(place) for p in acting)
        return [change for change in each if change is not None]

    def shared(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[type[Message], int]:
        """Return the messages in which a part adds a share of noise, and `Share.least` of each."""
        laws = (law for p in self.parts for law in p.channels(schema, parameters).items())
        return {
            kind: change.least
            for (kind, _), change in laws
            if isinstance(change, Share) and not isinstance(kind, str)
        }

    @property
    def unit_hessian(self) -> bool:
        """Whether any part makes every row's hessian 1."""
        return any(p.unit_hessian for p in self.parts)

    @property
    def cut_plan(self) -> CutPlan | None:
        """How a part wants cut points settled, None where none has a say."""
        return next((plan for p in self.parts if (plan := p.cuts()) is not None), None)

    @property
    def restricts_splits(self) -> bool:
        """Whether any part has a say in which splits may be chosen."""
        return any("candidates" in p.acts_through for p in self.parts)

    @property
    def hides_nodes(self) -> bool:
        """Whether any part has a say in which nodes other parties are told of."""
        return any("shown" in p.acts_through for p in self.parts)

    @property
    def poisson_sampling(self) -> bool:
        """Whether any part needs every row to be drawn into a batch by itself."""
        return any(p.poisson_sampling for p in self.parts)

    @property
    def gradient_engine(self) -> str:
        """Library of per-sample gradients and Poisson batches. Empty if no part names one."""
        return next((p.gradient_engine for p in self.parts if p.gradient_engine), "")

    @property
    def declared_rows(self) -> int:
        """How many rows each client is declared to have, 0 where no part says so."""
        return max((p.declared_rows for p in self.parts), default=0)

    @property
    def row_bounds(self) -> tuple[float, float] | None:
        """The tightest bounds on rows and scores, None where no part bounds them."""
        bounds = [p.row_bounds for p in self.parts if p.row_bounds is not None]
        return (min(f[0] for f in bounds), min(f[1] for f in bounds)) if bounds else None

    @property
    def changes_examples(self) -> bool:
        """Whether any part acts on gradients of single rows of a network."""
        kind = "example-gradients"
        return any("rows" in p.acts_through and kind in p.acts_on for p in self.parts)

    @property
    def counts_classes(self) -> bool:
        """Whether any part reads the class counts of candidates."""
        return any(p.counts_classes for p in self.parts)

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Refuse parties and parameters that do not suit a part; raises `UsageError`."""
        for part in self.parts:
            part.check(roles, parameters)

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
            before = len(ctx.ledger)
            changed = part.rows(stage, values, _for(part, ctx))
            paid = len(ctx.ledger) > before  # noise may leave all as it is
            if i not in ctx.acted and (paid or not equal(changed, values)):
                ctx.acted.add(i)
            values = changed
        return values

    def candidates(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Pass the candidate mask through every part, none of which allows what another forbids."""
        return self._masked("candidates", mask, tree, ctx)

    def shown(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Pass the mask of nodes through every part, none of which shows what another hides."""
        return self._masked("shown", mask, tree, ctx)

    def _masked(
        self, hook: str, mask: NDArray[np.bool_], tree: int, ctx: Context
    ) -> NDArray[np.bool_]:
        for i, part in enumerate(self.parts):
            changed = mask & getattr(part, hook)(mask.copy(), tree, _for(part, ctx))
            if i not in ctx.acted and not np.array_equal(changed, mask):
                ctx.acted.add(i)
            mask = changed
        return mask

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Pass a message through every part that acts at this role.

        Raises
        ------
        UnguardedMessageError
            If the message reveals what a part protects, or is derived from a type that a part
            guards, and that part neither guards nor exempts the type itself. A message with one
            more field is of another type.
        ProtocolError
            As `fedtrees.core.hooks.outgoing`.
        """
        for i, part in enumerate(self.parts):
            if ctx.role not in part.at:
                continue
            exposed = message.reveals & part.protects
            if type(message) in part.guards:
                sent = hooks.outgoing(part, message, _for(part, ctx))
                if i not in ctx.acted and (exposed - sent.reveals or not equal(sent, message)):
                    ctx.acted.add(i)
                message = sent
            elif type(message) not in part.exempts and isinstance(message, part.guards):
                raise UnguardedMessageError(_derived(part, message, "guards"))
            elif exposed and type(message) not in part.exempts:
                raise UnguardedMessageError(
                    f"{part.name!r} claims to protect {', '.join(sorted(exposed))}, but "
                    f"{ctx.party!r} is about to send {type(message).__name__}, which it neither "
                    "guards nor exempts; add the type to guards, or to exempts with a reason"
                )
        return message

    def audience(self, message: Message, receivers: Sequence[str], ctx: Context) -> Sequence[str]:
        """Pass the receivers through every part."""
        for i, part in enumerate(self.parts):
            chosen = part.audience(message, receivers, _for(part, ctx))
            if list(chosen) != list(receivers):
                ctx.acted.add(i)
            receivers = chosen
        return receivers

    def seals(self, message: Message, ctx: Context) -> bool:
        """Tell whether a part lets only sums of such a reply be opened."""
        acting = [i for i, part in enumerate(self.parts) if type(message) in part.summed()]
        for part in self.parts:
            if not acting and isinstance(message, part.summed()):
                raise UnguardedMessageError(_derived(part, message, "sums"))
        ctx.acted.update(acting)
        return bool(acting)

    def aggregation(self) -> Aggregation | None:
        """Make what seals and sums in one run; None where no part brings any."""
        return next(
            (aggregation for p in self.parts if (aggregation := p.aggregation()) is not None), None
        )

    @property
    def sums_exactly(self) -> bool:
        """Whether sums are of what rows bring: nobody adds noise, rounds or leaves out."""
        plan = self.cut_plan
        noisy_cuts = plan is not None and plan.epsilon is not None
        return not noisy_cuts and not any(map(_alters_sums, self.parts))

    def finish(self, model: Any, ctx: Context) -> Any:
        """Pass the model through every part."""
        for i, part in enumerate(self.parts):
            repaired = part.finish(model, _for(part, ctx))
            if i not in ctx.acted and not equal(repaired, model):
                ctx.acted.add(i)
            model = repaired
        return model

    def answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Pass inference scores through every part."""
        for i, part in enumerate(self.parts):
            changed = part.answer(scores, _for(part, ctx))
            if i not in ctx.acted and not equal(changed, scores):
                ctx.acted.add(i)
            scores = changed
        return scores

    def endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Pass what an endpoint answers, and how many rows, through every part."""
        for part in self.parts:
            answers, budget = part.endpoint(answers, budget)
        return answers, budget


def _for(part: Defense, ctx: Context) -> Context:
    """Return what a part may know: rows only if it says that it reads them."""
    return ctx if part.reads_rows else replace(ctx, reader=part.name)


def _alters_sums(part: Defense) -> bool:
    """Tell whether a part may change what is summed: in rows' gradients, or on their way."""
    sends = "outgoing" in part.acts_through
    summed = any(f.metadata.get("summed") for kind in part.guards for f in fields(kind))
    rows = "rows" in part.acts_through and "gradients" in part.acts_on
    return (sends and summed) or rows


def _derived(part: Defense, message: Message, does: str) -> str:
    by_kind = part.guards if does == "guards" else part.summed()
    base = next(kind for kind in type(message).__mro__ if kind in by_kind)
    return (
        f"{type(message).__name__} is derived from {base.__name__}, which {part.name!r} {does}, "
        "and may say more; name the type itself there, or exempt it with a reason"
    )


def equal(a: Any, b: Any) -> bool:
    """Tell whether two values are the same: arrays, and what dataclasses and tuples hold."""
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if is_dataclass(a):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)
