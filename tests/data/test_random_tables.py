"""Tables that pandas, Excel and R write are read as written, or their columns are reported."""

import pytest
from random_tables import campaign


@pytest.mark.long
def test_no_value_of_300_random_tables_differs_silently():
    found = campaign(range(300))
    assert found.silent == []
    assert found.counts["tables"] == 300
    assert found.counts["equal"] > 0.8 * found.counts["columns"]
