"""What of a list is here: a family can be taken out, and the tests of all else still stand."""

from importlib.util import find_spec

from fedtrees.core.registry import register
from fedtrees.core.specs import parse_composed

#: Whether real keys are here.
CRYPTO = find_spec("fedtrees.crypto") is not None


def here(kind, specs):
    """Return the specifications of which every part is registered."""
    known = {"none", *register.names(kind)}
    return [s for s in specs if {part.name for part in parse_composed([s])[0].parts} <= known]
