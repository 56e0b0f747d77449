"""Sites at which defenses change values: message types, and the words in `SITES`."""

import pytest

from fedtrees.conformance.channel_check import _NOTES
from fedtrees.conformance.samples import sample_table
from fedtrees.core.defense import SITES
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist

SCHEMA = sample_table()[1]
PARAMETERS = {"rounds": 2, **FedTreeHist().parameters}  # `dp-gd` divides its budget by rounds


def usual(name):
    grid = register.get("defense", name).info.bench_grid
    return register.make("defense", Spec(name, {key: values[0] for key, values in grid.items()}))


@pytest.mark.parametrize("name", register.names("defense"))
def test_a_defense_states_its_changes_at_documented_sites(name):
    places = usual(name).channels(SCHEMA, PARAMETERS)
    words = {(site, field) for site, field in places if isinstance(site, str)}
    assert words <= {(site, field) for site, fields in SITES.items() for field in fields}


def test_hooks_that_change_masks_are_sites_of_their_own_name():
    assert {*SITES} & {*_NOTES} == {"allowed_splits", "visible_nodes"}
