"""Defenses: hooks that change the messages, rows or model of a protocol, and their privacy claim.

A defense fails closed. If a message reveals a kind of information that the defense claims to
protect, and the defense neither handles nor permits the message type, the run stops.
`fedtrees.core.composition` combines several defenses. Each of them is then called a *part*. A
defense publishes the conditional distribution of each value that it changes (`Defense.channels`),
so that attacks can adapt to it.

The module also defines `Requirements`, the limits that a defense imposes on a protocol, `CutPlan`,
the plan of a defense that replaces the protocol's choice of cut points, and `Deployed`, the
settings of an existing system that implements a protocol or a defense.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Channel, Removal
from fedtrees.core.errors import LocalDataError, UsageError, missing_attribute, refuse_old_names
from fedtrees.core.guarantee import Guarantee, NoGuarantee
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, Reveal, names_of
from fedtrees.core.parameters import check_parameters
from fedtrees.core.party import acting_party
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Schema
from fedtrees.core.secure_sum import SecureAggregation
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import BudgetEvent, Transcript
from fedtrees.moved import CONTEXT_NAMES, DEFENSE_NAMES


@dataclass(frozen=True)
class CutPlan:
    """Method by which cut points are chosen.

    Attributes
    ----------
    method : {"sketch", "equal-width", "public", "grid"}
        As in the protocols. ``grid``: from the number of rows in the cells of a public grid.
    cells : int
        For a grid, the number of cells per feature. For declared cut points of LightGBM, their
        maximum number.
    rounds : int
        For a grid, the number of times that cells are counted. Each round refines the cells with
        many rows.
    epsilon : float or None
        Privacy cost of all counts together for one row, in nats. None if the counts have no noise.
    fill : bool
        Whether remaining bins beyond the declared cut points are cut among the local values of a
        party.
    """

    method: str
    cells: int = 0
    rounds: int = 1
    epsilon: float | None = None
    fill: bool = False

    def count_scale(self, features: int) -> float:
        """Return the scale of the noise on each count.

        A row is in one cell of each feature in every round, so that its contribution has an L1 norm
        of ``rounds * features``.

        Parameters
        ----------
        features : int
            Number of features that are counted.

        Returns
        -------
        float
            In rows. 0 if the counts have no noise.
        """
        return 0.0 if self.epsilon is None else self.rounds * features / self.epsilon


@dataclass(frozen=True)
class Deployed:
    """Settings by which an existing system runs a protocol or a defense.

    For example, XGBoost contains the protocol `nvflare-hist` in its federated server.

    Attributes
    ----------
    how : str
        Settings that are not parameters, in the notation of the system.
    names : mapping of str to str
        Notation of public parameters in the system, for example ``eta={}``, by the name of the
        parameter in fedtrees.
    only : mapping of str to object
        Parameters that have a fixed value in the system. Other values are not supported.
    """

    how: str
    names: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether the system supports the parameters.

        Parameters
        ----------
        parameters : mapping of str to object
            Public parameters of a protocol or defense.

        Returns
        -------
        bool
            True if every parameter in `only` has its fixed value.
        """
        return all(parameters[name] == value for name, value in self.only.items())

    def settings(self, parameters: Mapping[str, Any]) -> str:
        """Return the settings as text.

        Parameters
        ----------
        parameters : mapping of str to object
            Public parameters of a protocol or defense.

        Returns
        -------
        str
            `how`, followed by the parameters in the notation of the system.
        """
        values = ", ".join(text.format(parameters[name]) for name, text in self.names.items())
        return f"{self.how} ({values})" if values else self.how


#: Public parameters of boosting in XGBoost. Subsampling is left out, because XGBoost draws rows and
#: columns differently.
XGBOOST = {
    "trees": "num_boost_round={}", "max_depth": "max_depth={}", "learning_rate": "eta={}",
    "reg_lambda": "lambda={}", "gamma": "gamma={}", "min_child_weight": "min_child_weight={}",
    "max_bin": "max_bin={}",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class OpenNodes:
    """Nodes of a tree that are to be split, as the party with the labels sees them.

    Attributes
    ----------
    tree, round : int
        Number of the tree, and number of its boosting round.
    nodes : int32 array, shape (k,)
        Node numbers: the root, or children in pairs.
    counts : int64 array, shape (k, K)
        Number of rows of each class in each node. No columns if the target is numeric.
    totals : int64 array, shape (K,)
        Number of all training rows of each class.
    offsets : int32 array, shape (d + 1,)
        The candidate splits of column f are ``offsets[f]:offsets[f + 1]``.
    passive_columns : bool array, shape (d,)
        True for the columns of other parties.
    left : int64 array, shape (k, candidates, K), or None
        Number of rows of each class on the left side of each candidate, without rows that have a
        missing value in its column. None unless a part of the defense requires `class_counts`.
    """

    tree: int
    round: int
    nodes: NDArray[np.int32]
    counts: NDArray[np.int64]
    totals: NDArray[np.int64]
    offsets: NDArray[np.int32]
    passive_columns: NDArray[np.bool_]
    left: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Context:
    """Information that a hook of a defense may use.

    Attributes
    ----------
    party, role : str
        Name and role of the party that is about to send a message, or whose data is prepared.
    schema : Schema
        Columns and classes of the table.
    parameters : mapping
        Public parameters of the protocol (trees, max_depth, reg_lambda, ...).
    streams : Streams
        Random streams of the acting party.
    ledger : list of BudgetEvent
        Noisy releases of the party so far, see `record_release`.
    acted : set of int
        Positions of the parts of a composition that have changed something.
    open_nodes : OpenNodes or None
        The nodes that `allowed_splits` and `visible_nodes` restrict, in protocols with a vertical
        partition.
    reader : str or None
        Name of the current part if it does not require `reads_local_data`. `local_data` then raises
        an error.
    columns : intp array, shape (c,), or None
        Columns of the party, as positions in the schema. None if it has no rows.
    roles : mapping of str to str
        Role of every party of the run by name, from the party's copy of the agreement.
    """

    party: str
    role: str
    schema: Schema
    parameters: Mapping[str, Any]
    streams: Streams
    ledger: list[BudgetEvent]
    acted: set[int] = field(default_factory=set)
    open_nodes: OpenNodes | None = None
    reader: str | None = None
    columns: NDArray[np.intp] | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    _local_data: LocalData | None = None
    _draws: Counter[str] = field(default_factory=Counter)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, CONTEXT_NAMES)

    @property
    def local_data(self) -> LocalData | None:
        """Local data of the acting party. Only hooks that this party runs may read it.

        Raises
        ------
        LocalDataError
            If another party or no party acts, or if the part does not require `reads_local_data`.
        """
        party = acting_party()
        if party is None or party.name != self.party:
            raise LocalDataError(
                f"the local data of {self.party!r} may be read only by the hooks of this party"
            )
        if self.reader is not None:
            raise LocalDataError(
                f"{self.reader!r} reads the local data of {self.party!r} without declaring it; "
                "give it requirements = Requirements(reads_local_data=True)"
            )
        return self._local_data

    def count(self, role: str) -> int:
        """Return the number of parties of a role, according to the agreement.

        Parameters
        ----------
        role : str
            The role, for example ``"client"``.

        Returns
        -------
        int
            Number of parties.
        """
        return sum(other == role for other in self.roles.values())

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a new secret generator of the acting party.

        Parameters
        ----------
        purpose : str
            Name of the random stream, for example ``"noise"``.

        Returns
        -------
        numpy.random.Generator
            Each call returns a different generator, also for the same purpose.
        """
        self._draws[purpose] += 1
        return self.streams.noise.rng(purpose, self._draws[purpose])

    def record_release(
        self, mechanism: str, *, scale: float, what: str, l1: float = 0.0, l2: float = 0.0,
        count: int = 1, rate: float = 1.0, trusted: str = "", shares: int = 0, calibrated: int = 0,
    ) -> None:  # fmt: skip
        """Enter noisy releases into the ledger of the acting party.

        Parameters
        ----------
        mechanism : str
            Distribution of the noise, see `BudgetEvent`.
        scale : float
            Scale of the noise. For Gaussian noise, its standard deviation.
        what : str
            Name of the message type that contains the noise.
        l1, l2 : float
            L1 and L2 sensitivity of the release to one row, in the unit of `scale`.
        count : int
            Number of releases of this sensitivity, each with independent noise.
        rate : float
            Probability that a row takes part in a release.
        trusted : str
            Role that must be trusted, empty if there is none.
        shares, calibrated : int
            Number of clients that add a share of the noise, and number of shares that the claim
            needs.
        """
        event = BudgetEvent(
            self.party, mechanism, l1, scale, what, count, l2, rate, trusted, shares, calibrated
        )
        self.ledger.append(event)


#: Sites that are no message type, with the names of their fields.
SITES: Mapping[str, tuple[str, ...]] = {
    "labels": ("y",),  # kinds of `ExampleStage`
    "gradients": ("g", "h"),
    "example-gradients": ("rows",),
    "allowed_splits": ("splits",),  # masks of the hooks of these names
    "visible_nodes": ("nodes",),
    "leaves": ("rows",),  # limit on the number of rows of a leaf, see `Requirements.min_leaf_rows`
    "model": ("trees",),  # at the end of the training, see `Defense.repair_model`
    "answers": ("scores",),  # of inference queries, see `Defense.transform_answer`
}
#: Where a defense changes values: a message type, or one of the words in `SITES`.
Site = type[Message] | str
#: A site together with the name of the changed field. For example, ``(Histogram, "sums")`` or
#: ``("gradients", "g")``.
Place = tuple[Site, str]
#: Changes of a defense or protocol, by place.
Channels = Mapping[Place, Change]


@dataclass(frozen=True)
class ExampleStage:
    """Time at which `Defense.transform_examples` is called, and the kind of its values.

    Attributes
    ----------
    kind : {"labels", "gradients", "example-gradients"}
        - ``labels``: once before the training. The values are y, shape (n,).
        - ``gradients``: in every boosting round after clipping. The values are fixed-point int64
          numbers, shape (K, n, 2).
        - ``example-gradients``: in every step of a network. The values are float32, shape (n,
          parameters). The rows of the result are summed, so that a defense can append a row of
          noise.
    bits : pair of int
        Number of binary places of fixed-point gradients and of hessians.
    rate : float
        For example gradients, the probability that a row takes part in a step.
    steps : int
        For example gradients, the number of steps of the party in the run.
    """

    kind: Literal["labels", "gradients", "example-gradients"]
    bits: tuple[int, int] = (0, 0)
    rate: float = 1.0
    steps: int = 1


def _requirement(default: Any, merge: Callable[[Sequence[Any]], Any]) -> Any:
    """Return a field of `Requirements` with the function that merges its non-default values."""
    return field(default=default, metadata={"merge": merge})


def _smallest_bounds(bounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the smallest first and the smallest second bound."""
    return min(b[0] for b in bounds), min(b[1] for b in bounds)


@dataclass(frozen=True)
class Requirements:
    """Limits and data that a defense requires from the parties of a protocol.

    The first six fields are limits. A defense that sets one of them only fits a protocol whose
    `ProtocolInfo.capabilities` contain its name.

    Attributes
    ----------
    gradient_clip : float or None
        Before summing, clients clip the gradient of each row to [-R, R] and its hessian to [0, 2R].
    min_leaf_rows : int
        Smallest number of rows on each side of a split, for clients that grow trees on local data.
    declared_rows : int
        Declared number of rows of each client, from which rates and steps follow. 0: the true
        number.
    row_bounds : pair of float or None
        For regressions: each party scales the rows of its columns down to the first bound, a
        Euclidean norm, and clips its contribution to a score to the second bound on both sides of
        0.
    poisson_sampling : bool
        Whether the claim assumes that every row enters a batch independently (Poisson sampling).
    gradient_engine : str
        Name of the library by which a client computes per-sample gradients of a network and draws
        Poisson batches, for example ``opacus``. Empty for the default of the protocol.
    unit_hessian : bool
        Whether `Defense.transform_examples` sets every hessian to 1.
    bounded_hessian : bool
        Whether the claim assumes that hessians are within the bound of the loss function.
    class_counts : bool
        Whether `Defense.allowed_splits` reads `OpenNodes.left`. Class counts are then summed in
        addition to gradients.
    reads_local_data : bool
        Whether a hook reads the local data of its party (`Context.local_data`). The claims of other
        parts do not cover values that the hook computes from this data. In a composition with a
        claim of epsilon, such a part must therefore claim an epsilon itself.
    range_proofs : bool
        Whether the party that sums values it cannot read receives a proof that they are clipped.

    Examples
    --------
    >>> from fedtrees import Requirements
    >>> Requirements(gradient_clip=1.0, bounded_hessian=True).gradient_clip
    1.0
    """

    gradient_clip: float | None = _requirement(None, min)
    min_leaf_rows: int = _requirement(0, max)
    declared_rows: int = _requirement(0, max)
    row_bounds: tuple[float, float] | None = _requirement(None, _smallest_bounds)
    poisson_sampling: bool = _requirement(False, any)
    gradient_engine: str = _requirement("", lambda names: names[0])
    unit_hessian: bool = _requirement(False, any)
    bounded_hessian: bool = _requirement(False, any)
    class_counts: bool = _requirement(False, any)
    reads_local_data: bool = _requirement(False, any)
    range_proofs: bool = _requirement(True, all)

    @property
    def limits(self) -> frozenset[str]:
        """Names of the limits that differ from their defaults."""
        return frozenset(n for n in LIMITS if getattr(self, n) != getattr(NO_REQUIREMENTS, n))

    @classmethod
    def merge(cls, parts: Iterable[Requirements]) -> Requirements:
        """Return requirements that satisfy all parts: the strictest value of each field.

        Parameters
        ----------
        parts : iterable of Requirements
            Requirements of the parts of a composition.

        Returns
        -------
        requirements : Requirements
            A field has its default if no part changes it. For `gradient_engine`, the first engine
            that a part names is used.
        """
        all_parts, merged = list(parts), {}
        for f in fields(cls):
            values = [v for part in all_parts if (v := getattr(part, f.name)) != f.default]
            if values:
                merged[f.name] = f.metadata["merge"](values)
        return cls(**merged)


NO_REQUIREMENTS = Requirements()
#: Fields of `Requirements` that only some protocols support.
LIMITS = (
    "gradient_clip", "min_leaf_rows", "declared_rows", "row_bounds", "poisson_sampling",
    "gradient_engine",
)  # fmt: skip


@dataclass(frozen=True)
class DefenseInfo:
    """Facts about a defense that training does not use.

    Attributes
    ----------
    bench_grid : mapping of str to tuple of float
        Default budgets that a bench runs, by name of the parameter.
    deployments : mapping of str to Deployed
        Systems that contain the defense, or whose users can add it, with the settings of the
        system.

    Examples
    --------
    >>> from fedtrees import DefenseInfo
    >>> DefenseInfo(bench_grid={"epsilon": (1.0, 8.0)}).bench_grid["epsilon"]
    (1.0, 8.0)
    """

    bench_grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    deployments: Mapping[str, Deployed] = field(default_factory=dict)


#: Hooks that a defense may override. Most defenses need one of two: `Defense.transform_message`
#: changes a message before a party sends it, and `Defense.transform_examples` changes labels or
#: gradients of single rows.
HOOKS = (
    "transform_examples", "transform_message", "allowed_splits", "visible_nodes", "audience",
    "secure_aggregation", "cut_plan", "repair_model", "transform_answer", "limit_endpoint",
)  # fmt: skip


class Defense:
    """Base class of all defenses. Every hook is optional, and its default changes nothing.

    A *hook* is a method by which a defense changes something while the protocol trains or answers
    queries. The ten hooks are listed in `HOOKS`. The remaining methods change nothing: `claim`,
    `channels`, `check` and `spent` describe the defense or check a run, `broken_by` and
    `log_likelihood` serve its evaluation.

    Most defenses declare the attributes `roles`, `protects`, `handled_types`, `permitted_types`,
    `applies_to` and `guarantee`, and override `channels` and one hook.

    A defense fails closed: when a party with a role in `roles` sends a message that reveals
    something in `protects`, the type of the message must be in `handled_types` or
    `permitted_types`. Otherwise the run stops.

    Attributes
    ----------
    name : str
        Registered name, set by ``@register.defense``.
    hooks : frozenset of str
        Names of the `HOOKS` that the class overrides, set when the class is defined. The defense
        only fits protocols that call each of them.
    roles : frozenset of str
        Roles whose messages pass `transform_message`.
    protects : frozenset of Reveal
        Kinds of information that the privacy claim covers.
    handled_types : tuple of Message types
        Message types that `transform_message` handles.
    permitted_types : mapping of Message type to str
        Message types that are sent although they reveal a protected kind of information, each with
        the reason why this is acceptable.
    applies_to : tuple of Message types
        The defense only fits protocols that send one of these types. Empty: one of `handled_types`.
    summed_types : tuple of Message types
        Reply types of which only the sum over parties can be opened. This attribute takes effect
        without a hook: the host stores such a reply and sends it in protected form
        (`Composition.requires_secure_sum`).
    additional_readers : frozenset of str
        Roles that read these sums in addition to the party that requested them.
    example_stages : frozenset of str
        Kinds of `ExampleStage` that `transform_examples` changes. Labels exist in every protocol.
    nonexpansive : tuple of Message types and kinds of `ExampleStage`
        Sites at which the part does not increase the distance of two tables that differ in one row,
        in any norm, nor the contribution of any row. Only there may it act before noise is added.
    guarantee : Guarantee
        The claim, if it does not depend on parameters.
    requirements : Requirements
        Limits and data that the defense requires from the parties. A property if they depend on
        parameters.
    info : DefenseInfo
        Facts that training does not use.

    Examples
    --------
    >>> from fedtrees.core.registry import register
    >>> from fedtrees.core.specs import Spec
    >>> defense = register.make("defense", Spec("min-leaf", {"k": 20}))
    >>> defense.k
    20
    >>> print(defense.claim())
    structural
    """

    name: ClassVar[str] = "defense"
    hooks: ClassVar[frozenset[str]] = frozenset()
    roles: ClassVar[frozenset[str]] = frozenset()
    protects: ClassVar[frozenset[Reveal]] = frozenset()
    handled_types: ClassVar[tuple[type[Message], ...]] = ()
    permitted_types: ClassVar[Mapping[type[Message], str]] = {}
    applies_to: ClassVar[tuple[type[Message], ...]] = ()
    summed_types: ClassVar[tuple[type[Message], ...]] = ()
    additional_readers: ClassVar[frozenset[str]] = frozenset()
    example_stages: ClassVar[frozenset[str]] = frozenset(
        {"labels", "gradients", "example-gradients"}
    )
    nonexpansive: ClassVar[tuple[Site, ...]] = ()
    guarantee: ClassVar[Guarantee] = NoGuarantee()
    info: ClassVar[DefenseInfo] = DefenseInfo()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        refuse_old_names(cls, "defense", DEFENSE_NAMES)
        cls.hooks = frozenset(h for h in HOOKS if getattr(cls, h) is not getattr(Defense, h))

    def __post_init__(self) -> None:
        check_parameters(self)

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, DEFENSE_NAMES)

    @property
    def requirements(self) -> Requirements:
        """Limits and data that the defense requires from the parties. By default none."""
        return NO_REQUIREMENTS

    @property
    def extra_packages(self) -> tuple[str, ...]:
        """Modules of an optional dependency that the defense imports. By default none."""
        return ()

    def claim(self) -> Guarantee:
        """Return the claimed guarantee as published, by default `guarantee`."""
        return self.guarantee

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Check the parties, by name and role, and the public parameters of a protocol.

        Parameters
        ----------
        roles : mapping of str to str
            Role of every party by name.
        parameters : mapping of str to object
            Public parameters of the protocol by name.

        Raises
        ------
        UsageError
            If the defense does not support them.
        """

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """Return the change of each field that the defense changes, from public information only.

        Scales and steps are in the meaning of the field (gradients, rows) and not in the units of a
        message. For example, a `Histogram` contains fixed-point integers, but the scale of its
        noise is stated for gradients as real numbers. A defense should draw and round with the same
        `Channel` objects that it returns here. The fields of an `ExampleStage` are ``y``, ``g``,
        ``h`` or ``rows``. The field of ``answers`` is ``scores``.

        Parameters
        ----------
        schema : Schema
            Columns and classes of the table.
        parameters : mapping of str to object
            Public parameters of the protocol by name.

        Returns
        -------
        channels : mapping of (Message type or str, str) to Change
            Change of every changed field, by site and name of the field (`Place`). By default, the
            mapping is empty.
        """
        return {}

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compute the guarantee that a run really provided, by default the claim.

        Parameters
        ----------
        transcript : Transcript
            Messages and noisy releases of the run.

        Returns
        -------
        guarantee : Guarantee
            For example, the composed epsilon of the releases, in nats.
        """
        return self.claim()

    def transform_examples(
        self, stage: ExampleStage, values: NDArray[Any], ctx: Context
    ) -> NDArray[Any]:
        """Change values of single rows of a party: labels, or gradients before they are summed.

        Parameters
        ----------
        stage : ExampleStage
            Time and kind of the values.
        values : array
            Shape and dtype as described in `ExampleStage`. Rows are the first axis of labels and
            the second axis of gradients.
        ctx : Context
            Context of the acting party.

        Returns
        -------
        values : array
            Of the same dtype.
        """
        return values

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Return the message that a party sends in place of `message`.

        Parameters
        ----------
        message : Message
            The message that the protocol sends.
        ctx : Context
            Context of the sender.

        Returns
        -------
        message : Message
            By default, the same message.
        """
        return message

    def log_likelihood(self, message: Message, X: NDArray[np.float32], schema: Schema) -> float:
        """Return the log probability, in nats, that a client with the columns X sends this message.

        The audit uses it for values that are drawn from rows and that no channel describes.

        Parameters
        ----------
        message : Message
            The message that was sent.
        X : float32 array, shape (n, d)
            Rows of the client.
        schema : Schema
            Columns of the table.

        Returns
        -------
        log_probability : float
            In nats. 0 means that the defense does not know the probability.
        """
        return 0.0

    def allowed_splits(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Restrict which splits may be chosen.

        Parameters
        ----------
        mask : bool array, shape (n_nodes, total_bins)
            True for the splits that are allowed so far.
        tree : int
            Number of the tree.
        ctx : Context
            Context of the acting party.

        Returns
        -------
        mask : bool array of the same shape
            True for the splits that remain allowed.
        """
        return mask

    def visible_nodes(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Restrict of which nodes other parties learn the rows.

        Nodes are shown in pairs of siblings. No descendant of a hidden node is shown. If the root
        is hidden, the other parties do not take part in the tree.

        Parameters
        ----------
        mask : bool array, shape (n_nodes,)
            True for the nodes that are shown so far.
        tree : int
            Number of the tree.
        ctx : Context
            Context of the acting party.

        Returns
        -------
        mask : bool array of the same shape
            True for the nodes that are still shown.
        """
        return mask

    def audience(self, message: Message, receivers: Sequence[str], ctx: Context) -> Sequence[str]:
        """Restrict which parties receive a message.

        Parameters
        ----------
        message : Message
            The message before `transform_message`.
        receivers : sequence of str
            Names of the parties that would receive it.
        ctx : Context
            Context of the sender.

        Returns
        -------
        receivers : sequence of str
            Names of the parties that receive the message.
        """
        return receivers

    def secure_aggregation(self) -> SecureAggregation | None:
        """Create the secure sum of one run, None to use the ideal functionality."""
        return None

    def broken_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> Reason | None:
        """Return why these colluding principals can open the sealed values, None if they cannot.

        Parameters
        ----------
        principals : sequence of str
            Names of the colluding parties.
        roles : mapping of str to str
            Role of every party by name. Empty if the parties are not known yet.

        Returns
        -------
        reason : Reason or None
            For example, the server colludes with enough clients to reconstruct the masks.
        """
        return None

    def cut_plan(self) -> CutPlan | None:
        """Return a plan that replaces the protocol's choice of cut points, None for no change."""
        return None

    def repair_model(self, model: Any, ctx: Context) -> Any:
        """Change the model after the training. The change is recorded.

        Parameters
        ----------
        model : Model
            Result of `Coordinator.train`.
        ctx : Context
            Context of the coordinator.

        Returns
        -------
        model : Model
            The model that is released, or used for predictions. By default, the same model.
        """
        return model

    def transform_answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Change the scores that an inference query receives.

        Parameters
        ----------
        scores : float64 array, shape (n,) or (n, K)
            Probabilities of class 1 if there are two classes, of each class if there are more, or
            predicted values.
        ctx : Context
            Context of the coordinator.

        Returns
        -------
        scores : float64 array of the same shape
            By default, the same scores.
        """
        return scores

    def limit_endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Restrict the answers of an inference endpoint and the number of rows that it answers.

        Parameters
        ----------
        answers : {"score", "leaf-ids", "label"}
            Requested kind of answers, as in `fedtrees.core.endpoint.Oracle`.
        budget : int
            Number of rows that the threat model may query.

        Returns
        -------
        answers : {"score", "leaf-ids", "label"}
            Kind of the answers that the endpoint gives.
        budget : int
            Number of rows that the endpoint answers.
        """
        return answers, budget


class ChannelDefense(Defense):
    """Base of defenses that change each message exactly as `channels` states.

    A `Channel` is applied in the unit of the field, and a `Removal` removes the field or replaces
    it by its constant. Fields without a value, and other kinds of changes, stay as they are.

    Attributes
    ----------
    randomness : str
        Name of the random stream of `Context.rng` that all fields of a message draw from.

    Examples
    --------
    >>> from fedtrees.core.registry import register
    >>> from fedtrees.core.specs import Spec
    >>> noise = register.make("defense", Spec("laplace-hist", {"epsilon": 4}))
    >>> from fedtrees import ChannelDefense
    >>> isinstance(noise, ChannelDefense)
    True
    """

    randomness: ClassVar[str] = "noise"

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Apply the channels of the message type to its fields, in the order of `channels`.

        Parameters
        ----------
        message : Message
            The message that the protocol sends.
        ctx : Context
            Context of the sender, whose generator draws the noise.

        Returns
        -------
        message : Message
            A message of the same type.
        """
        declared = self.channels(ctx.schema, ctx.parameters).items()
        of_message = {name: change for (site, name), change in declared if site is type(message)}
        if unknown := [name for name in of_message if not hasattr(message, name)]:
            kind = type(message).__name__
            raise UsageError(
                f"{self.name!r} states a channel for {kind}.{unknown[0]}, but the fields of {kind} "
                f"are {', '.join(names_of(message))}"
            )
        changes = {n: c for n, c in of_message.items() if getattr(message, n) is not None}
        channels = [change for change in changes.values() if isinstance(change, Channel)]
        rng = None if all(c.deterministic for c in channels) else ctx.rng(self.randomness)
        values: dict[str, Any] = {}
        for name, change in changes.items():
            value = getattr(message, name)
            if isinstance(change, Channel) and np.size(value):
                values[name] = change.in_units_of(*message.unit_of(name)).send(value, rng)
            elif isinstance(change, Removal):
                constant = change.constant
                values[name] = None if constant is None else np.full_like(value, constant)
        return replace(message, **values)
