"""List which attacks read which piece of evidence: every message field, protocol and adversary.

`python -m fedtrees.benchmarks.papers.evidence_fields --out docs/studies/evidence.csv` trains every
protocol on a small synthetic table, under no defense and under defenses that add message fields or
make a field informative. For every adversary it then replaces one field of one message type at a
time in the transcript, and runs every attack that applies. An attack *reads* the field if its
claims change for the same random seed, if it fails, or if it no longer applies. The study finds
evidence that an adversary has and that no attack uses. `evidence_read` measures, on real tables,
whether the evidence that is used also raises the scores.
"""

import argparse
import csv
import os
import resource
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedtrees.bench.cells import Setting
from fedtrees.bench.conformance.samples import sample_table
from fedtrees.bench.evaluate import make_defense, seen, with_background
from fedtrees.bench.federation import Federation, spread
from fedtrees.bench.suite import DataRef, roles_of
from fedtrees.core.attack import contenders
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.messages import Message, names_of
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import register
from fedtrees.core.sealed import Sealed
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import Seen, View
from fedtrees.data.dataset import Dataset
from fedtrees.data.partition import Partition
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
#: Runs beyond one undefended run of every protocol: further parameters, and a defense.
MORE: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("fedtree-hist", {}, "split-only+leaf-rounding[decimals=1]"),
    ("fedtree-hist", {"cuts": "equal-width"}, "none"),
    ("fedtree-hist", {}, "secure-sum+dp-grid-cuts[epsilon=1]"),
    ("nvflare-hist", {}, "secure-sum+grid-cuts[cells=64]"),
    ("nvflare-hist", {"early_stopping_rounds": 1}, "none"),
    ("nvflare-hist", {"colsample_bytree": 0.6}, "none"),
    ("flower-bagging", {}, "mask-sum-hessian"),
    ("flower-bagging", {}, "split-only+leaf-rounding[decimals=2]"),
    ("local-forests", {"leaf_counts": False}, "none"),
    ("forest-hist", {"leaf_counts": False}, "none"),
    ("secureboost", {}, "reduced-leakage"),
)
#: The hand-written reasons: columns protocol, message, field and reason.
REASONS = Path(__file__).with_name("evidence_reasons.csv")
SEALED = "sealed: the adversary has no key for the value"
EMPTY = "empty: the field has no value in any studied run"
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
    table, schema = sample_table(rows=2 * rows)
    return Dataset("sample", schema, table)


def run_protocol(
    name: str, parameters: dict[str, Any], defense: str, threat: str, rows: int = ROWS
) -> tuple[Training, Federation, Setting]:
    """Train a protocol on the synthetic table, with the malicious behaviours of a threat."""
    protocol = register.make("protocol", Spec(name, {**SMALL.get(name, _TREES), **parameters}))
    setting = Setting.of(DataRef("sample"), Spec("iid"), CLIENTS, SEED, protocol)
    federation = spread(_dataset(rows), Partition("iid"), setting.holders, SEED, protocol.layout)
    training = train(
        protocol,
        federation.local_data,
        federation.schema,
        defense=make_defense(parse_composed([defense])[0]),
        seed=SEED,
        noise_from="seed",
        behaviours=Threat.parse(threat).behaviours(dict(setting.roles)),
    )
    return training, federation, setting


def views_of(protocol: str) -> list[tuple[dict[str, Any], str, str, Sequence[str]]]:
    """Return parameters, defense, threat and attacks of every view of a protocol that is studied.

    Every attack runs on the views of one party of each role. A threat that single attacks declare,
    for example with a query budget or with a malicious behaviour, is for these attacks only.
    """
    every = contenders()
    made = register.make("protocol", Spec(protocol, SMALL.get(protocol, _TREES)))
    roles = list(dict.fromkeys(role for role in roles_of(made, CLIENTS).values()))
    declared: dict[str, list[str]] = {}
    for name in every:
        for threat in register.get("attack", name).threats:
            if set(Threat.parse(threat).roles) <= set(roles):
                declared.setdefault(threat, []).append(name)
    views: list[tuple[dict[str, Any], str, str, Sequence[str]]]
    views = [({}, "none", role, every) for role in roles]
    more = [(p, defense) for name, p, defense in MORE if name == protocol]
    views += [(p, d, role, every) for p, d in more for role in roles if role != PUBLIC]
    return views + [({}, "none", threat, some) for threat, some in declared.items()]


# --- Removing one piece of evidence -----------------------------------------------------------


def pieces_of(view: View) -> dict[Piece, str]:
    """Return the fields of all messages in a view, with why a field tells nothing, or ``""``."""
    pieces: dict[Piece, str] = {}
    for item in view.seen:
        for name in names_of(item.message):
            piece = Piece(_direction(item, view), type(item.message).__name__, name)
            value = getattr(item.message, name)
            reason = SEALED if isinstance(value, Sealed) else EMPTY if _is_empty(value) else ""
            pieces[piece] = reason and pieces.get(piece, reason)
    return pieces


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (np.ndim(value) > 0 and not np.size(value))


def _direction(item: Seen, view: View) -> str:
    return "sent" if item.sender in view.principals and not item.opened else "received"


def views_without(view: View, piece: Piece) -> Iterator[View]:
    """Yield views in which one piece of evidence is removed: absent, neutral, and in reverse order.

    A neutral value is zero or an empty text. Where all values are neutral, they become one. The
    last view has the values in reverse order, because an attack may ignore a field of zeros.
    """
    if piece.field in LINKS:
        kept = tuple(item for item in view.seen if not _is_of(item, view, piece))
        yield replace(view, seen=kept)
        return
    for change in (_absent, _neutral, _reversed):
        changed = tuple(_changed(item, view, piece, change) for item in view.seen)
        if any(new is not old for new, old in zip(changed, view.seen, strict=True)):
            yield replace(view, seen=changed)


def _is_of(item: Seen, view: View, piece: Piece) -> bool:
    """Tell whether a message has the type and the direction of a piece."""
    same_type = type(item.message).__name__ == piece.message
    return same_type and _direction(item, view) == piece.direction


def _changed(item: Seen, view: View, piece: Piece, change: Any) -> Seen:
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
    (annotation,) = (str(f.type) for f in fields(message) if f.name == name)
    return None if "None" in annotation else value


def _neutral(message: Message, name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.zeros_like(value) if value.any() else np.ones_like(value)
    return type(value)() if value else type(value)(1)


def _reversed(message: Message, name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray) or np.array_equal(value, value[::-1]):
        return value
    return value[::-1]


# --- Which attack reads it --------------------------------------------------------------------


def guess_digest(attack: Any, view: View) -> str:
    """Return a digest of an attack's claims, or why there are none."""
    try:
        if attack.inapplicable(view) is not None:
            return "does not apply"
        claims = attack.run(view, np.random.default_rng(SEED)).claims
    except Exception as error:  # an attack that fails on the reduced view needs the piece
        return f"failed: {type(error).__name__}"
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
    return digest or "failed: the process ended"


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
    known = {kind: {f.name for f in fields(kind)} for kind in kinds}
    copying = {sys.modules[name].__file__ for name in (Message.__module__, "dataclasses")}

    def look_up(message: Message, name: str) -> Any:
        kind = type(message)
        if name == "__dict__":
            accessed.update((kind.__name__, field) for field in known.get(kind, ()))
        elif name in known.get(kind, ()) and _caller() not in copying:
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


def pieces_read(name: str, view: View, known: Collection[Piece] = ()) -> Iterator[Piece]:
    """Yield the pieces of evidence in a view that an attack reads; none if it does not apply.

    `known`: Pieces that it is known to read, which are not tried again.
    """
    attack = register.make("attack", Spec(name, QUICK.get(name, {})))
    with recorded_access({type(item.message) for item in view.seen}) as accessed:
        whole = guess_digest(attack, replace(view, oracle=deepcopy(view.oracle)))
    if not _is_guess(whole):
        return
    pieces = [p for p in pieces_of(view) if (p.message, p.field) in accessed and p not in known]
    if pieces and digest_in_child(attack, view) != whole:
        raise FedtreesError(f"attack {name!r} gives two guesses for one seed")
    for piece in pieces:
        if any(digest_in_child(attack, less) != whole for less in views_without(view, piece)):
            yield piece


def _is_guess(digest: str) -> bool:
    return digest != "does not apply" and not digest.startswith("failed")


# --- The table --------------------------------------------------------------------------------


def _views(run: tuple[Training, Federation, Setting], threat: str) -> Callable[[str], View]:
    """Return a function from an attack to the view that it receives under a threat."""
    training, federation, setting = run
    roles = dict(setting.roles)
    case = federation.case(roles, Threat.parse(threat).principals(roles), SEED, threat, training)
    view = seen(training, case)
    return lambda attack: with_background(attack, view, case)


def measure(protocol: str, rows: int = ROWS) -> dict[tuple[str, Piece], set[str] | str]:
    """Return the attacks that read every piece, by adversary and piece.

    A text in their place says why the piece tells nothing. Of malicious parties only the pieces are
    listed that an attack reads: what else they receive, they receive as honest parties, too.
    """
    read: dict[tuple[str, Piece], set[str]] = {}
    useless: dict[tuple[str, Piece], str] = {}
    trained: dict[str, tuple[Training, Federation, Setting]] = {}
    for parameters, defense, threat, attacks in views_of(protocol):
        run = f"{parameters} {defense} {threat if ':' in threat else ''}"
        try:
            if run not in trained:
                trained[run] = run_protocol(protocol, parameters, defense, threat, rows)
            view_for, adversary = _views(trained[run], threat), Threat.parse(threat).adversary
        except (Unfit, UsageError):  # the threat belongs to another kind of protocol
            continue
        view = view_for("")
        for piece, reason in pieces_of(view).items() if ":" not in threat else ():
            if reason:
                useless.setdefault((adversary, piece), reason)
            else:
                read.setdefault((adversary, piece), set())
        for name in attacks:
            known = [p for (who, p), by in read.items() if who == adversary and name in by]
            for piece in pieces_read(name, view_for(name), known):
                read.setdefault((adversary, piece), set()).add(name)
    return useless | read  # type: ignore[operator]


def reason_of(reasons: Iterable[Mapping[str, str]], line: Mapping[str, str]) -> str:
    """Return why no attack reads the field of a line of the table; empty: no reason is written.

    The first fitting entry of `reasons` counts; ``*`` fits every protocol, message or field.
    """
    places = "protocol", "message", "field"
    fitting = (r for r in reasons if all(r[at] in ("*", line[at]) for at in places))
    return next((r["reason"] for r in fitting), "")


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
            line["reason"] = "" if names else reason_of(reasons, line)
        lines.append(line)
    return sorted(lines, key=lambda line: tuple(line[c] for c in COLUMNS[:5]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study for some protocols, and replace their lines in the table."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.papers.evidence_fields")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--protocols", nargs="+", default=register.names("protocol"))
    options = parser.parse_args(arguments)
    for name in options.protocols:
        if register.get("protocol", name).missing():
            print(f"{name}: left out, because an optional package is missing", file=sys.stderr)
            continue
        replace_lines(options.out, name, lines_of(name))
        print(f"{name}: written", file=sys.stderr, flush=True)


def replace_lines(path: Path, protocol: str, lines: Iterable[Mapping[str, str]]) -> None:
    """Replace the lines of one protocol in a table, so that an interrupted study can go on."""
    kept: list[Mapping[str, str]] = []
    if path.exists():
        with path.open(newline="") as file:
            kept = [line for line in csv.DictReader(file) if line["protocol"] != protocol]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, *lines], key=lambda line: [line[c] for c in COLUMNS[:5]]))


if __name__ == "__main__":
    main()
