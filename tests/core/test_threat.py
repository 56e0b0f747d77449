import pytest

from fedtrees.core.errors import UsageError
from fedtrees.core.threat import Threat

ROLES = {"server": "server", "client-0": "client", "client-1": "client", "client-2": "client"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("client", ("client-2",)),
        ("client[index=0]", ("client-0",)),
        ("client[count=2]", ("client-1", "client-2")),
        ("server", ("server",)),
        ("server+client", ("server", "client-2")),
    ],
)
def test_who_is_an_adversary(text, names):
    threat = Threat.parse(text)
    assert threat.principals(ROLES) == names
    assert str(threat) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clinet", "did you mean 'client'"),
        ("client[index=9]", "only 3 of them"),
        ("client[count=4]", "only 3 of them"),
        ("client[count=0]", "not a valid number"),
        ("client[whom=1]", "no parameter 'whom'"),
        ("server[count=1]", "neither index nor count"),
        ("", "empty threat"),
    ],
)
def test_a_threat_that_makes_no_sense_says_why(text, said):
    with pytest.raises(UsageError, match=said):
        Threat.parse(text).principals(ROLES)
