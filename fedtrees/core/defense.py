"""Defenses: hooks on a protocol, and the claim they make. They fail closed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import Aggregation
from fedtrees.core.channel import Change
from fedtrees.core.cut_plan import CutPlan
from fedtrees.core.deployment import Deployed
from fedtrees.core.errors import LocalDataError, UsageError
from fedtrees.core.guarantee import Guarantee, NoGuarantee
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.party import acting_party
from fedtrees.core.reasons import Reason
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
    """What a hook may know: who acts, the public parameters, that party's randomness, the ledger.

    Attributes
    ----------
    party, role : str
        Who is about to send, or whose data is prepared.
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
    reader : str or None
        Name of the part that is asked, where it does not say that it reads rows.
    columns : intp array, shape (c,), or None
        Which columns the party holds, as positions in the schema; None: it holds no rows.
    roles : mapping of str to str
        Role of every party of the run by name, as the party itself agreed to.
    """

    party: str
    role: str
    schema: Schema
    parameters: Mapping[str, Any]
    streams: Streams
    ledger: list[BudgetEvent]
    acted: set[int] = field(default_factory=set)
    level: Level | None = None
    reader: str | None = None
    columns: NDArray[np.intp] | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    _held: LocalData | None = None
    _draws: Counter[str] = field(default_factory=Counter)

    @property
    def held(self) -> LocalData | None:
        """What the acting party holds, for its own hooks alone.

        Raises `LocalDataError` if another party acts, or none, or if the part does not say that it
        `reads_rows`.
        """
        party = acting_party()
        if party is None or party.name != self.party:
            raise LocalDataError(f"what {self.party!r} holds is for its own hooks alone")
        if self.reader is not None:
            raise LocalDataError(
                f"{self.reader!r} reads what {self.party!r} holds and does not say so; give it "
                "reads_rows = True"
            )
        return self._held

    def count(self, role: str) -> int:
        """Return how many parties of a role take part, by the agreement."""
        return sum(other == role for other in self.roles.values())

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a fresh secret generator of the acting party, another at every call."""
        self._draws[purpose] += 1
        return self.streams.noise.rng(purpose, self._draws[purpose])

    def spend(
        self, mechanism: str, *, scale: float, what: str, l1: float = 0.0, l2: float = 0.0,
        count: int = 1, rate: float = 1.0, trusted: str = "", shares: int = 0, calibrated: int = 0,
    ) -> None:  # fmt: skip
        """Enter noisy releases into the budget ledger (`BudgetEvent`)."""
        event = BudgetEvent(
            self.party, mechanism, l1, scale, what, count, l2, rate, trusted, shares, calibrated
        )
        self.ledger.append(event)


#: Where something is changed: a type of message, a kind of `Stage`, or ``answers``, ``model`` (at
#: its end), ``candidates``, ``shown`` or ``leaves``; and its field.
Place = tuple[type[Message] | str, str]
Site = type[Message] | str


@dataclass(frozen=True)
class Stage:
    """When `Defense.rows` is called, and on what.

    Attributes
    ----------
    kind : {"labels", "gradients", "example-gradients"}
        ``labels``: once, before training, y of shape (n,). ``gradients``: every round of boosting,
        after clipping, int64 in fixed point, shape (K, n, 2). ``example-gradients``: every step of
        a network, float32, shape (n, parameters); what comes back is summed, so that a row that is
        added to it can be noise.
    bits : pair of int
        Binary places of fixed-point gradients and of hessians.
    rate : float
        Of example gradients: probability with which each row takes part in a step.
    steps : int
        How many such steps the party takes in the whole run.
    """

    kind: Literal["labels", "gradients", "example-gradients"]
    bits: tuple[int, int] = (0, 0)
    rate: float = 1.0
    steps: int = 1


#: What a defense may override to act.
HOOKS = (
    "rows", "outgoing", "candidates", "shown", "audience", "summed", "aggregation", "cuts",
    "finish", "answer", "endpoint",
)  # fmt: skip


class Defense:
    """Base of all defenses; every hook is optional, the default changes nothing.

    Fail closed: at the first send by a role in `at`, a message that reveals something in
    `protects` must be of a type in `guards` or in `exempts`, or the run stops.

    Attributes
    ----------
    name : str
        Set by ``@register.defense``.
    acts_through : frozenset of str
        The `HOOKS` that it overrides: it makes sense only where a protocol has room for each. A
        class that overrides others than it says raises `UsageError`.
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
    acts_on : frozenset of str
        Kinds of `Stage` that `rows` acts on; labels are there in every protocol.
    gradient_clip : float or None
        Clients clip each row's gradient to [-R, R] and hessian to [0, 2R] before summing.
    proven : bool
        Whether who sums what it cannot read has a proof that it is clipped.
    least_leaf_rows : int
        Clients that grow trees by themselves leave so many rows on either side of a split.
    unit_hessian : bool
        Whether `rows` makes every hessian 1.
    bounds_hessian : bool
        Whether it is right only while hessians keep to the loss's own bound.
    poisson_sampling : bool
        Whether it is right only while every row is drawn into a batch by itself.
    gradient_engine : str
        Name of the library by which a client computes per-sample gradients of a network and draws
        Poisson batches, for example ``opacus``. Empty for the default of the protocol.
    declared_rows : int
        How many rows each client is declared to have, which rates and steps follow from; 0: as many
        as it has.
    row_bounds : pair of float or None
        Parties of a regression scale rows of their columns down to the first, a Euclidean norm, and
        keep what these bring to a score within the second on either side of 0.
    counts_classes : bool
        Whether `candidates` reads `Level.left`: then class counts are summed beside gradients.
    reads_rows : bool
        Whether a hook reads `Context.held`. What is made of rows that way is in no other part's
        claim, so that beside a claim of epsilon it takes one of its own.
    opens_to : frozenset of str
        Roles that read the sums it seals, beside who asked for them.
    nonexpansive : tuple of Message types and kinds of `Stage`
        Where two tables that differ by a row are no farther apart after this part than before, in
        any norm, and no row brings more: only there may it act before noise is added.
    tries : mapping of str to tuple of float
        Budgets that a bench runs, by the parameter's name, where none is given.
    deployed : mapping of str to Deployed
        Systems that have it, or whose users add it in code of their own, with what is set there.
    needs : tuple of str
        Modules of an extra that it works with.
    """

    name: ClassVar[str] = "defense"
    acts_through: ClassVar[frozenset[str]] = frozenset()
    at: ClassVar[frozenset[str]] = frozenset()
    protects: ClassVar[frozenset[Reveal]] = frozenset()
    guards: ClassVar[tuple[type[Message], ...]] = ()
    exempts: ClassVar[Mapping[type[Message], str]] = {}
    requires: ClassVar[tuple[type[Message], ...]] = ()
    guarantee: ClassVar[Guarantee] = NoGuarantee()
    acts_on: ClassVar[frozenset[str]] = frozenset({"labels", "gradients", "example-gradients"})
    gradient_clip: float | None = None
    proven: bool = True
    least_leaf_rows: int = 0
    unit_hessian: ClassVar[bool] = False
    bounds_hessian: ClassVar[bool] = False
    poisson_sampling: ClassVar[bool] = False
    gradient_engine: str = ""
    declared_rows: int = 0
    row_bounds: tuple[float, float] | None = None
    counts_classes: ClassVar[bool] = False
    reads_rows: ClassVar[bool] = False
    opens_to: ClassVar[frozenset[str]] = frozenset()
    nonexpansive: ClassVar[tuple[Site, ...]] = ()
    tries: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    deployed: ClassVar[Mapping[str, Deployed]] = {}
    needs: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = {hook for hook in HOOKS if getattr(cls, hook) is not getattr(Defense, hook)}
        if own != cls.acts_through:
            said = ", ".join(sorted(cls.acts_through)) or "nothing"
            raise UsageError(
                f"defense {cls.__name__} says that it acts through {said}, and overrides "
                f"{', '.join(sorted(own)) or 'none'}; write acts_through = {frozenset(own)}"
            )

    def claim(self) -> Guarantee:
        """State what is guaranteed, as published; by default `guarantee`."""
        return self.guarantee

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Refuse parties by name and role, or parameters of a protocol, that do not suit.

        Raises `UsageError`.
        """

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State what is done to each field that is changed, from what is public.

        Numbers are in the field's own meaning (gradients, rows), not in a message's units. What is
        drawn or rounded is best drawn and rounded by the very `Channel` that is stated. Of a
        `Stage` the fields are ``y``, ``g``, ``h`` or ``rows``; of ``answers`` ``scores``.
        """
        return {}

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose what a run really spent; by default the claim."""
        return self.claim()

    def rows(self, stage: Stage, values: NDArray[Any], ctx: Context) -> NDArray[Any]:
        """Change what belongs to a party's single rows: labels, or gradients before it sums them.

        `values`: array. As the stage says; the first axis of labels and the second of gradients are
        the rows.
        """
        return values

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Change what leaves a party."""
        return message

    def log_chance(self, message: Message, X: NDArray[np.float32], schema: Schema) -> float:
        """Return the log probability that a client with such columns sends this, in nats.

        For an audit of what is drawn from rows and is no channel; 0: nothing is known of it.
        """
        return 0.0

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

    def undone_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> Reason | None:
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

    def endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Restrict what an endpoint answers one asker (`fedtrees.core.oracle`), and how often."""
        return answers, budget
