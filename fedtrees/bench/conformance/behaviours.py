"""Check the rules of behaviours of malicious parties."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from fedtrees.bench.conformance.alike import same_transcript
from fedtrees.bench.conformance.findings import Finding
from fedtrees.bench.conformance.samples import made, sample_local_data, sample_table
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.reasons import Unfit
from fedtrees.core.transcript import PUBLIC
from fedtrees.protocols.training import Training, train


def check_behaviour(behaviour: Any, protocols: Sequence[str]) -> Iterator[Finding]:
    """Check description and determinism of a behaviour, and that it sends only known messages."""
    described = bool(behaviour.beyond and behaviour.noticed)
    yield Finding("it says what it does beyond, and whether others notice", described)
    ran = False
    for run, _, cheater in cheated_runs(behaviour.name, protocols):
        ran, name = True, f"{run.protocol.name}, {cheater}"
        twice = cheated_runs(behaviour.name, [run.protocol.name])
        again = next(other for other, _, party in twice if party == cheater)
        yield Finding(f"{name}: two runs of one seed are one", same_transcript(run, again))
        sent = {type(d.message) for d in run.transcript if d.sender == cheater}
        other = sorted(kind.__name__ for kind in sent - {*run.protocol.says, *_released(run)})
        rule = f"{name}: it sends messages of the protocol alone"
        yield Finding(rule, not other, ", ".join(other))
    yield Finding("it takes the place of a party of at least one protocol", ran)


def cheated_runs(
    behaviour: str, protocols: Sequence[str]
) -> Iterator[tuple[Training, dict[str, LocalData], str]]:
    """Train every protocol with the behaviour in each of its roles that allows it.

    Yields the training, the local data and the name of the malicious party.
    """
    for name in protocols:
        protocol = made(name)
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


def _released(run: Training) -> set[type[Message]]:
    """Return the types of messages that are published."""
    return {type(d.message) for d in run.transcript if d.receivers == (PUBLIC,)}
