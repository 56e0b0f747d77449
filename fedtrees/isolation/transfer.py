"""Send values between the bench and the process of an attack, and recreate them on each side.

`ValuePipe` sends plain values. A view is converted to plain values in the bench and built again in
the process of the attack, and a guess the other way round. The process of the attack runs code of
plug-ins, so that every value in its replies may be forged: the bench creates new values of the
expected types, with bounded numbers and lengths, or raises `ProtocolError`.
"""

from __future__ import annotations

import hashlib
import inspect
import keyword
import math
import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from fedtrees.core import errors
from fedtrees.core.channel import kinds
from fedtrees.core.claims import Guess
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.endpoint import Answer, Oracle
from fedtrees.core.errors import PLUGIN, FedtreesError, ProtocolError
from fedtrees.core.local_data import KnownEntries, LocalData
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, OneHot, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.view import Seen, View
from fedtrees.core.wire import pack, type_name, unpack

#: Largest value that the bench accepts from an attack, and largest text in it, in bytes. Texts need
#: up to twenty times as much memory when they are parsed.
MOST_BYTES, MOST_TEXTS = 2**26, 2**24
_LENGTH = struct.Struct("<Q")


class Closed(Exception):
    """The process at the other end has ended, possibly in the middle of a value.

    Attributes
    ----------
    status : int or None
        Exit status of this process if it is known, negative for a signal.
    """

    status: int | None = None


class ValuePipe:
    """One end of a channel."""

    def __init__(self, reading: BinaryIO, writing: BinaryIO) -> None:
        self._reading, self._writing = reading, writing

    def send(self, value: Any, max_bytes: int | None = None) -> None:
        """Write a value.

        Parameters
        ----------
        value : object
            The value (`fedtrees.core.wire`).
        max_bytes : int, optional
            Largest number of bytes.

        Raises
        ------
        DataError
            If the value cannot be packed. Nothing is written then.
        ProtocolError
            If it is too large. Nothing is written then.
        Closed
            If the other process has ended.
        """
        chunks = pack(value)
        size = sum(map(len, chunks))
        if max_bytes is not None and size > max_bytes:
            raise ProtocolError(
                f"an answer of {size:,} bytes; an attack may return {max_bytes:,} ("
                f"{max_bytes // 2**20} MiB): return fewer rows, or arrays of a smaller type"
            )
        self.send_packed(chunks)

    def send_packed(self, chunks: Sequence[Any]) -> None:
        """Write a packed value. Raises `Closed` if the other process has ended."""
        try:
            self._writing.write(_LENGTH.pack(sum(map(len, chunks))))
            for chunk in chunks:
                self._writing.write(chunk)
            self._writing.flush()
        except OSError as err:
            raise Closed(str(err)) from err

    def receive(self, types: Iterable[type] = (), max_bytes: int | None = None) -> Any:
        """Read a value.

        Parameters
        ----------
        types : iterable of type
            Dataclasses that may occur in it.
        max_bytes : int, optional
            Largest number of bytes.

        Raises
        ------
        Closed
            If the other process has ended.
        DataError
            If the value is malformed.
        ProtocolError
            If the value is too large.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if max_bytes is not None and length > max_bytes:
            raise ProtocolError(f"an answer of {length} bytes; at most {max_bytes} are taken")
        return unpack(self._exactly(length), types, None if max_bytes is None else MOST_TEXTS)

    def close(self) -> None:
        """Close both directions."""
        for file in (self._reading, self._writing):
            with suppress(OSError):  # the process that should read the remaining bytes has ended
                file.close()

    def _exactly(self, length: int) -> bytes:
        """Read this number of bytes, or raise `Closed`."""
        try:
            blob = self._reading.read(length)
        except OSError as err:
            raise Closed(str(err)) from err
        if len(blob) < length:
            raise Closed(f"{len(blob)} of {length} bytes came")
        return blob


# Attributes of a view from which the randomness of an attack is derived, with the names under which
# they are hashed. A changed name would change the randomness, and thereby all scores.
_HASHED = {
    "principals": "principals", "protocol": "protocol", "own": "local_data",
    "known": "known_labels", "entries": "known_entries",
}  # fmt: skip
_COPIED = ("principals", "schema", "protocol", "n_rows", "local_data", "known_labels",
           "known_entries", "candidates", "protocol_changes", "weighted", "behaviours",
           "queried_rows", "population")  # fmt: skip


def view_types() -> tuple[type, ...]:
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
        **{name: getattr(view, name) for name in _COPIED},
        "roles": dict(view.roles),
        "parameters": dict(view.parameters),
        "defense": tuple(_spec_as_value(part) for part in view.defense.parts),
        "messages": tuple(messages.values()),
        "seen": tuple(
            (s.round, s.sender, s.receivers, place[id(s.message)], s.reason) for s in view.seen
        ),
        "oracle": None
        if oracle is None
        else (oracle.budget, tuple(oracle.log), oracle.answers, oracle.records, oracle.width),
    }


def view_modules(view: View) -> tuple[str, ...]:
    """Return the modules that define messages, channels and defenses of a view.

    The process for attacks imports them once, before it forks. Plug-in files are not among them.
    """
    names = {type(s.message).__module__ for s in view.seen}
    names |= {type(change).__module__ for _, _, change in view.protocol_changes}
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
        **{name: value[name] for name in _COPIED},
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
    knowledge = {name: getattr(view, attribute) for name, attribute in _HASHED.items()}
    digest = hashlib.blake2b(purpose.encode(), digest_size=32)
    for chunk in pack(knowledge):
        digest.update(chunk)
    return tuple(int(n) for n in np.frombuffer(digest.digest(), "<u4"))


def generator(words: tuple[int, ...]) -> np.random.Generator:
    """Return the generator of an attack's randomness."""
    return np.random.default_rng(np.random.SeedSequence(words))


def _spec_as_value(part: Defense) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of a defense."""
    maker: Callable[..., Any] = register.get("defense", part.name)
    names = inspect.signature(maker).parameters
    if maker is not type(part) or not all(hasattr(part, name) for name in names):
        raise ProtocolError(
            f"the defense {part.name!r} cannot be sent to an attack: register its class, and keep "
            "each parameter as the attribute of that name (a frozen dataclass does)"
        )
    return part.name, {name: getattr(part, name) for name in names}


#: Largest number of entries of a list, of characters of a name, and of characters of a text.
MOST_ENTRIES, MOST_NAME, MOST_TEXT = 1000, 200, 20_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")  # as in a specification on the command line
_PLAIN = (bool, int, float, str, type(None))


class AttackError(FedtreesError):
    """An attack raised an error that is not defined by fedtrees.

    Attributes
    ----------
    traceback : str
        Traceback of the error.
    """

    traceback = ""


@dataclass(frozen=True)
class AttackFacts:
    """Name, signature and attributes of an attack whose code is only in the attacks' process.

    Attributes
    ----------
    parameters : tuple of (str, bool, value)
        Name of each parameter, whether it has a default, and the default.
    claims : tuple of str
        Types of claims, in the notation of `fedtrees.core.wire.type_name`.

    Raises
    ------
    ProtocolError
        If a value has another type, or cannot be a name.
    """

    name: str
    qualname: str
    module: str
    file: str
    doc: str
    parameters: tuple[tuple[str, bool, Any], ...]
    blind: bool
    is_reference: bool
    receives_candidates: bool
    max_training_rows: int | None
    supports_regression: bool
    claims: tuple[str, ...]

    def __post_init__(self) -> None:
        _require(_NAME.fullmatch(_text(self.name)), "name", self.name)
        for part in (_text(self.module), _text(self.qualname).replace("<locals>.", "")):
            _require(_is_dotted(part), "name of a class", part)
        is_builtin = self.module.partition(".")[0] == "fedtrees" and not self.module.startswith(
            PLUGIN
        )
        _require(not is_builtin, "module outside of fedtrees", self.module)
        _require(self.file == "" or _text(self.file).endswith(".py"), "Python file", self.file)
        _text(self.doc, MOST_TEXT)
        _require(isinstance(self.parameters, tuple), "tuple of parameters", self.parameters)
        names = [_parameter(parameter) for parameter in self.parameters]
        _require(len(set(names)) == len(names) <= MOST_ENTRIES, "parameters with own names", names)
        for mark in (
            self.blind,
            self.is_reference,
            self.receives_candidates,
            self.supports_regression,
        ):
            _require(isinstance(mark, bool), "mark", mark)
        rows = self.max_training_rows
        _require(rows is None or (type(rows) is int and rows > 0), "number of rows", rows)
        read_texts(self.claims)


def facts_of_reply(value: Any) -> AttackFacts:
    """Return the facts of one attack. Raises `ProtocolError` if the value is not valid."""
    expected_keys = set(AttackFacts.__dataclass_fields__)
    _require(
        isinstance(value, dict) and set(value) == expected_keys, "description of an attack", value
    )
    return AttackFacts(**value)


def read_texts(value: Any) -> tuple[str, ...]:
    """Return a tuple of short texts. Raises `ProtocolError` if the value is not valid."""
    _require(isinstance(value, tuple) and len(value) <= MOST_ENTRIES, "list of texts", value)
    return tuple(_text(entry, MOST_TEXT) for entry in value)


def read_seconds(value: Any) -> float:
    """Return a duration in seconds. Raises `ProtocolError` if the value is not valid."""
    fits = type(value) is float and math.isfinite(value) and value >= 0
    _require(fits, "number of seconds", value)
    return float(value)


def read_reason(value: Any) -> Reason:
    """Return a reason from its code and arguments. Raises `ProtocolError` if they are not valid."""
    try:
        code, args = value
        if all(isinstance(arg, (str, int, float)) for arg in args.values()):
            read_texts(tuple(arg for arg in args.values() if isinstance(arg, str)))
            return Reason(_text(code), **args)
    except (AttributeError, TypeError, ValueError):
        pass
    raise ProtocolError(f"an attack gave {_short(value)} for a reason")


def read_error(reply: Mapping[str, Any]) -> FedtreesError:
    """Return the error that an attack raised: one that fedtrees defines, or an `AttackError`."""
    kind = getattr(errors, str(reply["failed"])[:MOST_NAME], None)
    text = str(reply.get("text", ""))[:MOST_TEXT]
    if isinstance(kind, type) and issubclass(kind, FedtreesError):
        try:
            return kind(text)
        except TypeError:  # the constructor of this error needs more than a text
            return ProtocolError(text)
    failed = AttackError(text)
    failed.traceback = str(reply.get("traceback", ""))[:MOST_TEXT]
    return failed


def _parameter(value: Any) -> str:
    """Return the name of a parameter, after a check of its description."""
    _require(isinstance(value, tuple) and len(value) == 3, "parameter", value)
    name, has_default, default = value
    _require(_text(name).isidentifier() and not keyword.iskeyword(name), "parameter name", name)
    _require(isinstance(has_default, bool), "mark of a default", has_default)
    _require(isinstance(default, _PLAIN), "default", default)
    return str(name)


def _is_dotted(name: str) -> bool:
    """Return whether a text is a dotted name."""
    return all(part.isidentifier() for part in name.split("."))


def _text(value: Any, max_length: int = MOST_NAME) -> str:
    """Return a text, after a check of its length."""
    fits = isinstance(value, str) and len(value) <= max_length and "\0" not in value
    _require(fits, f"text of at most {max_length} characters", value)
    return str(value)


def _require(fits: Any, expected: str, value: Any) -> None:
    """Raise `ProtocolError` unless a value fits."""
    if not fits:
        raise ProtocolError(
            f"the process of attacks answered with {_short(value)} for a {expected}: a plug-in "
            "changed its answer, or is of another release"
        )


def _short(value: Any) -> str:
    """Return the beginning of a value's representation, in ASCII."""
    return ascii(value)[:200]


#: Largest number of notes of a guess. Each becomes a row of the results.
MOST_NOTES = MOST_ENTRIES


def guess_as_value(guess: object, attack: str, scored: Collection[str]) -> dict[str, Any]:
    """Return a guess as a value: its claims, its notes and its reason.

    If all claims are empty, for example tables without rows, they are replaced by the reason
    ``empty-claims``.

    Parameters
    ----------
    guess : object
        Return value of `Attack.run`.
    attack : str
        Name of the attack.
    scored : collection of str
        Names of the types of claims that can be scored.

    Raises
    ------
    ProtocolError
        If the value is not a guess, if no metric scores the type of a claim, or if there are
        neither claims nor a reason.
    """
    if not isinstance(guess, Guess):
        raise ProtocolError(f"attack {attack!r} returned a {type(guess).__name__}; return a Guess")
    for claim in guess.claims:
        if type_name(type(claim)) not in scored:
            raise ProtocolError(
                f"attack {attack!r} claims {type(claim).__name__}, which no metric scores; "
                "register one (`of` names the very type)"
            )
    claims, reason = guess.claims, guess.reason
    if not claims and reason is None:
        raise ProtocolError(
            f"attack {attack!r} returned a guess without claims and without a reason; "
            "return Guess.none(Reason(code)) or Guess.none('a sentence with the "
            "reason')"
        )
    if claims and all(claim.empty for claim in claims):
        claims, reason = (), Reason("empty-claims")
    told_reason = None if reason is None else (reason.code, dict(reason.args))
    return {"claims": claims, "notes": dict(guess.notes), "reason": told_reason}


def guess_of(value: Any) -> Guess:
    """Return the guess that a value describes (`guess_as_value`).

    Raises
    ------
    ProtocolError
        If the value is not a guess, has more than `MOST_NOTES` notes, or a note is not a number.
    """
    if not isinstance(value, dict) or set(value) != {"claims", "notes", "reason"}:
        raise ProtocolError("an attack answered with something else than a guess")
    claims, notes, reason = value["claims"], value["notes"], value["reason"]
    if not claims and reason is None:
        raise ProtocolError("an attack answered with a guess without claims and without a reason")
    if not isinstance(notes, dict):
        raise ProtocolError(f"the notes of a guess are a {type(notes).__name__}, not a mapping")
    if len(notes) > MOST_NOTES:
        raise ProtocolError(f"a guess has {len(notes)} notes; give {MOST_NOTES} at most")
    read_texts(tuple(notes))
    no_claim_reason = None if reason is None else read_reason(reason)
    guess = Guess(claims, notes, no_claim_reason)
    return Guess(
        guess.claims, {name: _number(note) for name, note in guess.notes.items()}, no_claim_reason
    )


def scored_claims() -> tuple[type, ...]:
    """Return the types of claims that can be scored.

    The bench creates no other types, because this would run the code of their class in the process
    with the ground truth. Only the author of a metric is trusted with that.
    """
    metrics: Iterable[Any] = (register.get("metric", name) for name in register.names("metric"))
    return tuple(dict.fromkeys(metric.of for metric in metrics))


def _number(note: Any) -> float:
    """Return a note as a float."""
    try:
        return float(note)
    except OverflowError:  # an integer with more than 308 digits
        return math.inf if note > 0 else -math.inf
