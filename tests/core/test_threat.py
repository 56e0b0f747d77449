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
def test_the_principals_of_a_threat(text, names):
    threat = Threat.parse(text)
    assert threat.principals(ROLES) == names
    assert str(threat) == text


@pytest.mark.parametrize(
    ("text", "error_message"),
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
def test_an_invalid_threat_is_refused_with_the_reason(text, error_message):
    with pytest.raises(UsageError, match=error_message):
        Threat.parse(text).principals(ROLES)
