"""Local data that are refused before training, and traffic of a party with itself."""

import numpy as np
import pytest

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense, ExampleStage
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import (
    LocalData,
    LocalDataSummary,
    check_ids,
    check_own,
    check_together,
    rows_of,
)
from fedtrees.core.messages import Message
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import Transcript
from fedtrees.messages.horizontal import Histogram, LabelSums
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist

SCHEMA = Schema((Feature("a"), Feature("b")), "y")
Y = np.array([0, 1, 1])


def part(columns, ids=(0, 1, 2), y=None):
    return LocalData(np.array(ids), np.array(columns), np.zeros((3, len(columns)), np.float32), y)


def check(local_data):
    """Refuse local data that do not form one table; return the number of rows."""
    for name, data in local_data.items():
        check_own(name, data, SCHEMA)
    check_together({name: LocalDataSummary.of(data) for name, data in local_data.items()}, SCHEMA)
    check_ids(local_data)
    return rows_of(local_data)


def test_complete_rows_and_columns_of_the_same_rows_form_a_table():
    assert check({"p": part([0, 1], y=Y), "q": part([0, 1], (3, 4, 5), Y)}) == 6
    assert check({"p": part([0], y=Y), "q": part([1])}) == 3


@pytest.mark.parametrize(
    ("local_data", "error_message"),
    [
        ({"p": part([0], y=Y)}, "have the columns"),
        ({"p": part([0, 1], y=Y), "q": part([1])}, "have the columns"),
        ({"p": part([0]), "q": part([1])}, "none of p, q has the labels"),
        ({"p": part([0, 1], y=Y), "q": part([0, 1], (2, 1, 0), Y)}, "same order"),
        ({"p": part([0, 1], y=Y), "q": part([0, 1], (2, 3, 4), Y)}, "same order"),
        ({"p": part([1, 0], y=Y)}, "out of order"),
        ({"p": None}, "give a LocalData"),
    ],
)
def test_local_data_that_form_no_table_are_refused(local_data, error_message):
    with pytest.raises(DataError, match=error_message):
        check(local_data)


def test_the_declared_digest_of_ids_depends_on_the_key():
    data, same_ids, other_ids = part([0], y=Y), part([1]), part([1], (0, 2, 1))
    for key in (b"", b"agreed"):
        assert LocalDataSummary.of(data, key).order == LocalDataSummary.of(same_ids, key).order
        assert LocalDataSummary.of(data, key).order != LocalDataSummary.of(other_ids, key).order
    assert LocalDataSummary.of(data, b"agreed").order != LocalDataSummary.of(data).order


def test_a_threat_that_names_a_party_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        Threat.parse("client+client")


def test_only_messages_of_a_party_to_itself_are_free():
    transcript = Transcript({"p": "peer", "q": "peer"}, coordinator="p")
    message: Message = LabelSums(np.ones(2))
    transcript.record("p", ("p", "q"), message, "to all peers")
    transcript.record("p", ("p",), message, "a sum it opened")
    sent, opened_sum = transcript.deliveries
    assert (sent.nbytes > 0, opened_sum.nbytes) == (True, 0)
    assert sum(transcript.traffic().values()) == 2 * sent.nbytes


class Labels(Defense):
    name, example_stages = "flip", frozenset({"labels"})

    def transform_examples(self, stage: ExampleStage, values, ctx):
        return 1 - values if stage.kind == "labels" else values


class Nowhere(Defense):
    name, roles, handled_types = "nowhere", frozenset({"cleint"}), (Histogram,)


def test_labels_pass_defenses_everywhere_and_a_role_that_is_not_there_is_named():
    flip = Composition((Labels(),))
    assert check_fit(FedTreeHist(), flip).ok
    assert "is applied by cleint" in str(check_fit(FedTreeHist(), [Nowhere()]))
