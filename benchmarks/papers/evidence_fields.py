"""List which attacks read which piece of evidence: every message field, protocol and adversary.

`python -m fedtrees.benchmarks.papers evidence_fields --out docs/studies/evidence.csv` trains every
protocol on a small synthetic table, under no defense and under defenses that add message fields or
make a field informative. For every adversary it then replaces one field of one message type at a
time in the transcript, and runs every attack that applies. An attack *reads* the field if its
claims change for the same random seed, if it fails, or if it no longer applies. The study finds
evidence that an adversary has and that no attack uses. `evidence_read` measures, on real tables,
whether the evidence that is used also raises the scores.
"""

import csv
import os
import resource
import sys
import warnings
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedtrees.benchmarks.papers.study import Study
from fedtrees.conformance.samples import sample_table
from fedtrees.core.attack import contenders
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.messages import Message, Sealed, names_of
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import Seen, View
from fedtrees.data.dataset import Dataset
from fedtrees.data.partition import Partition
from fedtrees.experiments.evaluate import build_view, make_defense, with_background
from fedtrees.experiments.federation import Federation, spread
from fedtrees.experiments.plan import FederationConfig
from fedtrees.experiments.suite import DataRef, roles_of
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training, train

ROWS, CLIENTS, SEED = 60, 3, 0
#: Limits on one run of an attack on a reduced view: processor seconds, and bytes of address space.
SECONDS, MEMORY = 20, 2**34
#: Fields that link the nodes of a tree. They are removed with their message: with other links a
#: tree has cycles, or nodes that do not exist.
LINKS = frozenset({"left", "right", "feature", "sizes"})
#: Attacks whose default settings take long, with settings that read the same evidence quickly.
QUICK = {
    "timberstrike": {"chains": 1},
    "joint": {"chains": 1, "moves": 20, "samples": 1, "exact": False},
    "histogram-peeling": {"work": 3e7},
    "sketch-reading": {"draws": 1},
    "draft-dp": {"work": 0.001},
    "forest-boxes": {"work": 0.01},
    "tableak": {"batches": 1, "restarts": 1, "steps": 5},
    "leaf-inversion": {"batches": 1, "restarts": 1, "steps": 5, "starts": "own"},
}
_TREES = {"trees": 3, "max_depth": 3, "max_bin": 16}
_NETWORK = {"rounds": 2, "batch": 4, "units": 8}
#: Settings of protocols that lack some of the parameters in `_TREES`, or have further ones.
SMALL = {
    "dp-forest": {"trees": 3, "depth": 3},
    "ebm-merge": {"outer_bags": 2, "max_rounds": 50},
    "dp-ebm": {"max_rounds": 50},
    "fedsgd-mlp": _NETWORK,
    "fedavg-mlp": {**_NETWORK, "local_rows": 4},
    "fedxgbllr": {**_TREES, "rounds": 2, "batch": 4, "sends": "gradient"},
    "horizontal-regression": {"rounds": 3},
    "vertical-regression": {"rounds": 3},
    "lightgbm-data": {"trees": 3, "num_leaves": 8, "min_data_in_leaf": 3},
    "forest-hist": {"trees": 3, "max_depth": 3},
    "vertical-forest": {"trees": 3, "max_depth": 3},
    "local-forests": {"trees": 3, "max_depth": 3},
}


@dataclass(frozen=True)
class Run:
    """A training run whose views are studied.

    Attributes
    ----------
    protocol : str
        Protocol.
    parameters : mapping
        Parameters in addition to those of `SMALL`.
    defense : str
        Defense.
    threats : tuple of str
        Adversaries. Empty: one party of each role, without the holder of the released model.
    clients : int
        Number of clients.
    """

    protocol: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    defense: str = "none"
    threats: tuple[str, ...] = ()
    clients: int = CLIENTS


#: Runs in addition to one undefended run of every protocol. They add messages, fill fields that are
#: empty otherwise, or make a field informative that is redundant otherwise.
MORE = (
    Run("fedtree-hist", defense="split-only+leaf-rounding[decimals=1]"),
    Run("fedtree-hist", defense="laplace-hist[epsilon=16]", threats=("server",)),
    Run("fedtree-hist", {"cuts": "equal-width"}),
    Run("fedtree-hist", defense="secure-sum+dp-grid-cuts[epsilon=1]"),
    Run("nvflare-hist", defense="secure-sum+grid-cuts[cells=64]"),
    Run("nvflare-hist", {"early_stopping_rounds": 1}),
    Run("nvflare-hist", {"colsample_bytree": 0.6}),
    Run("flower-bagging", defense="mask-sum-hessian"),
    Run("flower-bagging", defense="split-only+leaf-rounding[decimals=2]"),
    Run("xgboost-ring", {"base_score": 0.3}),
    # Which machine receives the sums of a single other machine depends on its position in the ring.
    Run("lightgbm-data", threats=("client[index=1]",)),
    Run("local-forests", {"leaf_counts": False}),
    Run("forest-hist", {"leaf_counts": False}),
    Run("secureboost", defense="reduced-leakage"),
    Run("vertical-regression", {"fake": 100}, threats=("active[queries=40,entries=20]",)),
    Run("horizontal-regression", threats=("client[entries=30]",), clients=2),
)
#: The hand-written reasons: columns protocol, direction, message, field and reason.
REASONS = Path(__file__).with_name("evidence_reasons.csv")
SEALED = "sealed: the adversary has no key for the value"
EMPTY = "empty: the field has no value in any studied run"
NO_GUESS, FAILED = "does not apply", "failed"
#: A training, its federation and its setting.
Trained = tuple[Training, Federation, FederationConfig]
COLUMNS = ("protocol", "adversary", "direction", "message", "field", "read_by", "reason")


@dataclass(frozen=True)
class Piece:
    """One field of the messages of one type that an adversary received, or that it sent itself."""

    direction: str  # "received" or "sent"
    message: str
    field: str


# --- The federation, the runs and the views ---------------------------------------------------


@cache
def _dataset(rows: int) -> Dataset:
    """Return the synthetic table."""
    table, schema = sample_table(rows=2 * rows)
    return Dataset("sample", schema, table)


def train_run(run: Run, threat: str, rows: int = ROWS) -> Trained:
    """Train a protocol on the synthetic table, with the malicious behaviours of a threat.

    Parameters
    ----------
    run : Run
        Protocol, parameters and defense.
    threat : str
        Adversary.
    rows : int
        Number of training rows.
    """
    parameters = {**SMALL.get(run.protocol, _TREES), **run.parameters}
    protocol = register.make("protocol", Spec(run.protocol, parameters))
    setting = FederationConfig.of(DataRef("sample"), Spec("iid"), run.clients, SEED, protocol)
    partition = Partition("iid")
    federation = spread(_dataset(rows), partition, setting.holders, SEED, protocol.layout)
    training = train(
        protocol,
        federation.local_data,
        federation.schema,
        defense=make_defense(parse_composed([run.defense])[0]),
        seed=SEED,
        noise_from="seed",
        behaviours=Threat.parse(threat).behaviours(dict(setting.roles)),
    )
    if protocol.layout != Protocol.layout:  # the default is a partition by rows
        training.predict(federation.test.X)  # the parties route and score these rows together
    return training, federation, setting


def received_view(trained: Trained, threat: str, attack: str = "") -> View:
    """Return the view of an adversary after a run, with the background knowledge of an attack.

    Parameters
    ----------
    trained : tuple
        Training, federation and setting.
    threat : str
        Adversary.
    attack : str
        Attack whose background knowledge is added.
    """
    training, federation, setting = trained
    roles = dict(setting.roles)
    case = federation.case(roles, Threat.parse(threat).principals(roles), SEED, threat, training)
    return with_background(attack, build_view(training, case), case)


def views_of(protocol: str) -> list[tuple[Run, str, Sequence[str]]]:
    """Return run, threat and attacks of every view of a protocol that is studied.

    Every attack runs on the views of one party of each role. A threat that single attacks declare,
    for example with a query budget or with a malicious behaviour, is for these attacks only.
    """
    every, plain = contenders(), Run(protocol)
    instance = register.make("protocol", Spec(protocol, SMALL.get(protocol, _TREES)))
    roles = list(dict.fromkeys(roles_of(instance, CLIENTS).values()))
    views: list[tuple[Run, str, Sequence[str]]] = [(plain, role, every) for role in roles]
    for run in MORE:
        if run.protocol == protocol:
            threats = run.threats or [role for role in roles if role != PUBLIC]
            views += [(run, threat, every) for threat in threats]
    declared: dict[str, list[str]] = {}
    for name in every:
        for threat in register.get("attack", name).threats:
            if set(Threat.parse(threat).roles) <= set(roles):
                declared.setdefault(threat, []).append(name)
    return views + [(plain, threat, attacks) for threat, attacks in declared.items()]


# --- Removing one piece of evidence -----------------------------------------------------------


def pieces_of(view: View) -> dict[Piece, str]:
    """Return the fields of all messages in a view, with why a field is uninformative, or ``""``."""
    pieces: dict[Piece, str] = {}
    for item in view.seen:
        for name in names_of(item.message):
            piece = Piece(_direction(item, view), type(item.message).__name__, name)
            value = getattr(item.message, name)
            reason = SEALED if isinstance(value, Sealed) else EMPTY if _is_empty(value) else ""
            pieces[piece] = reason and pieces.get(piece, reason)
    return pieces


def _is_empty(value: Any) -> bool:
    """Return whether a field has no value."""
    return value is None or value is False or (np.ndim(value) > 0 and not np.size(value))


def _direction(item: Seen, view: View) -> str:
    """Return whether the adversary received or sent a message."""
    return "sent" if item.sender in view.principals and not item.opened else "received"


def views_without(view: View, piece: Piece) -> Iterator[View]:
    """Yield views in which one piece of evidence is removed: absent, neutral, and in reverse order.

    A neutral value is zero or an empty text. Where all values are neutral, they become one. The
    last view has the values in reverse order, because an attack may ignore a field of zeros.
    """
    if piece.field in LINKS:
        remaining = tuple(item for item in view.seen if not _is_of(item, view, piece))
        yield replace(view, seen=remaining)
        return
    for change in (_absent, _neutral, _reverse):
        changed = tuple(_change_field(item, view, piece, change) for item in view.seen)
        if any(new is not old for new, old in zip(changed, view.seen, strict=True)):
            yield replace(view, seen=changed)


def _is_of(item: Seen, view: View, piece: Piece) -> bool:
    """Return whether a message has the type and the direction of a piece."""
    same_type = type(item.message).__name__ == piece.message
    return same_type and _direction(item, view) == piece.direction


def _change_field(item: Seen, view: View, piece: Piece, change: Any) -> Seen:
    """Return a message with the field changed, or the same message if it is not affected."""
    if not _is_of(item, view, piece):
        return item
    message = item.message
    value = getattr(message, piece.field)
    if isinstance(value, Sealed) or value is None:
        return item
    new = change(message, piece.field, value)
    return item if new is value else replace(item, message=_with(message, piece.field, new))


def _with(message: Message, name: str, value: Any) -> Message:
    """Return a message with another value in one field, whatever its class checks."""
    new = object.__new__(type(message))
    vars(new).update(vars(message))
    vars(new)[name] = value
    Message.__post_init__(new)
    return new


def _absent(message: Message, name: str, value: Any) -> Any:
    """Return None if the field is optional."""
    (annotation,) = (str(f.type) for f in fields(message) if f.name == name)
    return None if "None" in annotation else value


def _neutral(message: Message, name: str, value: Any) -> Any:
    """Return a neutral value: zeros, an empty text, or ones if the value is zero."""
    if isinstance(value, np.ndarray):
        return np.zeros_like(value) if value.any() else np.ones_like(value)
    return type(value)() if value else type(value)(1)


def _reverse(message: Message, name: str, value: Any) -> Any:
    """Return the values in reverse order."""
    if not isinstance(value, np.ndarray) or np.array_equal(value, value[::-1]):
        return value
    return value[::-1]


# --- Which attack reads it --------------------------------------------------------------------


def guess_digest(attack: Any, view: View) -> str:
    """Return a digest of an attack's claims, or why there are none."""
    try:
        if attack.inapplicable(view) is not None:
            return NO_GUESS
        claims = attack.run(view, np.random.default_rng(SEED)).claims
    except Exception as error:  # an attack that fails on the reduced view needs the piece
        return f"{FAILED}: {type(error).__name__}"
    digest = sha256()
    for part in _content(claims):
        digest.update(part)
    return digest.hexdigest()


def digest_in_child(attack: Any, view: View) -> str:
    """Return the same, computed in a forked process that a broken message can only end.

    A tree whose node numbers were replaced may have a cycle, on which compiled code never stops, or
    it may point outside an array. Such a run counts as failed.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            warnings.simplefilter("ignore")
            os.write(sender, guess_digest(attack, view).encode())
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as pipe:
        digest = pipe.read()
    os.waitpid(child, 0)
    return digest or f"{FAILED}: the process ended"


def _content(value: Any) -> Iterator[bytes]:
    """Yield the arrays and numbers inside claims as bytes."""
    if isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif is_dataclass(value):
        for item in fields(value):
            yield from _content(getattr(value, item.name))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _content(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield repr(key).encode()
            yield from _content(part)
    else:
        yield repr(value).encode()


@contextmanager
def recorded_access(kinds: Iterable[type[Message]]) -> Iterator[set[tuple[str, str]]]:
    """Record which fields of messages are looked up, by message type and field.

    A field that an attack does not look up cannot change its guess, so that the attack need not run
    again without it. Copies of a message, and tests whether it is sealed, look up every field and
    are not recorded.
    """
    accessed: set[tuple[str, str]] = set()
    fields_of_kind = {kind: {f.name for f in fields(kind)} for kind in kinds}
    copying = {sys.modules[name].__file__ for name in (Message.__module__, "dataclasses")}

    def look_up(message: Message, name: str) -> Any:
        kind = type(message)
        if name == "__dict__":
            accessed.update((kind.__name__, field) for field in fields_of_kind.get(kind, ()))
        elif name in fields_of_kind.get(kind, ()) and _caller() not in copying:
            accessed.add((kind.__name__, name))
        return object.__getattribute__(message, name)

    Message.__getattribute__ = look_up  # type: ignore[method-assign, assignment]
    try:
        yield accessed
    finally:
        del Message.__getattribute__


def _caller() -> str:
    """Return the file of the function that looked up an attribute of a message."""
    return sys._getframe(2).f_code.co_filename


def pieces_read(name: str, view: View, known_pieces: Collection[Piece] = ()) -> Iterator[Piece]:
    """Yield the pieces of evidence in a view that an attack reads, none if it does not apply.

    Parameters
    ----------
    name : str
        Attack.
    view : View
        View of the adversary.
    known_pieces : collection of Piece
        Pieces that the attack is already known to read. They are not tested again.
    """
    attack = register.make("attack", Spec(name, QUICK.get(name, {})))
    with recorded_access({type(item.message) for item in view.seen}) as accessed:
        full_digest = guess_digest(attack, replace(view, oracle=deepcopy(view.oracle)))
    if full_digest == NO_GUESS:
        return
    if full_digest.startswith(FAILED):
        raise FedtreesError(
            f"attack {name!r} {full_digest}, on a view of which nothing was removed"
        )
    pieces = [
        p for p in pieces_of(view) if (p.message, p.field) in accessed and p not in known_pieces
    ]
    if pieces and digest_in_child(attack, view) != full_digest:
        raise FedtreesError(f"attack {name!r} gives two guesses for one seed")
    for piece in pieces:
        if any(digest_in_child(attack, less) != full_digest for less in views_without(view, piece)):
            yield piece


# --- The table --------------------------------------------------------------------------------


def measure(protocol: str, rows: int = ROWS) -> dict[tuple[str, Piece], set[str] | str]:
    """Return the attacks that read every piece, by adversary and piece.

    A text in their place describes why the piece is uninformative. For malicious parties, only
    pieces that an attack reads are listed, because they receive the same messages as honest
    parties.
    """
    read: dict[tuple[str, Piece], set[str]] = {}
    useless: dict[tuple[str, Piece], str] = {}
    trained: dict[tuple[int, str], Trained] = {}
    for run, threat, attacks in views_of(protocol):
        key = id(run) if run in MORE else 0, threat if ":" in threat else ""
        try:
            if key not in trained:
                trained[key] = train_run(run, threat, rows)
            view = received_view(trained[key], threat)
        except (Unfit, UsageError):  # the threat belongs to another kind of protocol
            continue
        adversary = Threat.parse(threat).adversary
        for piece, reason in pieces_of(view).items() if ":" not in threat else ():
            if reason:
                useless.setdefault((adversary, piece), reason)
            else:
                read.setdefault((adversary, piece), set())
        for name in attacks:
            already_read = [p for (who, p), by in read.items() if who == adversary and name in by]
            for piece in pieces_read(name, received_view(trained[key], threat, name), already_read):
                read.setdefault((adversary, piece), set()).add(name)
    return {**useless, **read}


def entry_for(
    reasons: Iterable[Mapping[str, str]], line: Mapping[str, str]
) -> Mapping[str, str] | None:
    """Return the entry of `reasons` that fits a line of the table, None if there is none.

    The first match counts. ``*`` fits everything.
    """
    places = "protocol", "direction", "message", "field"
    return next((r for r in reasons if all(r[at] in ("*", line[at]) for at in places)), None)


def written_reasons() -> list[dict[str, str]]:
    """Return the hand-written reasons why no attack reads a field."""
    with REASONS.open(newline="") as file:
        return list(csv.DictReader(file))


def lines_of(protocol: str, rows: int = ROWS) -> list[dict[str, str]]:
    """Return the lines of the table for one protocol, in alphabetical order."""
    reasons = written_reasons()
    lines = []
    for (adversary, piece), names in measure(protocol, rows).items():
        line = {"protocol": protocol, "adversary": adversary, "direction": piece.direction}
        line |= {"message": piece.message, "field": piece.field}
        if isinstance(names, str):
            line |= {"read_by": "", "reason": names}
        else:
            line["read_by"] = " ".join(sorted(names))
            entry = None if names else entry_for(reasons, line)
            line["reason"] = entry["reason"] if entry else ""
        lines.append(line)
    return sorted(lines, key=lambda line: tuple(line[c] for c in COLUMNS[:5]))


def replace_lines(path: Path, protocol: str, lines: Iterable[Mapping[str, str]]) -> None:
    """Replace the lines of one protocol in a table, so that an interrupted study can continue.

    Parameters
    ----------
    path : Path
        File of the table.
    protocol : str
        Protocol.
    lines : iterable of mapping
        New lines.
    """
    other_lines: list[Mapping[str, str]] = []
    if path.exists():
        with path.open(newline="") as file:
            other_lines = [line for line in csv.DictReader(file) if line["protocol"] != protocol]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            sorted([*other_lines, *lines], key=lambda line: [line[c] for c in COLUMNS[:5]])
        )


def run(options: Namespace) -> Iterator[str]:
    """Study some protocols, and replace their lines in the table."""
    for name in options.protocols:
        if register.get("protocol", name).missing():
            yield f"{name}: left out, because an optional package is missing"
            continue
        replace_lines(options.out, name, lines_of(name))
        yield f"{name}: written"


STUDIES = {
    "evidence_fields": Study(
        "Message fields of every protocol and adversary, with the attacks that read them.",
        run,
        {
            "--out": {"type": Path, "required": True, "help": "CSV file of the table"},
            "--protocols": {"nargs": "+", "default": register.names("protocol"), "help": "names"},
        },
    )
}
