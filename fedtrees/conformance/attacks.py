"""Check the rules of attacks, of plug-in files, and of behaviours of malicious parties.

The module also checks the imports of an attack, the effects of importing a plug-in file, and the
rules of behaviours of malicious parties.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedtrees import PUBLIC_NAMES
from fedtrees.conformance.samples import (
    Finding,
    blind_views,
    make_small_protocol,
    same,
    same_transcript,
    sample_local_data,
    sample_table,
    views_that_tell,
    views_without_truth,
)
from fedtrees.core.attack import Attack, claims_of
from fedtrees.core.claims import Guess, Records
from fedtrees.core.errors import FedtreesError, ProtocolError
from fedtrees.core.local_data import LocalData, over_clients, stacked
from fedtrees.core.messages import Message
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import loaded_plugins
from fedtrees.core.schema import Schema
from fedtrees.core.specs import Spec
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import View
from fedtrees.data.dataset import prepare
from fedtrees.experiments.federation import Federation
from fedtrees.isolation.plugins import StandInAttack
from fedtrees.isolation.process import Answer, attack_process
from fedtrees.isolation.watch import HOLD_TRUTH
from fedtrees.metrics.records import score_records
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of


def imported_cleanly(plugin: Any) -> Iterator[Finding]:
    """Check that importing the file of a plug-in does nothing but register plug-ins.

    The file is imported in the process of attacks, which contains no ground truth, so that its
    effects do no harm.
    """
    module = sys.modules.get(type(plugin).__module__)
    file = plugin.file if isinstance(plugin, StandInAttack) else getattr(module, "__file__", None)
    digests = {str(Path(path)): digest for path, digest in loaded_plugins()}
    if file is None or str(file) not in digests:
        return
    during_import = attack_process().describe(str(file), digests[str(file)], bait=True).did
    before = plugin.did if isinstance(plugin, StandInAttack) else ()
    effects = dict.fromkeys([*before, *during_import])
    yield Finding("its import only registers classes", not effects, "; ".join([*effects][:6]))


def imports_of(attack: Attack) -> set[str]:
    """Return the modules that an attack imports.

    The source of a plug-in attack is parsed without running it.
    """
    if not isinstance(attack, StandInAttack):
        return _imports(sys.modules[type(attack).__module__])
    return _named_imports(Path(attack.file).read_text(encoding="utf-8"))


def _named_imports(source: str) -> set[str]:
    """Return the modules that import statements in a source name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
            if node.module == "fedtrees":  # public names are imported from other modules
                names |= {PUBLIC_NAMES[a.name] for a in node.names if a.name in PUBLIC_NAMES}
    return names


def _imports(module: ModuleType, seen: set[str] | None = None) -> set[str]:
    """Return the modules that a module imports, following modules of the same package."""
    seen = set() if seen is None else seen
    seen.add(module.__name__)
    names = _named_imports(inspect.getsource(module))
    package = module.__name__.rpartition(".")[0]
    for name in list(names):
        neighbour = sys.modules.get(name)
        if (
            package
            and neighbour is not None
            and name.startswith(f"{package}.")
            and name not in seen
        ):
            names |= _imports(neighbour, seen)
    return names


def check_behaviour(behaviour: Any, protocols: Sequence[str]) -> Iterator[Finding]:
    """Check description and determinism of a behaviour, and that it sends only known messages."""
    described = bool(behaviour.deviation and behaviour.detectable)
    yield Finding("it states its deviation, and whether other parties detect it", described)
    ran = False
    for run, _, cheater in cheated_runs(behaviour.name, protocols):
        ran, name = True, f"{run.protocol.name}, {cheater}"
        twice = cheated_runs(behaviour.name, [run.protocol.name])
        again = next(other for other, _, party in twice if party == cheater)
        yield Finding(f"{name}: two runs of one seed are one", same_transcript(run, again))
        sent = {type(d.message) for d in run.transcript if d.sender == cheater}
        other = sorted(
            kind.__name__
            for kind in sent - {*run.protocol.info.message_types, *_published_types(run)}
        )
        rule = f"{name}: it sends only messages of the protocol"
        yield Finding(rule, not other, ", ".join(other))
    yield Finding("it takes the place of a party of at least one protocol", ran)


def cheated_runs(
    behaviour: str, protocols: Sequence[str]
) -> Iterator[tuple[Training, dict[str, LocalData], str]]:
    """Train every protocol with the behaviour in each of its roles that allows it.

    Yields the training, the local data and the name of the malicious party.
    """
    for name in protocols:
        protocol = make_small_protocol(name)
        if protocol is None:
            continue
        local_data, (_, schema) = sample_local_data(protocol), sample_table()
        last = {role: cheater for cheater, role in protocol.roles(3).items()}
        for cheater in last.values():
            cheats = {cheater: behaviour}
            with contextlib.suppress(Unfit):
                yield (
                    train(
                        protocol, local_data, schema, seed=5, noise_from="seed", behaviours=cheats
                    ),
                    local_data,
                    cheater,
                )


def _published_types(run: Training) -> set[type[Message]]:
    """Return the types of messages that are published."""
    return {type(d.message) for d in run.transcript if d.receivers == (PUBLIC,)}


# An attack with a new kind of claim needs the base classes of metrics. They contain no ground
# truth.
_BASES = "fedtrees.metrics.metric"
# Number of times that other parties run before a party, each time with other rows.
_STRANGERS = 2


def check_attack(attack: Attack, spec: Spec, protocols: Sequence[str]) -> Iterator[Finding]:
    """Check imports, determinism, independence of the truth and of earlier runs, and empty views.

    The attack runs in the process of attacks, as in a benchmark, whereas this process contains
    further rows. An attack that returns some of these rows has left its process.

    Parameters
    ----------
    attack : Attack
        The attack.
    spec : Spec
        Its name and parameters.
    protocols : sequence of str
        Protocols on whose views it is checked.
    """
    reached = sorted(imports_of(attack))
    bad = [n for n in reached if n.startswith(HOLD_TRUTH) and not f"{n}.".startswith(f"{_BASES}.")]
    yield Finding("it imports no module with ground truth", not bad, ", ".join(bad))
    # The attack works without a declaration. The report then cannot name the measures that remain
    # open if it returns no claim.
    undeclared = (
        "" if claims_of(attack) else "not declared; write, for example, claims = (Records,)"
    )
    yield Finding("types of its claims", True, undeclared)
    ran = False
    views = (*views_without_truth(protocols), *(blind_views() if attack.blind else ()))
    views += tuple(views_that_tell(attack, protocols))
    for behaviour in attack.behaviours:
        views += tuple(
            (f"{run.protocol.name}, {who}:{behaviour}", view_of(run, (who,), local_data))
            for run, local_data, who in cheated_runs(behaviour, protocols)
        )
    for name, view in views:
        if not check_fit(attack=spec, facts=KnownFacts(view=view)).ok:
            continue
        ran = True
        # Attacks on membership need rows to decide on.
        if attack.receives_candidates:
            view = replace(view, candidates=sample_table()[0])
        try:
            attack_process().run(spec, view.blinded(), anyway=True)
            ok, detail = True, ""
        except FedtreesError as err:
            ok, detail = False, str(err)
        yield Finding(f"{name}: it survives an empty transcript", ok, detail)
        try:
            answers = [_run_with_bait(spec, view, seed) for seed in (1, 2, 1)]
        # For example, a guess without claims and without a reason.
        except ProtocolError as err:
            yield Finding(f"{name}: it returns claims, or the reason for none", False, str(err))
            continue
        except FedtreesError as err:  # the same code would fail on the remaining views, too
            yield Finding(f"{name}: it runs", False, str(err))
            return
        guesses = [answer.guess for answer in answers if answer.guess is not None]
        fits = all(_fits(g, view.schema) for g in guesses)
        yield Finding(f"{name}: guessed rows have the columns of the schema", fits)
        yield Finding(f"{name}: the same view gives the same guess", same(guesses[0], guesses[2]))
        copied = max(
            _copied_share(g, s, view.schema) for g, s in zip(guesses[:2], (1, 2), strict=True)
        )
        yield Finding(
            f"{name}: it returns no rows from outside its view",
            copied < 0.5,
            f"{copied:.0%} of unseen rows returned exactly",
        )
        touched = dict.fromkeys(entry for answer in answers for entry in answer.touched)
        rule = f"{name}: it opens no file, no socket and no module with truth"
        yield Finding(rule, not touched, ", ".join(touched))
    yield Finding("it runs with at least one protocol", ran)
    # Only attacks of plug-ins could store files.
    if isinstance(attack, StandInAttack):
        yield from _passes_nothing_on(spec, views)


def _passes_nothing_on(spec: Spec, views: Sequence[tuple[str, View]]) -> Iterator[Finding]:
    """Run the attack as every party, with and without earlier runs as other parties.

    The parties have the same role, and all guesses of one party must be equal. The earlier runs
    receive rows that are drawn for this check. An attack that stores rows anywhere and returns them
    under another threat is therefore detected, even if an earlier check left rows there.
    """
    of_role = ((name, view, _parties(view)) for name, view in views if view.local_data)
    usable = next(((n, v, p) for n, v, p in of_role if len(p) > 1 and _reads(spec, v)), None)
    if usable is None:
        return
    name, view, parties = usable
    rng, equal = np.random.default_rng(secrets.randbits(64)), True
    for party in parties:
        guesses = []
        for earlier_parties in ([], *(_STRANGERS * [[p for p in parties if p != party]])):
            for other in earlier_parties:
                shuffled = tuple(
                    replace(part, X=rng.permuted(part.X, axis=0)) for part in view.local_data
                )
                # An attack may store rows even if it fails.
                with contextlib.suppress(FedtreesError):
                    stranger = replace(view, principals=(other,), local_data=shuffled)
                    attack_process().run(spec, stranger, anyway=True)
            guesses.append(_run_with_bait(spec, replace(view, principals=(party,)), 1).guess)
        first, *later = guesses
        equal &= all(a is first or (a and first and same(a, first)) for a in later)
    why = "" if equal else "its guess depends on the threats that it ran on before"
    yield Finding(f"{name}: it keeps nothing from one threat to the next", bool(equal), why)


def _parties(view: View) -> list[str]:
    """Return the parties with the role of a single principal. The list is empty for a coalition."""
    if len(view.principals) != 1:
        return []
    role = view.roles[view.principals[0]]
    return [name for name, other in view.roles.items() if other == role]


def _reads(spec: Spec, view: View) -> bool:
    """Return whether an attack applies to a view."""
    return check_fit(attack=spec, facts=KnownFacts(view=view)).ok


def _run_with_bait(attack: Spec, view: View, seed: int) -> Answer:
    """Run an attack while this process contains rows that are not related to its view."""
    federation = _bait(seed)
    if view.oracle is not None:
        # Each run of an attack has the full number of queries.
        view.oracle.log.clear()
    answer = attack_process().run(attack, view, watch=True)
    del federation
    return answer


def _bait(seed: int) -> Federation:
    """Build rows of the same shape that no view contains, in the object that contains the truth."""
    table, schema = sample_table(100 + seed)
    parts = [table.take(rows) for rows in np.array_split(np.arange(len(table)), 3)]
    return Federation(prepare("bait", schema, table.X, table.y), over_clients(parts), table, None)


def _fits(guess: Guess, schema: Schema) -> bool:
    """Return whether guessed rows have the columns of the schema."""
    return all(r.table.X.shape[1] == len(schema.features) for r in guess.all(Records))


def _copied_share(guess: Guess, seed: int, schema: Schema) -> float:
    """Return the share of bait rows that the guess reproduces exactly."""
    tables = [r.table for r in guess.all(Records) if len(r.table)]
    if not tables or not _fits(guess, schema):
        return 0.0
    truth = stacked(list(_bait(seed).local_data.values())[:-1], schema)
    assert truth is not None
    return score_records(tables[0], truth, schema).exact_rows
