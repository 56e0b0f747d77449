"""Convert views to values and back. The copy has no reference to any object of the bench."""

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fedtrees.core.channel import kinds
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.endpoint import Answer, Oracle
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import KnownEntries, LocalData
from fedtrees.core.registry import PLUGIN, register
from fedtrees.core.schema import Feature, OneHot, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.view import Seen, View
from fedtrees.core.wire import pack

_KNOWN = ("own", "known", "entries")
_AS_THEY_ARE = ("principals", "schema", "protocol", "n_rows", *_KNOWN, "candidates", "stated",
                "weighted", "behaviours", "asked", "population")  # fmt: skip


def types() -> tuple[type, ...]:
    """Return the dataclasses that occur in views."""
    return LocalData, KnownEntries, Table, Schema, Feature, OneHot, *kinds()


def view_as_value(view: View) -> dict[str, Any]:
    """Return a view as a value.

    A defense is represented by its name and parameters, and an oracle by its budget, log and kind
    of answers.

    Raises
    ------
    ProtocolError
        If the defense cannot be created again from these values.
    """
    messages = {id(s.message): s.message for s in view.seen}  # a broadcast is transmitted once
    place = {key: i for i, key in enumerate(messages)}
    oracle = view.oracle
    return {
        **{name: getattr(view, name) for name in _AS_THEY_ARE},
        "roles": dict(view.roles),
        "parameters": dict(view.parameters),
        "defense": tuple(_spec(part) for part in view.defense.parts),
        "messages": tuple(messages.values()),
        "seen": tuple(
            (s.round, s.sender, s.receivers, place[id(s.message)], s.why) for s in view.seen
        ),
        "oracle": None
        if oracle is None
        else (oracle.budget, tuple(oracle.log), oracle.answers, oracle.records, oracle.width),
    }


def modules(view: View) -> tuple[str, ...]:
    """Return the modules that define messages, channels and defenses of a view.

    The process for attacks imports them once, before it forks. Plug-in files are not among them.
    """
    names = {type(s.message).__module__ for s in view.seen}
    names |= {type(change).__module__ for _, _, change in view.stated}
    names |= {type(part).__module__ for part in view.defense.parts}
    return tuple(sorted(n for n in names if not n.startswith(PLUGIN)))


def view_of(value: dict[str, Any], answer: Answer) -> View:
    """Return the view that a value describes. Its oracle passes queries to `answer`."""
    oracle = None
    if value["oracle"] is not None:
        budget, log, answers, records, width = value["oracle"]
        oracle = Oracle(answer, budget, answers=answers, records=records, width=width)
        oracle.log += log
    messages = value["messages"]
    return View(
        **{name: value[name] for name in _AS_THEY_ARE},
        roles=value["roles"],
        parameters=value["parameters"],
        defense=Composition(
            tuple(register.make("defense", Spec(name, params)) for name, params in value["defense"])
        ),
        seen=tuple(Seen(rnd, who, to, messages[i], why) for rnd, who, to, i, why in value["seen"]),
        oracle=oracle,
    )


def randomness(view: View, purpose: str) -> tuple[int, ...]:
    """Return the randomness of an attack on a view: 256 bits, as integers of 32 bits.

    It is a hash of the principals' names, the protocol, and the principals' local data and
    background knowledge. It therefore reveals nothing else: neither the seed of the experiment,
    which could be found by trying all small seeds, nor rows of the victims. Messages do not enter
    the hash, so that an attack starts with the same draws for every defense. Different rows give
    different randomness. Principals without rows have the same randomness in every federation.
    """
    knowledge = {name: getattr(view, name) for name in ("principals", "protocol", *_KNOWN)}
    digest = hashlib.blake2b(purpose.encode(), digest_size=32)
    for chunk in pack(knowledge):
        digest.update(chunk)
    return tuple(int(n) for n in np.frombuffer(digest.digest(), "<u4"))


def generator(words: tuple[int, ...]) -> np.random.Generator:
    """Return the generator of an attack's randomness."""
    return np.random.default_rng(np.random.SeedSequence(words))


def _spec(part: Defense) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of a defense."""
    maker: Callable[..., Any] = register.get("defense", part.name)
    names = inspect.signature(maker).parameters
    if maker is not type(part) or not all(hasattr(part, name) for name in names):
        raise ProtocolError(
            f"the defense {part.name!r} cannot be told to an attack: register its class, and keep "
            "each parameter as the attribute of that name (a frozen dataclass does)"
        )
    return part.name, {name: getattr(part, name) for name in names}
