"""A suite that cannot be read is told in a line."""

import pytest

from fedtrees.bench.suite import Suite
from fedtrees.core.errors import UsageError


@pytest.mark.parametrize("text", ["{} = 1", "[[grid]]\n{} = 1"])
def test_a_key_of_thousands_of_letters_is_named_in_a_line(text):
    with pytest.raises(UsageError, match=r"key '9{30}\.\.\.9{15}'") as caught:
        Suite.parse(text.format("9" * 5000), "long")
    assert len(str(caught.value)) < 1000
