"""Tables that pandas, Excel and R write are read as written, or their columns are reported."""

import pytest
from random_tables import campaign


@pytest.mark.long
def test_no_value_of_300_random_tables_differs_silently():
    outcome = campaign(range(300))
    assert outcome.silent == []
    assert outcome.counts["tables"] == 300
    assert outcome.counts["equal"] > 0.8 * outcome.counts["columns"]
