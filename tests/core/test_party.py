import numpy as np
import pytest

from fedtrees.core.errors import LocalDataError, ProtocolError
from fedtrees.core.party import Party, acting, handles
from fedtrees.core.schema import Table
from fedtrees.messages.horizontal import LabelSums, LabelSumsRequest


class Clerk(Party):
    role = "client"

    def __init__(self, name, data):
        super().__init__(name)
        self.data = data
        # The constructor may read an attribute that it has set.
        self.seen = len(self.data)

    @handles(LabelSumsRequest)
    def count(self, message):
        return LabelSums(np.bincount(self.data.y, minlength=2))


@pytest.fixture
def clerk():
    return Clerk("client-0", Table(np.zeros((3, 2)), np.array([0, 1, 1])))


def test_private_state_cannot_be_read_from_outside(clerk):
    with pytest.raises(LocalDataError, match="data"):
        _ = clerk.data
    with pytest.raises(LocalDataError, match="__dict__"):
        _ = vars(clerk)
    assert (clerk.name, clerk.role) == ("client-0", "client")


def test_private_state_cannot_be_written_from_outside(clerk):
    with pytest.raises(LocalDataError, match="data"):
        clerk.data = None


def test_another_party_sees_no_more_than_anyone(clerk):
    second_clerk = Clerk("client-1", Table(np.zeros((1, 2)), np.array([0])))
    with acting(second_clerk), pytest.raises(LocalDataError):
        _ = clerk.data


def test_calling_a_handler_directly_does_not_open_the_wall(clerk):
    with pytest.raises(LocalDataError):
        clerk.count(LabelSumsRequest())


def test_answering_gives_only_the_handler_access_to_private_state(clerk):
    assert clerk.answer(LabelSumsRequest()).sums.tolist() == [1, 2]
    with pytest.raises(LocalDataError):
        _ = clerk.data


def test_an_unknown_message_is_refused_with_the_handled_types(clerk):
    with pytest.raises(ProtocolError, match="does not handle LabelSums; it handles LabelSumsReq"):
        clerk.answer(LabelSums(np.zeros(2, dtype=np.int64)))
