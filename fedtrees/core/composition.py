"""Composition of defenses: every hook is applied part by part, and conflicts are refused.

A part is one defense of a composition. For example, ``hist-rounding+secure-sum`` has two parts.

An error in a hook that changes a message names the line of the defense, the field of the message,
the unit of its numbers and a remedy. Without this check, a field of another dtype would fail later,
at the party that adds it.
"""

import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Share
from fedtrees.core.defense import Context, CutPlan, Defense, ExampleStage, Place, Requirements
from fedtrees.core.errors import (
    FedtreesError,
    ProtocolError,
    UnguardedMessageError,
    missing_attribute,
)
from fedtrees.core.guarantee import ActedOnNothing, Guarantee
from fedtrees.core.messages import Message, names_of
from fedtrees.core.noise_order import misplaced
from fedtrees.core.reasons import Reason, Unfit
from fedtrees.core.schema import Schema
from fedtrees.core.secure_sum import SecureAggregation
from fedtrees.core.transcript import Transcript
from fedtrees.moved import REQUIREMENT_NAMES

Value = TypeVar("Value")


@dataclass(frozen=True)
class Composition:
    """Defenses that are applied in the order in which they are written.

    Each defense of a composition is called a part. The composition without parts is called
    ``none``. Secure sums are always last, wherever the defense that requires them is written: the
    host first applies every `transform_message` to a reply, and only then protects its summed
    fields (`Host.handle_request`).

    Attributes
    ----------
    parts : tuple of Defense
        The defenses in order.

    Raises
    ------
    Unfit
        - One part sets hessians to 1 and another relies on the bound of hessians.
        - Two parts choose cut points, or two parts perturb labels, or two parts supply cryptography
          for sums.
        - One part acts before the noise on which the claim of another relies
          (`fedtrees.core.noise_order`).
    """

    parts: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        # A hessian of 1 exceeds the bound of the loss function.
        for one in (p for p in self.parts if p.requirements.unit_hessian):
            for other in (p for p in self.parts if p.requirements.bounded_hessian):
                raise Unfit(Reason("hessians-of-one", subject=one.name, other=other.name))
        # At most one part may decide each of these.
        once = {
            "cuts-settled-twice": [p.name for p in self.parts if p.cut_plan() is not None],
            "sums-sealed-twice": [p.name for p in self.parts if "secure_aggregation" in p.hooks],
            "labels-answered-twice": [p.name for p in self.parts if p.example_stages == {"labels"}],
        }
        for code, names in once.items():
            if len(names) > 1:
                raise Unfit(Reason(code, names=" and ".join(map(repr, names))))
        reason = misplaced(self.parts)
        if reason:
            raise Unfit(reason)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, REQUIREMENT_NAMES)

    @cached_property
    def requirements(self) -> Requirements:
        """Requirements that satisfy those of all parts."""
        return Requirements.merge(part.requirements for part in self.parts)

    @property
    def hooks(self) -> frozenset[str]:
        """Names of the hooks that any part overrides."""
        return frozenset().union(*(part.hooks for part in self.parts))

    @property
    def summed_types(self) -> tuple[type[Message], ...]:
        """Reply types of which only the sum can be opened."""
        return tuple(t for p in self.parts for t in p.summed_types)

    def changes(
        self, place: Place, schema: Schema, parameters: Mapping[str, Any], role: str = ""
    ) -> list[Change]:
        """Return the declared changes of a field, in the order of the parts.

        Parameters
        ----------
        place : Place
            Site and field.
        schema : Schema
            Columns and classes of the table.
        parameters : mapping
            Public parameters of the protocol.
        role : str
            Role of the sender. Only parts that act at this role are included. Empty: all parts.

        Returns
        -------
        list of Change
            Changes in the order in which the parts apply them.
        """
        acting = (p for p in self.parts if isinstance(place[0], str) or not role or role in p.roles)
        each = (p.channels(schema, parameters).get(place) for p in acting)
        return [change for change in each if change is not None]

    def min_noise_shares(
        self, schema: Schema, parameters: Mapping[str, Any]
    ) -> Mapping[type[Message], int]:
        """Return the message types in which a part adds a share of noise.

        Parameters
        ----------
        schema : Schema
            Columns and classes of the table.
        parameters : mapping
            Public parameters of the protocol.

        Returns
        -------
        mapping of type to int
            `fedtrees.core.channel.Share.least` by message type: the number of shares that must
            arrive.
        """
        laws = (law for p in self.parts for law in p.channels(schema, parameters).items())
        return {
            kind: change.least
            for (kind, _), change in laws
            if isinstance(change, Share) and not isinstance(kind, str)
        }

    def cut_plan(self) -> CutPlan | None:
        """Return the plan of the part that chooses cut points, None if there is no such part."""
        return next((plan for p in self.parts if (plan := p.cut_plan()) is not None), None)

    @property
    def changes_examples(self) -> bool:
        """Whether any part changes the gradients of single rows of a network."""
        return any(_changes_examples(part, "example-gradients") for part in self.parts)

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Check parties and parameters with every part.

        Parameters
        ----------
        roles : mapping of str to str
            Role of each party, by name.
        parameters : mapping
            Public parameters of the protocol.

        Raises
        ------
        UsageError
            If a part refuses them.
        """
        for part in self.parts:
            part.check(roles, parameters)

    def claims(self) -> list[Guarantee]:
        """Return the claim of each part, in order."""
        return [p.claim() for p in self.parts]

    def spent(self, transcript: Transcript) -> list[Guarantee]:
        """Return the guarantee that each part really provided in a run.

        Parameters
        ----------
        transcript : Transcript
            Messages and privacy-loss events of the run.

        Returns
        -------
        list of Guarantee
            Guarantees in the order of the parts. A part that changed nothing guarantees nothing
            (`fedtrees.core.guarantee.ActedOnNothing`).
        """
        return [
            p.spent(transcript) if i in transcript.acted else ActedOnNothing()
            for i, p in enumerate(self.parts)
        ]

    def transform_examples(
        self, stage: ExampleStage, values: NDArray[Any], ctx: Context
    ) -> NDArray[Any]:
        """Apply every part to values of single rows of a party.

        Parameters
        ----------
        stage : ExampleStage
            Time and kind of the values.
        values : array
            As described in `ExampleStage`.
        ctx : Context
            Context of the acting party.

        Returns
        -------
        array
            Changed values, of the same shape.
        """
        return self._transformed("transform_examples", values, ctx, stage)

    def _transformed(self, hook: str, value: Value, ctx: Context, *arguments: Any) -> Value:
        """Apply one hook of every part to a value, and record which parts acted."""
        for i, part in enumerate(self.parts):
            n_events = len(ctx.ledger)
            changed = getattr(part, hook)(*arguments, value, _for(part, ctx))
            paid = len(ctx.ledger) > n_events  # noise may be zero, so that nothing changes
            if i not in ctx.acted and (paid or not equal(changed, value)):
                ctx.acted.add(i)
            value = changed
        return value

    def allowed_splits(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Apply every part to the mask of candidate splits. No part can allow a forbidden split.

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
        bool array, shape (n_nodes, total_bins)
            True for the splits that every part allows.
        """
        return self._masked("allowed_splits", mask, tree, ctx)

    def visible_nodes(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Apply every part to the mask of shown nodes. No part can show a hidden node.

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
        bool array, shape (n_nodes,)
            True for the nodes that every part shows.
        """
        return self._masked("visible_nodes", mask, tree, ctx)

    def _masked(
        self, hook: str, mask: NDArray[np.bool_], tree: int, ctx: Context
    ) -> NDArray[np.bool_]:
        """Apply one hook of every part to a mask, and record which parts changed it."""
        for i, part in enumerate(self.parts):
            # The intersection guarantees that no part allows what another part forbids.
            changed = mask & getattr(part, hook)(mask.copy(), tree, _for(part, ctx))
            if i not in ctx.acted and not np.array_equal(changed, mask):
                ctx.acted.add(i)
            mask = changed
        return mask

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Apply every part that acts at the sender's role to a message.

        Parameters
        ----------
        message : Message
            The message that a party is about to send.
        ctx : Context
            Context of the sender.

        Returns
        -------
        Message
            The message that is sent.

        Raises
        ------
        UnguardedMessageError
            If the message reveals a kind of information that a part protects, and the part neither
            handles nor permits its type. Types are compared exactly: a subclass of a handled type,
            for example with one more field, is refused as well.
        ProtocolError
            As in `fedtrees.core.composition.Composition.transform_message`.
        """
        for i, part in enumerate(self.parts):
            if ctx.role not in part.roles:
                continue
            exposed = message.reveals & part.protects
            if type(message) in part.handled_types:
                sent = _changed_message(part, message, _for(part, ctx))
                if i not in ctx.acted and (exposed - sent.reveals or not equal(sent, message)):
                    ctx.acted.add(i)
                message = sent
            # A subclass of a handled type may contain more, so that it is refused.
            elif type(message) not in part.permitted_types and isinstance(
                message, part.handled_types
            ):
                raise UnguardedMessageError(
                    _subclass_error(part, message, "handles", part.handled_types)
                )
            elif exposed and type(message) not in part.permitted_types:
                raise UnguardedMessageError(
                    f"{part.name!r} claims to protect {', '.join(sorted(exposed))}, but "
                    f"{ctx.party!r} is about to send {type(message).__name__}, which it neither "
                    "handles nor permits; add the type to handled_types, or to permitted_types "
                    "with a reason"
                )
        return message

    def audience(self, message: Message, receivers: Sequence[str], ctx: Context) -> Sequence[str]:
        """Apply every part to the receivers of a message.

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
        sequence of str
            Names of the parties that receive the message.
        """
        for i, part in enumerate(self.parts):
            chosen = part.audience(message, receivers, _for(part, ctx))
            if list(chosen) != list(receivers):
                ctx.acted.add(i)
            receivers = chosen
        return receivers

    def requires_secure_sum(self, message: Message, ctx: Context) -> bool:
        """Return whether a part permits opening such replies only as a sum (`summed_types`).

        These parts are recorded as having acted.

        Parameters
        ----------
        message : Message
            Reply of a party.
        ctx : Context
            Context of this party.

        Returns
        -------
        bool
            True if the type of the reply is a summed type of any part.

        Raises
        ------
        UnguardedMessageError
            If the reply is of a subclass of a summed type. It could contain more fields than the
            part expects.
        """
        acting = [i for i, part in enumerate(self.parts) if type(message) in part.summed_types]
        for part in self.parts:
            if not acting and isinstance(message, part.summed_types):
                raise UnguardedMessageError(
                    _subclass_error(part, message, "sums", part.summed_types)
                )
        ctx.acted.update(acting)
        return bool(acting)

    def secure_aggregation(self) -> SecureAggregation | None:
        """Create the secure sum of one run.

        Returns
        -------
        SecureAggregation or None
            The cryptography of the part that supplies it. None if no part does.
        """
        supplied = (part.secure_aggregation() for part in self.parts)
        return next((aggregation for aggregation in supplied if aggregation is not None), None)

    @property
    def sums_exactly(self) -> bool:
        """Whether summed replies follow from rows only, so that no part changes them.

        A part can change sums by adding noise, rounding or suppressing.
        """
        plan = self.cut_plan()
        noisy_cuts = plan is not None and plan.epsilon is not None
        return not noisy_cuts and not any(map(_alters_sums, self.parts))

    def repair_model(self, model: Any, ctx: Context) -> Any:
        """Apply every part to the model after training.

        Parameters
        ----------
        model : object
            The trained model.
        ctx : Context
            Context of the coordinator.

        Returns
        -------
        object
            The changed model, or the same one.
        """
        return self._transformed("repair_model", model, ctx)

    def transform_answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Apply every part to the scores of an inference query.

        Parameters
        ----------
        scores : float64 array, shape (n,) or (n, K)
            Predictions of the model.
        ctx : Context
            Context of the party that answers.

        Returns
        -------
        float64 array of the same shape
            Scores that the query receives.
        """
        return self._transformed("transform_answer", scores, ctx)

    def limit_endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Apply every part to the limits of an inference endpoint.

        Parameters
        ----------
        answers : {"score", "leaf-ids", "label"}
            Requested kind of answers, as in `fedtrees.core.endpoint.Oracle`.
        budget : int
            Number of rows that the threat model may query.

        Returns
        -------
        answers : {"score", "leaf-ids", "label"}
            Kind of answers after the restrictions of all parts.
        budget : int
            Number of rows after the restrictions of all parts.
        """
        for part in self.parts:
            answers, budget = part.limit_endpoint(answers, budget)
        return answers, budget


def _for(part: Defense, ctx: Context) -> Context:
    """Return the context of a part. It gives access to rows only if the part declares this."""
    # `Context.local_data` raises an error that names the reader.
    return ctx if part.requirements.reads_local_data else replace(ctx, reader=part.name)


def _alters_sums(part: Defense) -> bool:
    """Return whether a part may change summed values: gradients of rows, or sent sums."""
    sends = "transform_message" in part.hooks
    summed = any(f.metadata.get("summed") for kind in part.handled_types for f in fields(kind))
    return (sends and summed) or _changes_examples(part, "gradients")


def _changes_examples(part: Defense, kind: str) -> bool:
    """Return whether a part changes values of single rows of a kind of `ExampleStage`."""
    return "transform_examples" in part.hooks and kind in part.example_stages


def _subclass_error(
    part: Defense, message: Message, does: str, types: tuple[type[Message], ...]
) -> str:
    """Return the error message for a subclass of one of the types that a part handles."""
    base = next(kind for kind in type(message).__mro__ if kind in types)
    return (
        f"{type(message).__name__} is derived from {base.__name__}, which {part.name!r} {does}, "
        "and may reveal more; name the type there, or permit it with a reason"
    )


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal, including arrays in dataclasses and tuples.

    Parameters
    ----------
    a, b : object
        Values of a message or of a defense.

    Returns
    -------
    bool
        True if types, shapes and contents agree. NaN equals NaN in arrays of floats.
    """
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if is_dataclass(a):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)


def _changed_message(part: Defense, message: Message, ctx: Context) -> Message:
    """Return the message that a defense sends in place of a message.

    Parameters
    ----------
    part : Defense
        The defense.
    message : Message
        The message of the party.
    ctx : Context
        Context of the sender.

    Raises
    ------
    ProtocolError
        If the hook raises an error of Python or numpy, returns no message, or returns fractions in
        a field of integers.
    """
    try:
        sent = part.transform_message(message, ctx)
    except FedtreesError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as err:
        where = _locate_error(part, err.__traceback__)
        text = f"{part.name!r} ({where}): {type(err).__name__}: {err}"
        integer_fields = _whole_fields(message) if isinstance(err, (TypeError, ValueError)) else []
        raise ProtocolError(
            "; ".join([text, *(_unit(message, f) for f in integer_fields[:1])])
        ) from err
    if not isinstance(sent, Message):
        raise ProtocolError(
            f"{part.name!r}: transform_message returned a {type(sent).__name__}; return the "
            "message to send"
        )
    if type(sent) is type(message):
        # Fractions would be truncated or refused at another party, far from the cause.
        for field in _whole_fields(message):
            value = getattr(sent, field)
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                raise ProtocolError(
                    f"{part.name!r} ({_locate_error(part)}) returned {value.dtype} numbers in "
                    f"{type(message).__name__}.{field}; {_unit(message, field)}"
                )
    return sent


def _whole_fields(message: Message) -> list[str]:
    """Return the array fields of a message that contain integers, sums (int64) first."""
    arrays = {name: getattr(message, name) for name in names_of(message)}
    names = [n for n, v in arrays.items() if isinstance(v, np.ndarray) and v.dtype.kind in "iu"]
    return sorted(names, key=lambda name: arrays[name].dtype.itemsize, reverse=True)


def _unit(message: Message, field: str) -> str:
    """Return the unit of an integer field, and how to add noise to it."""
    name, units = type(message).__name__, message.unit_of(field)[0]
    many = ", ".join(f"{int(unit):,}" for unit in np.ravel(units))
    return (
        f"{name}.{field} contains whole numbers ({getattr(message, field).dtype}), of which {many} "
        f"make 1.0 (message.unit_of({field!r})). To add noise of standard deviation sigma, write: "
        "from fedtrees.privacy.noise import Gaussian; law = "
        f"Gaussian(sigma).in_units_of(*message.unit_of({field!r})); return replace(message, "
        f"{field}=law.send(message.{field}, ctx.rng('noise'))); and let `channels` return "
        f"{{({name}, {field!r}): Gaussian(sigma)}}"
    )


def _locate_error(part: Defense, trace: TracebackType | None = None) -> str:
    """Return file and line of an error in a defense.

    Without an error, they are those of its `transform_message`.
    """
    module = sys.modules.get(type(part).__module__)
    file = getattr(module, "__file__", None) or "?"
    for frame in reversed(traceback.extract_tb(trace)):
        if frame.filename == file:
            return f"{file}, line {frame.lineno}: {frame.line}"
    code = getattr(inspect.unwrap(type(part).transform_message), "__code__", None)
    # A hook that the defense inherits is in another file.
    return f"{file}, line {code.co_firstlineno}" if code and code.co_filename == file else file
