"""Plugin files that register attacks, as the process that holds truth knows them: by what they say.

Code that runs when a file is imported can change anything in its process. So the file of an attack
is imported where attacks run, and nowhere else; from there come its names, parameters and marks.
"""

from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Any, ClassVar, NoReturn

from fedtrees.core.attack import Attack
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.values import type_name
from fedtrees.isolation import guesses
from fedtrees.isolation.process import attacks


class Elsewhere(Attack):
    """What is known of an attack whose code is not here.

    `file`: Where its code is.
    `did`: What its import did beside registering, in words.
    """

    file: ClassVar[str] = ""
    did: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **parameters: Any) -> None:
        """Let the attack be made where its code is: what it refuses is refused here."""
        attacks().make(Spec(self.name, parameters))
        vars(self).update(parameters)

    def inapplicable(self, *_: object) -> NoReturn:
        """Refuse: it is asked in its own process."""
        raise ProtocolError(f"attack {self.name!r} is in a process of its own; ask it there")

    run = inapplicable  # type: ignore[assignment]


def describe(file: str, digest: str) -> bool:
    """Register what stands for the attacks of a file; tell whether it has any.

    Raises `UsageError` if it does not import, or registers something else as well, which is needed
    here.
    """
    told = attacks().describe(file, digest)
    if not told["attacks"]:
        return False
    if told["others"]:
        names = ", ".join(repr(attack["name"]) for attack in told["attacks"])
        raise UsageError(
            f"plugin {file!r} registers {', '.join(told['others'])} beside the attack {names}: an "
            "attack's code is imported only where no truth is, so put attacks in a file of their "
            "own and give both (register.get and fedtrees.core.messages.message_type find what "
            "the other one defines)"
        )
    for attack in told["attacks"]:
        stand_in = _stand_in(attack)
        stand_in.did = told["did"]
        register.attack(str(attack["name"]))(stand_in)
    return True


def installed(name: str) -> type[Elsewhere]:
    """Return what stands for an attack of an installed package."""
    return _stand_in(attacks().describe_installed(name))


def _stand_in(told: Mapping[str, Any]) -> type[Elsewhere]:
    """Make a class with the name, parameters and marks of an attack, and none of its code."""
    scored = {type_name(kind): kind for kind in guesses.scored()}
    claims = tuple(scored[name] for name in told["claims"] if name in scored)
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default if given else Parameter.empty)
        for name, given, default in told["parameters"]
    ]
    marks = {name: told[name] for name in ("blind", "comparison", "candidates", "most_rows")}
    inside = {
        **marks,
        "gives": scored.get(told["gives"]),
        "claims": claims,
        "name": str(told["name"]),
        "file": str(told["file"]),
        "__doc__": str(told["doc"]),
        "__module__": str(told["module"]),
        "__qualname__": str(told["qualname"]),
        "__signature__": Signature(parameters),
    }
    return type(str(told["qualname"]).rpartition(".")[2], (Elsewhere,), inside)


register.describe, register.installed = describe, installed
