"""Find out which optional parts are present, so that tests work after a family was removed."""

from importlib.util import find_spec

from fedtrees.core.registry import register
from fedtrees.core.specs import parse_composed

#: Whether the package with real keys is present.
CRYPTO = find_spec("fedtrees.defenses.masking") is not None


def here(kind, specs):
    """Return the specifications all of whose parts are registered."""
    registered = {"none", *register.names(kind)}
    return [s for s in specs if {part.name for part in parse_composed([s])[0].parts} <= registered]
