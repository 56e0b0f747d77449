"""Register attacks of plug-ins in the bench without running their code there.

Code that runs when a file is imported can change anything in its process. Therefore the file of an
attack is imported in the process of attacks only. That process returns the names, parameters and
marks of the attacks, and the bench registers a class without code for each of them.
"""

from inspect import Parameter, Signature
from typing import Any, ClassVar, NoReturn

from fedtrees.core.attack import Attack
from fedtrees.core.errors import PLUGIN, ProtocolError, UsageError
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.wire import type_name
from fedtrees.isolation import transfer
from fedtrees.isolation.process import attack_process
from fedtrees.isolation.transfer import AttackFacts


class StandInAttack(Attack):
    """Base of the classes that represent attacks whose code is in another process.

    Attributes
    ----------
    file : str
        File of its code.
    did : tuple of str
        Side effects of its import besides the registration, in words.
    """

    file: ClassVar[str] = ""
    did: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **parameters: Any) -> None:
        """Construct the attack in its process, so that parameters it refuses are refused here."""
        attack_process().make(Spec(self.name, parameters))
        vars(self).update(parameters)

    def inapplicable(self, *_: object) -> NoReturn:
        """Raise `ProtocolError`: the process of attacks answers this question."""
        raise ProtocolError(f"attack {self.name!r} runs in a separate process; use that process")

    run = inapplicable  # type: ignore[assignment]


def register_attacks_of(file: str, digest: str) -> bool:
    """Register a class for every attack of a file; return whether it has attacks.

    Raises
    ------
    UsageError
        If the file cannot be imported, or registers anything else as well, which the bench needs.
    ProtocolError
        If the process of attacks answers with a forged description.
    """
    description = attack_process().describe(file, digest)
    if not description.attacks:
        return False
    names = ", ".join(repr(attack.name) for attack in description.attacks)
    if description.other_plugins:
        raise UsageError(
            f"plugin {file!r} registers {', '.join(description.other_plugins)} and the attack "
            f"{names}: only processes without the ground truth import the code of an attack. Put "
            "the attacks into a separate file and give both files (`register.get` and "
            "`fedtrees.core.messages.message_type` return definitions of the other file)"
        )
    module = f"{PLUGIN}{digest[:12]}"
    for attack in description.attacks:
        if attack.module.startswith(PLUGIN) and attack.module != module:
            raise ProtocolError(
                f"plugin {file!r} registers the attack {attack.name!r} of another file; register "
                "it there"
            )
        stand_in = _stand_in(attack)
        stand_in.did = description.did
        register.attack(attack.name)(stand_in)
    return True


def installed(name: str) -> type[StandInAttack]:
    """Return a class that represents an attack of an installed package."""
    return _stand_in(attack_process().describe_installed(name))


def _stand_in(facts: AttackFacts) -> type[StandInAttack]:
    """Make a class with the name, parameters and marks of an attack, and none of its code."""
    scored = {type_name(kind): kind for kind in transfer.scored_claims()}
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default if has_default else Parameter.empty)
        for name, has_default, default in facts.parameters
    ]
    inside = {
        "blind": facts.blind,
        "is_reference": facts.is_reference,
        "receives_candidates": facts.receives_candidates,
        "max_training_rows": facts.max_training_rows,
        "supports_regression": facts.supports_regression,
        "claims": tuple(scored[name] for name in facts.claims if name in scored),
        "name": facts.name,
        "file": facts.file,
        "__doc__": facts.doc,
        "__module__": facts.module,
        "__qualname__": facts.qualname,
        "__signature__": Signature(parameters),
    }
    return type(facts.qualname.rpartition(".")[2], (StandInAttack,), inside)


register.imports.describe, register.imports.installed = register_attacks_of, installed
