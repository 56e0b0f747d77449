"""Short trainings, which show the messages of a protocol and which attacks apply to them.

A training of two trees or two rounds sends every type of message. It is run before a bench, to
complete a suite and to check the behaviour of a cheating party, and for `fedtrees explain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedtrees.core.limits import limited_if_possible
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.experiments.evaluate import run_training
from fedtrees.experiments.federation import Federation
from fedtrees.experiments.plan import Task
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training

#: Largest size of a short training.
BRIEF = {"trees": 2, "rounds": 2}


def limit_size(spec: Spec, limits: Mapping[str, int]) -> Spec:
    """Return a protocol with at most the given sizes, for example numbers of trees and levels."""
    instance: Protocol = register.make("protocol", spec)
    less = {
        key: value
        for key, value in limits.items()
        if key in instance.parameters and (instance.parameters[key] or value + 1) > value
    }
    return Spec(spec.name, {**spec.params, **less})


def preview(task: Task, federation: Federation, time_limit: float = 0.0) -> Training:
    """Run a training with two trees or two rounds.

    Parameters
    ----------
    task : Task
        The training.
    federation : Federation
        Its data.
    time_limit : float
        Seconds that it may take, 0 for no limit.

    Raises
    ------
    TimeLimit
        If it takes longer.
    Unfit
        If the defense does not fit the protocol, or no party can execute a behaviour.
    """
    with limited_if_possible(time_limit):
        return run_training(replace(task, protocol=limit_size(task.protocol, BRIEF)), federation)
