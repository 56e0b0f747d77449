"""Defenses: hooks on a protocol, and the claim they make. They fail closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError, UnguardedMessageError, UsageError
from fedtrees.core.guarantee import Guarantee, NoGuarantee
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import BudgetEvent, Transcript


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
    """

    party: str
    role: str
    schema: Schema
    parameters: Mapping[str, Any]
    streams: Streams
    ledger: list[BudgetEvent]
    _draws: Counter[str] = field(default_factory=Counter)

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
    requires : frozenset of str
        What a protocol must offer (its `offers`) for the defense to make sense.
    gradient_clip : float or None
        Clients clip each row's gradient to [-R, R] and hessian to [0, 2R] before summing.
    least_leaf_rows : int
        Clients that grow trees by themselves leave so many rows on either side of a split.
    unit_hessian : bool
        Whether `gradients` makes every hessian 1.
    bounds_hessian : bool
        Whether it is right only while hessians keep to the loss's own bound.
    """

    name: ClassVar[str] = "defense"
    at: ClassVar[frozenset[str]] = frozenset()
    protects: ClassVar[frozenset[Reveal]] = frozenset()
    guards: ClassVar[tuple[type[Message], ...]] = ()
    exempts: ClassVar[Mapping[type[Message], str]] = {}
    requires: ClassVar[frozenset[str]] = frozenset()
    gradient_clip: float | None = None
    least_leaf_rows: int = 0
    unit_hessian: ClassVar[bool] = False
    bounds_hessian: ClassVar[bool] = False

    def claim(self) -> Guarantee:
        """State what is guaranteed, as published."""
        return NoGuarantee()

    def declares(self, schema: Schema, parameters: Mapping[str, Any]) -> Declared:
        """Publish what the defense does to the statistics (its parameters are no secret)."""
        return Declared()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose what a run really spent; by default the claim."""
        return self.claim()

    def prepare(self, data: Table, ctx: Context) -> Table:
        """Change a party's rows or labels before training."""
        return data

    def gradients(
        self, units: NDArray[np.int64], bits: tuple[int, int], ctx: Context
    ) -> NDArray[np.int64]:
        """Change the gradients and hessians of a client's rows before it sums them.

        Called once a round, after clipping.

        Parameters
        ----------
        units : int64 array, shape (K, n, 2)
            Of every output and row, in fixed point.
        bits : pair of int
            Binary places of gradients and of hessians.
        ctx : Context
        """
        return units

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Change what leaves a party."""
        return message

    def candidates(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Restrict which splits may be chosen; `mask` is bool, shape (n_nodes, total_bins)."""
        return mask

    def audience(self, message: Message, receivers: Sequence[str], ctx: Context) -> Sequence[str]:
        """Restrict which parties get a message."""
        return receivers

    def summed(self) -> tuple[type[Message], ...]:
        """Name the reply types of which only the sum over parties can be opened."""
        return ()

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
        If one part makes hessians 1 and another counts on their bound.
    """

    parts: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        for one in (p for p in self.parts if p.unit_hessian):
            for other in (p for p in self.parts if p.bounds_hessian):
                raise UsageError(
                    f"{one.name!r} makes every row's hessian 1, and {other.name!r} counts on the "
                    "loss's own bound on it; leave one of them out"
                )

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
    def restricts_splits(self) -> bool:
        """Whether any part has a say in which splits may be chosen."""
        return any(type(p).candidates is not Defense.candidates for p in self.parts)

    def claims(self) -> list[Guarantee]:
        """Return each part's claim, in order."""
        return [p.claim() for p in self.parts]

    def spent(self, transcript: Transcript) -> list[Guarantee]:
        """Return what each part spent in a run, in order."""
        return [p.spent(transcript) for p in self.parts]

    def prepare(self, data: Table, ctx: Context) -> Table:
        """Pass a party's rows through every part."""
        for part in self.parts:
            data = part.prepare(data, ctx)
        return data

    def gradients(
        self, units: NDArray[np.int64], bits: tuple[int, int], ctx: Context
    ) -> NDArray[np.int64]:
        """Pass a client's gradients, int64, shape (K, n, 2), through every part."""
        for part in self.parts:
            units = part.gradients(units, bits, ctx)
        return units

    def candidates(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Pass the candidate mask through every part."""
        for part in self.parts:
            mask = part.candidates(mask, tree, ctx)
        return mask

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Pass a message through every part that acts at this role.

        Raises
        ------
        UnguardedMessageError
            If it reveals what a part protects and that part neither guards nor exempts it.
        """
        for part in self.parts:
            if ctx.role not in part.at:
                continue
            exposed = message.reveals & part.protects
            if isinstance(message, part.guards):
                message = part.outgoing(message, ctx)
                if not isinstance(message, Message):
                    raise ProtocolError(
                        f"{part.name!r}: outgoing returned a {type(message).__name__}; "
                        "return the message to send"
                    )
            elif exposed and not isinstance(message, tuple(part.exempts)):
                raise UnguardedMessageError(
                    f"{part.name!r} claims to protect {', '.join(sorted(exposed))}, but "
                    f"{ctx.party!r} is about to send {type(message).__name__}, which it neither "
                    "guards nor exempts; add the type to guards, or to exempts with a reason"
                )
        return message

    def audience(self, message: Message, receivers: Sequence[str], ctx: Context) -> Sequence[str]:
        """Pass the receivers through every part."""
        for part in self.parts:
            receivers = part.audience(message, receivers, ctx)
        return receivers

    def finish(self, model: Any, ctx: Context) -> Any:
        """Pass the model through every part."""
        for part in self.parts:
            model = part.finish(model, ctx)
        return model

    def answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Pass inference scores through every part."""
        for part in self.parts:
            scores = part.answer(scores, ctx)
        return scores
