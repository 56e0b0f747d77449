"""Does a protocol, defense, attack or behaviour keep the rules? What `fedtrees check` runs."""

import ast
import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedtrees.bench.federation import Federation
from fedtrees.bench.held_values import held_values
from fedtrees.bench.reach import others_rows
from fedtrees.bench.stated import Seen, beside_exact, departures, farther_apart, watched
from fedtrees.bounds.ceiling import pooled, splits
from fedtrees.bounds.tables import TinyTables
from fedtrees.bounds.views import Tiny, views
from fedtrees.core.attack import Attack
from fedtrees.core.channel import Channel, Share
from fedtrees.core.codec import decode, encode
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense, Stage
from fedtrees.core.errors import FedtreesError, UnguardedMessageError, UsageError
from fedtrees.core.guarantee import Guarantee, NoGuarantee
from fedtrees.core.guess import Guess, Records
from fedtrees.core.local_data import LocalData, over_clients, stacked
from fedtrees.core.messages import Message, emptied
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import loaded_plugins, register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import View
from fedtrees.data.dataset import prepare
from fedtrees.data.layout import LAYOUTS, lay_out
from fedtrees.data.partition import Partition
from fedtrees.isolation.plugins import Elsewhere
from fedtrees.isolation.process import Answer, attacks
from fedtrees.isolation.watch import HOLD_TRUTH, leaving
from fedtrees.metrics.metric import Case
from fedtrees.metrics.records import score_records
from fedtrees.protocols.base import Protocol, Training, train
from fedtrees.protocols.fit import Data, fit
from fedtrees.protocols.views import view_of

# What a file needs that brings its own claim: the bases of metrics hold no truth.
_BASES = "fedtrees.metrics.metric"
QUERIES = 1000  # rows that an attack which asks may ask for, each time that it runs
KNOWN = "holder[labels=20]"  # what attacks that know a few labels know
# Of `Protocol.serves`: what is called, and limits that change the small run.
_HOOKS = ("rows", "candidates", "shown")
_LIMITS = {
    "gradient_clip": 0.01, "least_leaf_rows": 25, "poisson_sampling": True, "declared_rows": 99,
    "row_bounds": (0.5, 0.1),
}  # fmt: skip
_SMALL: dict[str, Any] = {"trees": 3, "max_depth": 3, "max_bin": 16, "iterations": 8}
#: Networks learn in few long steps, and cryptography takes time by their parameters.
_SMALL_NETWORK: dict[str, Any] = {"units": 8, "rounds": 8, "lr": 1.0}


#: Of a protocol that states noise: much is released, and nothing that follows depends on it.
_RELEASING: dict[str, Any] = {"trees": 40, "learning_rate": 1e-9}
_RELEASES = 3
#: One row a client: whatever there is of leaves has room for it.
_ON_FEW: dict[str, Any] = {"base_score": 0.5, "min_child_weight": 0.0}


@dataclass(frozen=True)
class Finding:
    """One rule, whether it was kept, and what was seen."""

    rule: str
    kept: bool
    detail: str = ""


def check(kind: str, spec: Spec, protocols: Sequence[str] | None = None) -> list[Finding]:
    """Check one registered thing against the rules of its kind.

    `protocols`: What a defense or an attack is checked beside; None is every protocol there is.
    """
    beside = trainable() if protocols is None else protocols
    checks: dict[str, Callable[[Any], Iterator[Finding]]] = {
        "protocol": check_protocol,
        "defense": lambda made: check_defense(made, beside),
        "attack": lambda made: check_attack(made, spec, beside),
        "behaviour": lambda made: check_behaviour(made, beside),
    }
    found: list[Finding] = []
    try:
        if kind == "protocol":
            spec = _small(spec)
        whole = kind != "behaviour"  # which is of a party that a protocol makes
        made = register.make(kind, spec) if whole else register.get(kind, spec.name)
        for finding in chain(imported_cleanly(made), checks[kind](made)):
            found.append(finding)
    except Exception as err:
        text = str(err) if isinstance(err, FedtreesError) else f"{type(err).__name__}: {err}"
        found.append(Finding("it can be constructed and run", False, text))
    return found


def trainable() -> list[str]:
    """Return the protocols whose extra, if they need one, is installed."""
    return [
        name for name in register.names("protocol") if not register.get("protocol", name).missing()
    ]


def sample_table(seed: int = 0, rows: int = 240) -> tuple[Table, Schema]:
    """Make a small table nobody could know by heart."""
    rng = np.random.default_rng([77, seed])
    X = rng.normal(size=(rows, 5)) * [1, 10, 3, 0.5, 2]  # as many bits as a float32 has
    X[:, 4] = rng.integers(0, 3, rows)
    y = (X[:, 0] + X[:, 1] / 10 + rng.normal(0, 0.5, rows) > 0).astype(np.int64)
    names = ["a", "b", "c", "d"]
    features = [Feature(n, low=-50, high=50) for n in names]
    kinds = Feature("e", kind="categorical", categories=("x", "y", "z"))
    return Table(X.astype(np.float32), y), Schema((*features, kinds), "label")


def sample_local_data(protocol: Protocol, parties: int = 3) -> dict[str, LocalData]:
    """Lay the small table out over the parties of a protocol that hold data."""
    table, schema = sample_table()
    names = protocol.holder_names(parties)
    rng = Streams(0).rng("sample")
    return lay_out(protocol.layout, table, schema, names, Partition("iid"), rng)


def sample_training(
    protocol: Protocol, defense: Composition | None = None, parties: int = 3, seed: int = 5
) -> tuple[Training, dict[str, LocalData]]:
    """Train on the small table."""
    held, (_, schema) = sample_local_data(protocol, parties=parties), sample_table()
    run = train(protocol, held, schema, defense=defense, seed=seed, noise_from="seed")
    return run, held


def check_protocol(protocol: Protocol) -> Iterator[Finding]:
    """Check determinism, encodable messages, reasons, read-only views, any number of parties."""
    left: list[str] = []
    with leaving(left):
        (first, held), (again, _) = (sample_training(protocol) for _ in range(2))
    yield Finding("the same seed gives the same run", _same_run(first, again))
    yield leaves_nothing("", left)
    messages = [d.message for d in first.transcript]
    yield Finding(
        "every message survives the codec", all(_alike(m, decode(encode(m))) for m in messages)
    )
    silent = [type(d.message).__name__ for d in first.transcript if not d.why]
    yield Finding("every crossing has a reason", not silent, ", ".join(silent))
    undeclared = {
        type(d.message).__name__
        for d in first.transcript
        if d.receivers != (PUBLIC,) and type(d.message) not in protocol.says
    }
    yield Finding("what crosses is declared (`says`)", not undeclared, ", ".join(undeclared))
    seen = {type(message) for message in messages}
    silent = [m.__name__ for m in protocol.says if m not in seen and m not in protocol.sometimes]
    rule = "what is declared crosses, or `sometimes` says when (`says`)"
    yield Finding(rule, not silent, ", ".join(silent))
    yield from _serves(protocol, first)
    yield from _releases(protocol)
    yield carries_nothing("", first, held)
    if first.net is not None:
        led = others_rows(first.net, held)
        yield Finding("no party leads to another's rows", not led, "; ".join(led))
    views = [view_of(first, (name,), held) for name in first.transcript.roles]
    yield Finding("no array in a view is writeable", not any(map(_writeable, views)))
    table, _ = sample_table()
    hit = float(((first.predict(table.X) > 0.5) == table.y).mean())
    yield Finding(
        "the model learns (positive control)",
        bool(hit > max(table.y.mean(), 1 - table.y.mean())),
        f"training accuracy {hit:.3f}",
    )
    for count in (1, 5):
        try:
            ran, why = sample_training(protocol, parties=count)[0].n_rows == 240, ""
        except UsageError as err:  # it says how many it needs
            ran, why = True, str(err)
        yield Finding(f"it runs with {count} parties, or says why not", ran, why)


def _releases(protocol: Protocol) -> Iterator[Finding]:
    """See that what it guarantees comes of noise that it states, and that this is what it adds."""
    _, schema = sample_table()
    stated, exact = protocol.laws(schema), protocol.exact()
    if not stated:
        rule = "what it claims comes of what it states (`laws`)"
        yield Finding(rule, isinstance(protocol.claim(), NoGuarantee), str(protocol.claim()))
        return
    rule = "what it states can be held against itself without noise (`exact`)"
    yield Finding(rule, exact is not None and not _noisy(exact, schema))
    if exact is None:
        return
    many = {name: value for name, value in _RELEASING.items() if hasattr(protocol, name)}
    noisy, exact = (replace(made, **many) for made in (protocol, exact))  # type: ignore[type-var]
    stated, seen = noisy.laws(schema), Seen()
    for seed in range(_RELEASES):
        runs = [sample_training(made, seed=seed)[0] for made in (noisy, exact)]
        for place, found in beside_exact(stated, *(run.transcript for run in runs)).items():
            seen.setdefault(place, []).extend(found)
    shares = 1 if noisy.summed else len(sample_local_data(noisy))  # of what is read
    for place, wrong in departures(stated, seen, shares):
        rule = f"what it does to {place} is what it states (`laws`)"
        yield Finding(rule, wrong is None, wrong or "")


def _noisy(protocol: Protocol, schema: Schema) -> bool:
    """Tell whether a protocol states noise of a field."""
    return any(isinstance(law, Channel | Share) for law in protocol.laws(schema).values())


def carries_nothing(
    name: str,
    training: Training,
    held: Mapping[str, LocalData],
    kinds: tuple[type[Message], ...] = (),
) -> Finding:
    """See that no message carries what somebody holds without saying so (`Message.verbatim`).

    Of a defense, those of its `kinds` are searched: it changes no others.
    """
    found = held_values(training.transcript, held, training.schema, kinds)
    return Finding(f"{name}no message carries held values unsaid", not found, "; ".join(found))


def leaves_nothing(name: str, left: Sequence[str]) -> Finding:
    """See that a training left nothing outside its messages, where an attack could find it."""
    what = "; ".join(dict.fromkeys(left))
    return Finding(f"{name}training leaves nothing but messages", not left, what)


def _serves(protocol: Protocol, plain: Training) -> Iterator[Finding]:
    """See that every hook is called and every limit kept that the protocol says it serves."""
    for name in sorted(protocol.serves):
        called: list[str] = []
        probe = _probe(name, called)
        try:
            run, _ = sample_training(protocol, Composition((probe,)))
            kept, why = bool(called) if name in _HOOKS else not _same_run(run, plain), ""
        except UsageError as err:  # not under these parameters, and it says so
            kept, why = True, str(err)
        yield Finding(f"its parties keep to {name} (`serves`), or say why not", kept, why)


def _probe(name: str, called: list[str]) -> Defense:
    """Make a defense that uses one hook, and notes that it was asked, or one limit."""

    def hook(self: Defense, what: Any, *rest: Any) -> Any:
        if not (isinstance(what, Stage) and what.kind == "labels"):  # which need no hook
            called.append(name)
        return rest[0] if isinstance(what, Stage) else what

    use = {name: hook if name in _HOOKS else _LIMITS[name]}
    use["acts_through"] = frozenset({name} & {*_HOOKS})
    probe: Defense = dataclass(frozen=True)(type("Probe", (Defense,), use))()
    return probe


def check_defense(defense: Defense, protocols: Sequence[str]) -> Iterator[Finding]:
    """Check the claim, determinism, message types, that it acts, and that it fails closed."""
    claim = defense.claim()
    yield Finding("it states its claim as a value", isinstance(claim, Guarantee), str(claim))
    acts = not defense.protects or bool(defense.at)
    open_ = (
        "" if defense.protects else "`protects` is empty: a message that it forgets crosses bare"
    )
    yield Finding("what it protects, it protects somewhere (`at`)", acts, open_)
    ran, composed, summed = False, Composition((defense,)), list[Finding]()
    for name in protocols:
        protocol = _made(name)
        if protocol is None or not fit(protocol, composed).ok:
            continue
        ran = True
        noted, seen = watched(defense)
        noting = Composition((noted,))
        left: list[str] = []
        try:
            with leaving(left):
                first, held = sample_training(protocol, composed)
                again, _ = sample_training(protocol, noting)
        except UnguardedMessageError as err:
            yield Finding(f"{name}: it handles every message it must", False, str(err))
            continue
        yield Finding(f"{name}: the same seed gives the same run", _same_run(first, again))
        first.predict(sample_table()[0].X)  # some act on answers alone
        acts = bool(first.transcript.acted) or not _crosses(defense, first)
        yield Finding(f"{name}: it acts on something", acts)
        yield from _states(defense, again, seen, name)
        if "summed" in defense.acts_through and not summed:
            summed = [*_sums_alone(defense, protocol)]
            yield from summed
        if defense.guards:
            yield carries_nothing(f"{name}: ", first, held, defense.guards)
        yield leaves_nothing(f"{name}: ", left)
        plain = _undefended(name, type(protocol))
        revealing = {type(m) for m in plain if m.reveals & defense.protects}
        yield from _fails_closed(defense, protocol, revealing)
        yield from _guards_do_something(defense, protocol, first, plain)
        spent = defense.spent(first.transcript)
        yield Finding(f"{name}: it says what was spent", isinstance(spent, Guarantee), str(spent))
    yield Finding("it runs with at least one protocol", ran)


def _crosses(defense: Defense, run: Training) -> bool:
    """Tell whether a run may tell any field that a defense says it changes."""
    places = defense.channels(run.schema, run.protocol.parameters)
    plain = _undefended(run.protocol.name, type(run.protocol))
    return not places or any(
        isinstance(site, str) or getattr(m, field) is not None
        for site, field in places for m in plain
        if isinstance(site, str) or isinstance(m, site)
    )  # fmt: skip


@lru_cache
def _undefended(name: str, kind: type[Protocol]) -> tuple[Message, ...]:
    """Return what a protocol, of this class now, sends on the small table; defenses share it."""
    protocol = _made(name)
    assert type(protocol) is kind
    return tuple(d.message for d in sample_training(protocol)[0].transcript)


def _states(defense: Defense, run: Training, seen: Seen, name: str) -> Iterator[Finding]:
    """See that each field passes the channel that is stated of it."""
    run.predict(sample_table()[0].X)
    stated = dict(defense.channels(run.schema, run.protocol.parameters))
    for place, wrong in departures(stated, seen, len(run.columns)):
        rule = f"{name}: what it does to {place} is what it states (`channels`)"
        yield Finding(rule, wrong is None, wrong or "")
    for place, farther in farther_apart(defense.nonexpansive, stated, seen):
        rule = f"{name}: it brings no tables farther apart at {place} (`nonexpansive`)"
        yield Finding(rule, not farther, farther)
    limits = defense.least_leaf_rows > 0 and ("leaves", "rows") not in stated
    yield Finding(f"{name}: it states its limit on leaves (`channels`)", not limits)


def _sums_alone(defense: Defense, protocol: Protocol) -> Iterator[Finding]:
    """See that tables of the same rows, whoever holds which, look alike to who opens sums.

    Cut points are public, where they can be: summaries of columns are no sums.
    """
    if "cuts" in defense.acts_through:  # it settles cut points by what it sums
        return
    composed = Composition((register.make("defense", Spec("public-cuts")), defense))
    tables = TinyTables(columns=1, rows=(1, 1))
    random = bool(protocol.laws(tables.schema))
    if random or not fit(protocol, composed, data=Data(tables.schema)).ok:
        return
    few = {name: value for name, value in _ON_FEW.items() if hasattr(protocol, name)}
    tiny = Tiny(tables, replace(protocol, **few), composed)  # type: ignore[type-var]
    opens = next(role for role in tiny.roles.values() if role not in protocol.holders)
    swapped = [1, 4]  # rows of types 0 and 1, either way round
    (found,) = views(tiny, [opens], swapped)
    apart = splits(found, pooled(tables)[swapped])[1]
    rule = f"{protocol.name}: the sums that it opens tell rows, and not who holds them"
    yield Finding(rule, not apart)


def _fails_closed(
    defense: Defense, protocol: Protocol, revealing: set[type[Message]]
) -> Iterator[Finding]:
    """Take each guard away that has something to hide here, and see the run stop."""
    for kind in defense.guards:
        if kind not in revealing:
            continue
        rest = tuple(g for g in defense.guards if g is not kind)
        kept = {"guards": rest, "requires": defense.requires or defense.guards}
        bare = type(f"Without{kind.__name__}", (type(defense),), kept)
        broken = bare(**{f.name: getattr(defense, f.name) for f in fields(defense)})  # type: ignore[arg-type]
        rule = f"{protocol.name}: without its guard on {kind.__name__} the run stops"
        try:
            sample_training(protocol, Composition((broken,)))
            yield Finding(rule, False)
        except (UnguardedMessageError, UsageError):  # or nothing is left that it acts on
            yield Finding(rule, True)


def _guards_do_something(
    defense: Defense, protocol: Protocol, defended: Training, plain: Sequence[Message]
) -> Iterator[Finding]:
    """See that a guarded message that reveals what is protected is not sent as it was."""

    def sent(messages: Sequence[Message], kind: type[Message]) -> list[bytes]:
        return [encode(message) for message in messages if type(message) is kind]

    crossed = [d.message for d in defended.transcript]
    for kind in defense.guards:
        if kind in protocol.summed:  # sums alone are opened in any case
            continue
        reveals = {r for message in plain if type(message) is kind for r in message.reveals}
        if reveals & defense.protects:
            changed = sent(crossed, kind) != sent(plain, kind)
            yield Finding(f"{protocol.name}: its guard changes what {kind.__name__} says", changed)


def check_attack(attack: Attack, spec: Spec, protocols: Sequence[str]) -> Iterator[Finding]:
    """Check imports, determinism, that truth does not matter, and the empty transcript.

    It runs where a bench runs it, in a process of its own, while other rows lie in this one.
    """
    reached = sorted(_imports_of(attack))
    bad = [n for n in reached if n.startswith(HOLD_TRUTH) and not f"{n}.".startswith(f"{_BASES}.")]
    yield Finding("it imports nothing that holds truth", not bad, ", ".join(bad))
    ran = False
    views = (*_views_without_truth(protocols), *(_blind_views() if attack.blind else ()))
    views += tuple(_views_that_tell(attack, protocols))
    for behaviour in attack.behaviours:
        views += tuple(
            (f"{run.protocol.name}, {who}:{behaviour}", view_of(run, (who,), held))
            for run, held, who in cheated_runs(behaviour, protocols)
        )
    for name, view in views:
        if not fit(attack=spec, data=Data(view=view)).ok:
            continue
        ran = True
        if attack.candidates:
            view = replace(view, candidates=sample_table()[0])
        try:
            attacks().run(spec, view.blinded(), anyway=True)
            ok, detail = True, ""
        except FedtreesError as err:
            ok, detail = False, str(err)
        yield Finding(f"{name}: it survives an empty transcript", ok, detail)
        answers = [_run_beside_bait(spec, view, seed) for seed in (1, 2, 1)]
        guesses = [answer.guess for answer in answers if answer.guess is not None]
        fits = all(_fits(g, view.schema) for g in guesses)
        yield Finding(f"{name}: guessed rows have the columns of the schema", fits)
        yield Finding(f"{name}: the same view gives the same guess", _same(guesses[0], guesses[2]))
        copied = max(_copied(g, s, view.schema) for g, s in zip(guesses[:2], (1, 2), strict=True))
        yield Finding(
            f"{name}: it returns no rows from outside its view",
            copied < 0.5,
            f"{copied:.0%} of unseen rows returned exactly",
        )
        touched = dict.fromkeys(what for answer in answers for what in answer.touched)
        rule = f"{name}: it opens no file, no socket and no module with truth"
        yield Finding(rule, not touched, ", ".join(touched))
    yield Finding("it runs with at least one protocol", ran)


def check_behaviour(behaviour: Any, protocols: Sequence[str]) -> Iterator[Finding]:
    """Check what it says of itself, whose place it takes, and that nobody else need change."""
    told = bool(behaviour.beyond and behaviour.noticed)
    yield Finding("it says what it does beyond, and whether others notice", told)
    ran = False
    for run, _, who in cheated_runs(behaviour.name, protocols):
        ran, name = True, f"{run.protocol.name}, {who}"
        twice = cheated_runs(behaviour.name, [run.protocol.name])
        again = next(other for other, _, party in twice if party == who)
        yield Finding(f"{name}: two runs of one seed are one", _same_transcript(run, again))
        sent = {type(d.message) for d in run.transcript if d.sender == who}
        other = sorted(kind.__name__ for kind in sent - {*run.protocol.says, *_released(run)})
        rule = f"{name}: it sends messages of the protocol alone"
        yield Finding(rule, not other, ", ".join(other))
    yield Finding("it takes the place of a party of at least one protocol", ran)


def cheated_runs(
    behaviour: str, protocols: Sequence[str]
) -> Iterator[tuple[Training, dict[str, LocalData], str]]:
    """Train every protocol that has a party whose place a behaviour takes; yield who cheats."""
    for name in protocols:
        protocol = _made(name)
        if protocol is None:
            continue
        held, (_, schema) = sample_local_data(protocol), sample_table()
        last = {role: who for who, role in protocol.roles(3).items()}
        for who in last.values():
            cheats = {who: behaviour}
            with contextlib.suppress(Unfit):
                yield (
                    train(protocol, held, schema, seed=5, noise_from="seed", behaviours=cheats),
                    held,
                    who,
                )


def _released(run: Training) -> set[type[Message]]:
    return {type(d.message) for d in run.transcript if d.receivers == (PUBLIC,)}


def _same_transcript(a: Training, b: Training) -> bool:
    return [encode(d.message) for d in a.transcript] == [encode(d.message) for d in b.transcript]


def _rng() -> np.random.Generator:
    return Streams(3).rng("conformance")


def _views_without_truth(protocols: Sequence[str]) -> Iterator[tuple[str, View]]:
    """Train every protocol and yield a view per role, of which everybody else's rows are gone."""
    for name in protocols:
        protocol = _made(name)
        if protocol is not None:
            views = _views_of(name, type(protocol))
            yield from ((f"{name}, {role}", view) for role, view in views.items())


@lru_cache
def _views_of(name: str, kind: type[Protocol]) -> dict[str, View]:
    """Train a protocol, of this class now, and return a view per role; attacks share them."""
    protocol = _made(name)
    assert type(protocol) is kind
    training, held = sample_training(protocol)
    training.predict(sample_table()[0].X)  # a model that nobody holds whole asks parties
    last = {role: who for who, role in training.transcript.roles.items()}
    views = {}
    for role, who in last.items():
        known, records = None, "chosen"
        if who in held and held[who].y is None:
            case = Case(held, training.transcript.roles, (who,), training.schema, Streams(3), KNOWN)
            known, records = case.known, "held"  # rows that only others have the labels of
        views[role] = view_of(training, (who,), held, QUERIES, records=records, known=known)
    return views


def _views_that_tell(attack: Attack, protocols: Sequence[str]) -> Iterator[tuple[str, View]]:
    """Yield views of who is told all but one attribute, where an attack's threats say so."""
    threats = [t for t in attack.threats if Threat.parse(t).sensitive is not None]
    for name in protocols if threats else ():
        protocol = _made(name)
        if protocol is None:
            continue
        training, held = sample_training(protocol)
        for threat in threats:
            roles = training.transcript.roles
            with contextlib.suppress(UsageError):  # no such role, or columns of rows
                who = Threat.parse(threat).principals(roles)
                case = Case(held, roles, who, training.schema, Streams(3), threat)
                told = {"known": case.known, "entries": case.entries}
                yield f"{name}, {threat}", view_of(training, who, held, **told)


def _blind_views() -> Iterator[tuple[str, View]]:
    """Yield what every holder of a table knows before any training, whatever the layout."""
    table, schema = sample_table()
    for layout in LAYOUTS:
        for names in (["holder-0", "holder-1"], ["holder-0"]):
            try:
                held = lay_out(layout, table, schema, names, Partition("iid"), _rng())
            except UsageError:  # it is for other numbers of parties
                continue
            roles = dict.fromkeys(names, "holder")
            for name in names:
                case = Case(held, roles, (name,), schema, Streams(3), KNOWN)
                yield f"{layout}, {name} of {len(names)}", case.blind_view()


def _run_beside_bait(attack: Spec, view: View, seed: int) -> Answer:
    """Run an attack while rows that have nothing to do with its view lie in this process."""
    federation = _bait(seed)
    if view.oracle is not None:
        view.oracle.log.clear()
    answer = attacks().run(attack, view, watch=True)
    del federation
    return answer


def _bait(seed: int) -> Federation:
    """Make rows of the same shape that no view has seen, held as a bench holds the truth."""
    table, schema = sample_table(100 + seed)
    parts = [table.take(rows) for rows in np.array_split(np.arange(len(table)), 3)]
    return Federation(prepare("bait", schema, table.X, table.y), over_clients(parts), table, None)


def _fits(guess: Guess, schema: Schema) -> bool:
    return all(r.table.X.shape[1] == len(schema.features) for r in guess.all(Records))


def _copied(guess: Guess, seed: int, schema: Schema) -> float:
    """Return the share of bait rows that the guess reproduces exactly."""
    found = [r.table for r in guess.all(Records) if len(r.table)]
    if not found or not _fits(guess, schema):
        return 0.0
    truth = stacked(list(_bait(seed).local_data.values())[:-1], schema)
    assert truth is not None
    return score_records(found[0], truth, schema).exact_rows


def imported_cleanly(thing: Any) -> Iterator[Finding]:
    """See that the import of a plugin's file does nothing but register.

    It is imported beside a bench without truth, where what it changes does no harm.
    """
    here = sys.modules.get(type(thing).__module__)
    file = thing.file if isinstance(thing, Elsewhere) else getattr(here, "__file__", None)
    known = {str(Path(path)): digest for path, digest in loaded_plugins()}
    if file is None or str(file) not in known:
        return
    did = attacks().describe(str(file), known[str(file)], bait=True)["did"]
    did = dict.fromkeys([*(thing.did if isinstance(thing, Elsewhere) else ()), *did])
    yield Finding("its import does nothing but register", not did, "; ".join([*did][:6]))


def _imports_of(attack: Attack) -> set[str]:
    """Return the modules that an attack imports, whether its code is here or elsewhere."""
    if not isinstance(attack, Elsewhere):
        return _imports(sys.modules[type(attack).__module__])
    return _named_imports(Path(attack.file).read_text(encoding="utf-8"))


def _named_imports(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return found


def _imports(module: ModuleType, seen: set[str] | None = None) -> set[str]:
    """Return the modules a module imports, following those beside it in its own package."""
    seen = set() if seen is None else seen
    seen.add(module.__name__)
    found = _named_imports(inspect.getsource(module))
    package = module.__name__.rpartition(".")[0]
    for name in list(found):
        beside = sys.modules.get(name)
        if package and beside is not None and name.startswith(f"{package}.") and name not in seen:
            found |= _imports(beside, seen)
    return found


def _small(spec: Spec) -> Spec:
    """Return a protocol with few trees where it has such parameters: they show all there is."""
    known = inspect.signature(register.get("protocol", spec.name)).parameters
    few = _SMALL | (_SMALL_NETWORK if "units" in known else {})
    return Spec(spec.name, {**{k: v for k, v in few.items() if k in known}, **spec.params})


def _made(name: str) -> Protocol | None:
    try:
        protocol = register.make("protocol", _small(parse_grid(name)[0]))
    except FedtreesError:
        return None
    return protocol if isinstance(protocol, Protocol) else None


def _same_run(a: Training, b: Training) -> bool:
    return len(a.transcript.deliveries) == len(b.transcript.deliveries) and all(
        x.sender == y.sender and _alike(emptied(x.message), emptied(y.message))
        for x, y in zip(a.transcript, b.transcript, strict=True)
    )


def _same(a: Guess, b: Guess) -> bool:
    """Tell whether two guesses claim the same."""
    return len(a.claims) == len(b.claims) and all(
        type(x) is type(y) and _alike(x, y) for x, y in zip(a.claims, b.claims, strict=True)
    )


def _alike(a: Any, b: Any) -> bool:
    """Compare values, arrays, and whatever dataclasses are made of them."""
    if is_dataclass(a) and is_dataclass(b):
        return type(a) is type(b) and all(
            _alike(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)
        )
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return bool(a == b)


def _writeable(view: View) -> bool:
    arrays = [getattr(s.message, f.name) for s in view.seen for f in fields(s.message)]
    own = [getattr(held, f.name) for held in view.own for f in fields(held)]
    return any(isinstance(a, np.ndarray) and a.flags.writeable for a in [*arrays, *own])
