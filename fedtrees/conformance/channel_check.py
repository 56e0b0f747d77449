"""Compare the real changes of each field in a run with the channel that a defense states.

Attacks adapt to a defense through its published channel (the law of the sent value given the true
value). A wrong channel would therefore mislead all attacks. `fedtrees plugin check` uses this
module: `record_hooks` and `pair_with_exact_run` record the fields before and after a change,
`find_departures` compares them with the stated laws, and `find_expansions` tests the claim that a
change does not increase distances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Channel, Removal, Share
from fedtrees.core.composition import equal
from fedtrees.core.defense import Channels, Context, Defense, ExampleStage, Place, Site
from fedtrees.core.messages import Message
from fedtrees.core.transcript import Transcript

_MOST = 4000  # largest number of cells of a field that are compared
_CHANCE = 1e-6  # probability that a correct law is rejected, for each field and test
_SHIFT = 12_345.0
#: Steps of rounding that are recognised, and the smallest number of different numbers for it.
_DECIMAL_STEPS = (0.1, 0.01, 0.001, 0.0001)
_LEAST_ROUNDED = 10
# Largest rounding error of a number, in steps, at which other numbers are unlikely to be taken for
# multiples.
_CLEARLY = 0.1
# Distances by which cells are moved to test whether they diverge.
_MOVES = np.array([1e-3, 0.1, 1.0, 10.0])


@dataclass(frozen=True)
class FieldChange:
    """A field before and after a change.

    Attributes
    ----------
    before, after : object
        The values.
    units : tuple or None
        How many units of the numbers make one, and whether the numbers are integers. None: one, and
        not integers.
    """

    before: Any
    after: Any
    units: tuple[Any, bool] | None = None


FieldChanges = dict[Place, list[FieldChange]]


def record_hooks(defense: Defense) -> tuple[Defense, FieldChanges]:
    """Return the same defense with recording hooks, and the dict of their inputs and outputs."""
    seen: FieldChanges = defaultdict(list)
    kind = type(defense)
    hook_names = defense.hooks & _NOTES.keys()
    hooks = {name: _record_calls(getattr(kind, name), _NOTES[name], seen) for name in hook_names}
    recorder: Any = type(kind.__name__, (kind,), hooks)
    return recorder(**{f.name: getattr(defense, f.name) for f in fields(defense)}), seen  # type: ignore[arg-type]


def _record_calls(
    hook: Callable[..., Any], note: Callable[..., Any], seen: FieldChanges
) -> Callable[..., Any]:
    """Return a hook that calls the original one and records its input and output."""

    def noted(self: Defense, *args: Any) -> Any:
        # Arrays are copied before the call, because a hook may change them in place.
        copies = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in args)
        result = hook(self, *args)
        for place, changed in note(copies, result):
            seen[place].append(changed)
        return result

    return noted


def _of_message(
    args: tuple[Message, Context], output: Message
) -> Iterator[tuple[Place, FieldChange]]:
    """Yield the fields of a message before and after the hook ``transform_message``."""
    message = args[0]
    # These fields only define units of other fields.
    for f in (f for f in fields(message) if not f.name.endswith("bits")):
        place: Place = type(message), f.name
        was, now = getattr(message, f.name), getattr(output, f.name, None)
        if isinstance(was, np.ndarray) and isinstance(now, np.ndarray):
            yield place, _numbers(message, output, f.name)
        else:
            yield place, FieldChange(was, now)


def _numbers(message: Message, output: Message, field: str) -> FieldChange:
    """Return the numbers of a field before and after, in common units if the units changed."""
    was, now = message.numbers(field), output.numbers(field)
    units, new_units = message.unit_of(field), output.unit_of(field)
    if np.array_equal(units[0], new_units[0]):
        return FieldChange(was, now, units)
    return FieldChange(
        (was / units[0]).astype(float), (now / new_units[0]).astype(float), (1.0, False)
    )


def _of_examples(
    args: tuple[ExampleStage, NDArray[Any], Context], output: NDArray[Any]
) -> Iterator[tuple[Place, FieldChange]]:
    """Yield the gradients, labels or rows before and after the hook ``transform_examples``."""
    stage, was = args[0], args[1]
    if stage.kind != "gradients":
        yield (
            (stage.kind, "y" if stage.kind == "labels" else "rows"),
            FieldChange(was, output, (1, True)),
        )
        return
    for k, (name, bits) in enumerate(zip("gh", stage.bits, strict=True)):
        units = (np.ldexp(1.0, bits), True)
        yield (stage.kind, name), FieldChange(was[..., k], output[..., k], units)


def _single_field(site: str, field: str) -> Callable[..., Iterator[tuple[Place, FieldChange]]]:
    """Return a function that yields the argument and the result of a hook as one field."""

    def note(args: tuple[Any, ...], output: Any) -> Iterator[tuple[Place, FieldChange]]:
        yield (site, field), FieldChange(args[0], output, (1.0, False))

    return note


_NOTES: dict[str, Callable[..., Iterator[tuple[Place, FieldChange]]]] = {
    "transform_message": _of_message,
    "transform_examples": _of_examples,
    "transform_answer": _single_field("answers", "scores"),
    "repair_model": _single_field("model", "trees"),
    "allowed_splits": _single_field("allowed_splits", "splits"),
    "visible_nodes": _single_field("visible_nodes", "nodes"),
}


def pair_with_exact_run(laws: Channels, run: Transcript, exact: Transcript) -> FieldChanges:
    """Pair each stated field of a protocol's messages with its value in a run without noise.

    Parameters
    ----------
    laws : mapping of Place to Change
        The stated laws.
    run, exact : Transcript
        Transcripts of the same training with and without noise.
    """
    seen: FieldChanges = defaultdict(list)
    pairs = zip(_with_places(run), _with_places(exact), strict=True)
    for (noisy, bits), (message, before) in pairs:
        for kind, field in laws:
            sent = getattr(noisy, field, None)
            # Fields without a stated law are not compared.
            if type(noisy) is kind and isinstance(sent, np.ndarray):
                true_value = message.numbers(field) / _unit(message, field, before)
                changed = FieldChange(
                    true_value, noisy.numbers(field) / _unit(noisy, field, bits), (1.0, False)
                )
                if sent.dtype.kind in "iu" and not bits:
                    changed = FieldChange(message.numbers(field), noisy.numbers(field), (1.0, True))
                seen[kind, field].append(changed)
    return seen


def find_unstated_changes(laws: Channels, run: Transcript, exact: Transcript) -> list[str]:
    """Return the fields without a stated law in which a run first differs from one without noise.

    Only the first message about records that differs is compared, because earlier noise can change
    every field of later messages.

    Parameters
    ----------
    laws : mapping of Place to Change
        The stated laws.
    run, exact : Transcript
        Transcripts of the same training with and without noise.
    """
    pairs = zip(_with_places(run), _with_places(exact), strict=True)
    for (message, bits), (before, bits_before) in pairs:
        if not message.reveals:  # for example, the parameters of the two runs
            continue
        changed = [
            f.name
            for f in fields(message)
            if not f.name.endswith("bits")  # units of other fields
            and not _are_close(
                _in_units(message, f.name, bits), _in_units(before, f.name, bits_before)
            )
        ]
        if changed:
            places = [(type(message), name) for name in changed]
            return [_field_name(place) for place in places if place not in laws]
    return []


def _in_units(message: Message, field: str, bits: tuple[int, ...]) -> Any:
    """Return a field of a message, whose numbers are divided by their unit."""
    value = getattr(message, field, None)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fi":
        return value
    return np.asarray(message.numbers(field) / _unit(message, field, bits), dtype=np.float64)


def _are_close(value: Any, other: Any) -> bool:
    """Return whether two fields are equal. Fixed-point numbers can differ in their precision."""
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray) and value.dtype.kind == "f":
        return value.shape == other.shape and np.allclose(value, other, 1e-6, 1e-6, equal_nan=True)
    return equal(value, other)


def find_decimal_steps(laws: Channels, run: Transcript) -> Iterator[tuple[str, float]]:
    """Yield each field without a stated law whose numbers are multiples of a decimal step.

    Such numbers were probably rounded. The steps are 0.1 to 0.0001. Thresholds of splits are left
    out, because they can be points of a public grid.

    Parameters
    ----------
    laws : mapping of Place to Change
        The stated laws.
    run : Transcript
        Messages of a training.
    """
    numbers: dict[Place, list[NDArray[np.float64]]] = defaultdict(list)
    errors: dict[Place, list[NDArray[np.float64]]] = defaultdict(list)
    for message, bits in _with_places(run):
        for f in fields(message) if message.reveals else ():
            place: Place = type(message), f.name
            value = getattr(message, f.name)
            if f.name == "threshold" or place in laws or not isinstance(value, np.ndarray):
                continue
            unit = np.asarray(_unit(message, f.name, bits), dtype=np.float64)
            if value.dtype.kind not in "fi" or (value.dtype.kind == "i" and (unit == 1).all()):
                continue
            scaled = np.asarray(message.numbers(f.name) / unit, dtype=np.float64)
            # The error of fixed-point numbers is half a unit.
            relative = np.finfo(value.dtype).eps if value.dtype.kind == "f" else 0.0
            error = np.broadcast_to(1 / unit, scaled.shape) + relative * np.abs(scaled)
            numbers[place].append(scaled[np.isfinite(scaled)])
            errors[place].append(error[np.isfinite(scaled)])
    for place, arrays in numbers.items():
        values, error = np.concatenate(arrays), np.concatenate(errors[place])
        if len(np.unique(values)) < _LEAST_ROUNDED or (values == np.rint(values)).all():
            continue
        for step in _DECIMAL_STEPS:
            distance = np.abs(values - step * np.rint(values / step))
            if (distance <= 2 * error).all() and error.max() < _CLEARLY * step:
                yield _field_name(place), step
                break


def _with_places(run: Transcript) -> Iterator[tuple[Message, tuple[int, ...]]]:
    """Yield messages with the numbers of binary places of their sums.

    An earlier message of the transcript announces these numbers.
    """
    bits: tuple[int, ...] = ()
    for d in run:
        message: Any = d.message
        if hasattr(message, "g_bits"):
            bits = message.g_bits, message.h_bits
        yield d.message, bits


def _unit(message: Message, field: str, bits: tuple[int, ...]) -> Any:
    """Return how many units of a field make one.

    Announced units refer to pairs of integers.
    """
    array = message.numbers(field)
    announced = bits and array.dtype.kind in "iu" and array.shape[-1:] == (len(bits),)
    unit = np.ldexp(1.0, bits) if announced else np.asarray(message.unit_of(field)[0])
    # A derived type can have further fields, for which the units of its base have no meaning.
    return unit if not unit.ndim or array.shape[-1:] == unit.shape else 1.0


def find_departures(
    laws: Channels, seen: FieldChanges, parties: int
) -> Iterator[tuple[str, str | None]]:
    """Yield each field that was changed or has a stated law, and the contradiction or None.

    Parameters
    ----------
    laws : mapping of Place to Change
        `Defense.channels` or `Protocol.noise_channels` of the run.
    seen : mapping of Place to list of Changed
        Result of `record_hooks` or `pair_with_exact_run`.
    parties : int
        Number of parties that each add a share of the noise.
    """
    for place, records in seen.items():
        changed = [c for c in records if not equal(c.before, c.after)]
        name = _field_name(place)
        law = laws.get(place)
        if law is None:
            if changed:
                yield name, "the field is changed, and no channel is stated for it"
        elif isinstance(law, Removal):
            remaining = [c for c in records if not _is_removed(c.after, law, c.units)]
            yield (
                name,
                f"{len(remaining)} of {len(records)} were not removed" if remaining else None,
            )
        elif isinstance(law, Channel):
            yield name, _find_contradiction(law, [c for c in records if c.before is not None])
        elif isinstance(law, Share):
            total = law.law(parties)
            assert total is not None
            yield name, _find_contradiction(total, list(_sum_over_parties(records, parties)))
        else:
            yield name, None


def find_unbounded_channels(laws: Channels) -> Iterator[str]:
    """Yield each field whose channel does not state which true values are possible.

    Attacks read a channel by `Channel.preimage` and `Channel.posterior_moments`. If neither is
    overridden, every true value is possible for them, even if the channel does not change it.
    """
    for place, law in laws.items():
        if isinstance(law, Channel) and not law.additive:
            kind = type(law)
            inherits_bounds = kind.preimage is Channel.preimage
            if inherits_bounds and kind.posterior_moments is Channel.posterior_moments:
                yield _field_name(place)


def find_expansions(
    nonexpansive: Collection[Site], laws: Channels, seen: FieldChanges
) -> Iterator[tuple[str, str]]:
    """Yield each field that a defense claims not to expand, with the contradiction or "".

    The recorded numbers and slightly moved ones pass the stated channel with the same randomness.
    Their distance must not increase.

    Parameters
    ----------
    nonexpansive : collection of Site
        Sites for which the claim is made.
    laws : mapping of Place to Change
        `Defense.channels` of the run.
    seen : mapping of Place to list of Changed
        Result of `record_hooks`.
    """
    for place, records in seen.items():
        if place[0] not in nonexpansive:
            continue
        law = laws.get(place)
        changed = [c for c in records if not equal(c.before, c.after)]
        if not changed:
            continue
        contradiction = "no channel is stated for this field"
        if isinstance(law, Channel):
            cells = not isinstance(place[0], str)  # for rows, every number is compared separately
            contradiction = next(filter(None, (_find_stretch(law, c, cells) for c in changed)), "")
        yield _field_name(place), contradiction


def _find_stretch(law: Channel, change: FieldChange, cells: bool) -> str:
    """Describe two nearby cells whose distance a channel increases, "" if there are none."""
    units, integers = change.units or (1.0, False)
    here, x = law.in_units_of(units, integers), np.asarray(change.before)
    rng = np.random.default_rng(0)
    for size in _MOVES * np.mean(units):
        move = rng.uniform(-size, size, x.shape)
        move = np.rint(move).astype(x.dtype) if integers else move
        a, b = (here.send(v, np.random.default_rng(1)) for v in (x, x + move))
        before, apart = np.abs(move) / units, np.abs(b - a) / units
        if cells:
            before, apart = before.sum(axis=-1), apart.sum(axis=-1)
        worst = np.argmax(apart - before) if apart.size else 0
        if apart.size and apart.flat[worst] > before.flat[worst] + 1e-9:
            return f"{before.flat[worst]:.3g} apart before, {apart.flat[worst]:.3g} after"
    return ""


def _field_name(place: Place) -> str:
    """Return the name of a field in messages."""
    return f"{place[0] if isinstance(place[0], str) else place[0].__name__}.{place[1]}"


def _is_removed(value: Any, law: Removal, units: tuple[Any, bool] | None) -> bool:
    """Return whether a field was removed or replaced by the constant of its law."""
    if value is None or law.constant is None:
        return value is None
    return bool((np.asarray(value) == law.constant * (units or (1.0, True))[0]).all())


def _sum_over_parties(records: list[FieldChange], parties: int) -> Iterator[FieldChange]:
    """Yield the sums over all parties, whose replies follow one another."""
    for at in range(0, len(records) - parties + 1, parties):
        part = records[at : at + parties]
        yield FieldChange(sum(c.before for c in part), sum(c.after for c in part), part[0].units)


def _find_contradiction(law: Channel, changes: list[FieldChange]) -> str | None:
    """Describe the contradiction between a channel and the recorded changes, None if there is none.

    Each change must have a positive probability under the channel. For random channels, the errors
    and their likelihoods are compared with simulated ones by a two-sample Kolmogorov-Smirnov test.
    """
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    residuals: list[NDArray[Any]] = []
    simulated, likely, simulated_likely = residuals[:], residuals[:], residuals[:]
    for change in changes:
        units, integers = change.units or (1.0, False)
        if not np.all(np.asarray(units) > 0) or not np.size(change.before):
            continue
        here = law.in_units_of(units, integers)
        x, y = np.asarray(change.before), np.asarray(change.after)
        if not integers:
            x, y = x.astype(np.float64), y.astype(np.float64)
        if x.shape != y.shape:
            return "the shape of the field changes, which no channel can describe"
        # The channel states an interval that must contain the true value.
        low, high = here.bounds(y)
        if not ((low <= x) & (x <= high)).all():
            number = _first(x, y, (low <= x) & (x <= high))
            return f"{number} is outside of the interval that the channel states for it"
        if integers and here.deterministic and not np.array_equal(again := here.send(x), y):
            return f"{_first(x, y, again == y)}, which differs from the output of the channel"
        x, y = (part.reshape(-1, x.shape[-1] if x.ndim > 1 else 1)[:_MOST] for part in (x, y))
        drawn = here.send(x, rng)
        # The likelihood of an additive channel depends on the difference only, so that a common
        # shift has no effect.
        shifted = here.log_likelihood(y + _SHIFT, x + _SHIFT) if here.additive else None
        log_likelihood = here.log_likelihood(y, x)
        if np.isneginf(log_likelihood).any():
            return "the sent value has probability 0 under the channel"
        if shifted is not None and not np.allclose(shifted, log_likelihood, atol=1e-6):
            return "the channel is declared as additive, but depends on the true value"
        unit = np.ravel(units)[-1]
        residuals.append(np.ravel(y - x) / unit)
        simulated.append(np.ravel(drawn - x) / unit)
        likely.append(log_likelihood)
        simulated_likely.append(here.log_likelihood(drawn, x))
    if not residuals or law.deterministic:
        return None
    for quantity, a, b in (
        ("errors", residuals, simulated),
        ("likelihoods", likely, simulated_likely),
    ):
        chance = ks_2samp(np.concatenate(a), np.concatenate(b)).pvalue
        if chance < _CHANCE:
            return f"{quantity} are not distributed as the channel states (p-value {chance:.1g})"
    return None


def _first(x: NDArray[Any], y: NDArray[Any], right: NDArray[np.bool_]) -> str:
    """Describe the first number that was not sent correctly."""
    at = tuple(np.argwhere(~np.asarray(right))[0])
    return f"{x[at]} is sent as {y[at]}"
