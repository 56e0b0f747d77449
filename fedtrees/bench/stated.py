"""What a defense or a protocol does to each field in a run, against what it states of it."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Channel, Removal, Share
from fedtrees.core.composition import equal
from fedtrees.core.defense import Context, Defense, Place, Site, Stage
from fedtrees.core.messages import Message
from fedtrees.core.transcript import Transcript

_MOST = 4000  # cells of a field that are looked at
_CHANCE = 1e-6  # of a right law being called wrong, for each field and test
_SHIFT = 12_345.0
_MOVES = np.array([1e-3, 0.1, 1.0, 10.0])  # how far cells are moved to see them come apart


@dataclass(frozen=True)
class Changed:
    """A field before and after, and how its numbers are read: units, and whether they are whole."""

    before: Any
    after: Any
    units: tuple[Any, bool] | None = None


Seen = dict[Place, list[Changed]]


def watched(defense: Defense) -> tuple[Defense, Seen]:
    """Return the same defense, and where it notes what each of its hooks was given and made."""
    seen: Seen = defaultdict(list)
    kind = type(defense)
    own = defense.acts_through & {*_NOTES}
    hooks = {name: _noting(getattr(kind, name), _NOTES[name], seen) for name in own}
    made: Any = type(kind.__name__, (kind,), hooks)
    return made(**{f.name: getattr(defense, f.name) for f in fields(defense)}), seen  # type: ignore[arg-type]


def _noting(hook: Callable[..., Any], note: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
    def noted(self: Defense, *args: Any) -> Any:
        kept = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in args)
        made = hook(self, *args)
        for place, changed in note(kept, made):
            seen[place].append(changed)
        return made

    return noted


def _of_message(args: tuple[Message, Context], made: Message) -> Iterator[tuple[Place, Changed]]:
    message = args[0]
    for f in (f for f in fields(message) if not f.name.endswith("bits")):  # how others are read
        place: Place = type(message), f.name
        was, now = getattr(message, f.name), getattr(made, f.name, None)
        if isinstance(was, np.ndarray) and isinstance(now, np.ndarray):
            yield place, _numbers(message, made, f.name)
        else:
            yield place, Changed(was, now)


def _numbers(message: Message, made: Message, field: str) -> Changed:
    was, now = message.numbers(field), made.numbers(field)
    units, others = message.unit_of(field), made.unit_of(field)
    if np.array_equal(units[0], others[0]):
        return Changed(was, now, units)
    return Changed((was / units[0]).astype(float), (now / others[0]).astype(float), (1.0, False))


def _of_rows(
    args: tuple[Stage, NDArray[Any], Context], made: NDArray[Any]
) -> Iterator[tuple[Place, Changed]]:
    stage, was = args[0], args[1]
    if stage.kind != "gradients":
        yield (stage.kind, "y" if stage.kind == "labels" else "rows"), Changed(was, made, (1, True))
        return
    for k, (name, bits) in enumerate(zip("gh", stage.bits, strict=True)):
        units = (np.ldexp(1.0, bits), True)
        yield (stage.kind, name), Changed(was[..., k], made[..., k], units)


def _of(site: str, field: str) -> Callable[..., Iterator[tuple[Place, Changed]]]:
    def note(args: tuple[Any, ...], made: Any) -> Iterator[tuple[Place, Changed]]:
        yield (site, field), Changed(args[0], made, (1.0, False))

    return note


_NOTES: dict[str, Callable[..., Iterator[tuple[Place, Changed]]]] = {
    "outgoing": _of_message,
    "rows": _of_rows,
    "answer": _of("answers", "scores"),
    "finish": _of("model", "trees"),
    "candidates": _of("candidates", "splits"),
    "shown": _of("shown", "nodes"),
}


def beside_exact(stated: Mapping[Place, Change], run: Transcript, exact: Transcript) -> Seen:
    """Pair each stated field of a protocol's messages with what it is without any noise."""
    seen: Seen = defaultdict(list)
    pairs = zip(_with_places(run), _with_places(exact), strict=True)
    for (made, bits), (message, before) in pairs:
        for kind, field in stated:
            now = getattr(made, field, None)
            if type(made) is kind and isinstance(now, np.ndarray):  # else nobody reads it
                was = message.numbers(field) / _unit(message, field, before)
                changed = Changed(was, made.numbers(field) / _unit(made, field, bits), (1.0, False))
                if now.dtype.kind in "iu" and not bits:
                    changed = Changed(message.numbers(field), made.numbers(field), (1.0, True))
                seen[kind, field].append(changed)
    return seen


def _with_places(run: Transcript) -> Iterator[tuple[Message, tuple[int, ...]]]:
    """Yield messages, and in how many binary places sums are by what was told before."""
    bits: tuple[int, ...] = ()
    for d in run:
        if hasattr(d.message, "g_bits"):
            bits = d.message.g_bits, d.message.h_bits
        yield d.message, bits


def _unit(message: Message, field: str, bits: tuple[int, ...]) -> Any:
    """Return how many units make one: those told are of whole numbers in pairs."""
    array = message.numbers(field)
    told = bits and array.dtype.kind in "iu" and array.shape[-1:] == (len(bits),)
    return np.ldexp(1.0, bits) if told else message.unit_of(field)[0]


def departures(
    stated: Mapping[Place, Change], seen: Seen, parties: int
) -> Iterator[tuple[str, str | None]]:
    """Yield each field that was changed or of which something is stated, and what is wrong or None.

    `stated`: `Defense.channels` or `Protocol.laws` of the run.
    `seen`: What `watched` noted, or `beside_exact` found.
    `parties`: How many share noise.
    """
    for place, found in seen.items():
        changed = [c for c in found if not equal(c.before, c.after)]
        name = _called(place)
        law = stated.get(place)
        if law is None:
            if changed:
                yield name, "it is changed, and nothing is stated of it"
        elif isinstance(law, Removal):
            kept = [c for c in found if not _removed(c.after, law, c.units)]
            yield name, f"{len(kept)} of {len(found)} are still there" if kept else None
        elif isinstance(law, Channel):
            yield name, _against(law, [c for c in found if c.before is not None])
        elif isinstance(law, Share):
            total = law.law(parties)
            assert total is not None
            yield name, _against(total, list(_summed(found, parties)))
        else:
            yield name, None


def farther_apart(
    nonexpansive: Collection[Site], stated: Mapping[Place, Change], seen: Seen
) -> Iterator[tuple[str, str]]:
    """Yield each field where a part says that it is nonexpansive, and what speaks against it or "".

    Numbers that it was given, and the same moved a little, pass what it states with the same
    randomness.
    """
    for place, found in seen.items():
        if place[0] not in nonexpansive:
            continue
        law = stated.get(place)
        changed = [c for c in found if not equal(c.before, c.after)]
        if not changed:
            continue
        told = "no channel is stated of what it does"
        if isinstance(law, Channel):
            cells = not isinstance(place[0], str)  # of rows every number is by itself
            told = next(filter(None, (_stretched(law, c, cells) for c in changed)), "")
        yield _called(place), told


def _stretched(law: Channel, change: Changed, cells: bool) -> str:
    """Return how far apart a law sends two cells that were nearer, "" if it does so to none."""
    units, whole = change.units or (1.0, False)
    here, x = law.within(units, whole), np.asarray(change.before)
    rng = np.random.default_rng(0)
    for size in _MOVES * np.mean(units):
        move = rng.uniform(-size, size, x.shape)
        move = np.rint(move).astype(x.dtype) if whole else move
        a, b = (here.send(v, np.random.default_rng(1)) for v in (x, x + move))
        before, apart = np.abs(move) / units, np.abs(b - a) / units
        if cells:
            before, apart = before.sum(axis=-1), apart.sum(axis=-1)
        worst = np.argmax(apart - before) if apart.size else 0
        if apart.size and apart.flat[worst] > before.flat[worst] + 1e-9:
            return f"{before.flat[worst]:.3g} apart before, {apart.flat[worst]:.3g} after"
    return ""


def _called(place: Place) -> str:
    return f"{place[0] if isinstance(place[0], str) else place[0].__name__}.{place[1]}"


def _removed(value: Any, law: Removal, units: tuple[Any, bool] | None) -> bool:
    if value is None or law.constant is None:
        return value is None
    return bool((np.asarray(value) == law.constant * (units or (1.0, True))[0]).all())


def _summed(found: list[Changed], parties: int) -> Iterator[Changed]:
    """Yield sums over all parties, which answer one after the other."""
    for at in range(0, len(found) - parties + 1, parties):
        part = found[at : at + parties]
        yield Changed(sum(c.before for c in part), sum(c.after for c in part), part[0].units)


def _against(law: Channel, found: list[Changed]) -> str | None:
    """Return what is wrong with a channel, None if what was done may well follow it."""
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    residuals: list[NDArray[Any]] = []
    own, likely, own_likely = residuals[:], residuals[:], residuals[:]
    for change in found:
        units, whole = change.units or (1.0, False)
        if not np.all(np.asarray(units) > 0) or not np.size(change.before):
            continue
        here = law.within(units, whole)
        x, y = np.asarray(change.before), np.asarray(change.after)
        if not whole:
            x, y = x.astype(np.float64), y.astype(np.float64)
        if x.shape != y.shape:
            return "its shape changes: that is no channel"
        low, high = here.bounds(y)
        if not ((low <= x) & (x <= high)).all():
            return f"{_first(x, y, (low <= x) & (x <= high))} is not in the box of what is sent"
        if whole and here.deterministic and not np.array_equal(again := here.send(x), y):
            return f"{_first(x, y, again == y)}, which is not what the channel sends"
        x, y = (part.reshape(-1, x.shape[-1] if x.ndim > 1 else 1)[:_MOST] for part in (x, y))
        drawn = here.send(x, rng)
        shifted = here.log_likelihood(y + _SHIFT, x + _SHIFT) if here.additive else None
        told = here.log_likelihood(y, x)
        if np.isneginf(told).any():
            return "what is sent has no probability"
        if shifted is not None and not np.allclose(shifted, told, atol=1e-6):
            return "it is called additive, and its law depends on what is true"
        one = np.ravel(units)[-1]
        residuals.append(np.ravel(y - x) / one)
        own.append(np.ravel(drawn - x) / one)
        likely.append(told)
        own_likely.append(here.log_likelihood(drawn, x))
    if not residuals or law.deterministic:
        return None
    for what, a, b in (("errors", residuals, own), ("likelihoods", likely, own_likely)):
        chance = ks_2samp(np.concatenate(a), np.concatenate(b)).pvalue
        if chance < _CHANCE:
            return f"{what} are not spread as those of the channel (chance {chance:.1g})"
    return None


def _first(x: NDArray[Any], y: NDArray[Any], right: NDArray[np.bool_]) -> str:
    at = tuple(np.argwhere(~np.asarray(right))[0])
    return f"{x[at]} is sent as {y[at]}"
