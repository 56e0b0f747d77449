"""Sites at which defenses change values: message types, and the words in `SITES`."""

import pytest

from fedtrees.conformance.channel_check import _NOTES
from fedtrees.conformance.samples import make_small_protocol, sample_table
from fedtrees.core.defense import SITES
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.protocols.compatibility import check_fit

SCHEMA = sample_table()[1]


@pytest.mark.parametrize("name", register.names("defense"))
def test_a_defense_states_its_changes_at_documented_sites(name):
    grid = register.get("defense", name).info.bench_grid
    part = register.make("defense", Spec(name, {key: values[0] for key, values in grid.items()}))
    protocols = filter(None, map(make_small_protocol, register.names("protocol")))
    fitting = next(p for p in protocols if check_fit(p, [part]).ok)
    places = part.channels(SCHEMA, fitting.parameters)
    words = {(site, field) for site, field in places if isinstance(site, str)}
    assert words <= {(site, field) for site, fields in SITES.items() for field in fields}


def test_hooks_that_change_masks_are_sites_with_their_own_name():
    assert {*SITES} & {*_NOTES} == {"allowed_splits", "visible_nodes"}
