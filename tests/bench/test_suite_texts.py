"""A suite that cannot be read is refused with a message of one line."""

import pytest

from fedtrees.core.errors import UsageError
from fedtrees.experiments.suite import Suite


@pytest.mark.parametrize("text", ["{} = 1", "[[grid]]\n{} = 1"])
def test_a_key_of_thousands_of_letters_is_named_in_a_line(text):
    with pytest.raises(UsageError, match=r"key '9{30}\.\.\.9{15}'") as caught:
        Suite.parse(text.format("9" * 5000), "long")
    assert len(str(caught.value)) < 1000


UNDEFENDED_TWICE = """
name = "two"
seeds = [0]
[[grid]]
data = ["wine"]
protocols = ["fedtree-hist"]
defenses = ["split-only"]
[[grid]]
data = ["wine"]
protocols = ["dp-gbdt[epsilon=1]"]
defenses = ["dp-grid-cuts[epsilon=1]"]
undefended = false
"""


def test_a_grid_can_omit_the_undefended_run():
    suite = Suite.parse(UNDEFENDED_TWICE, "two")
    assert [[str(d) for d in grid.defenses] for grid in suite.grids] == [
        ["none", "split-only"],
        ["dp-grid-cuts[epsilon=1]"],
    ]
    assert Suite.parse(suite.to_toml(), "again") == suite


def test_options_of_the_command_line_add_the_undefended_run_again():
    suite = Suite.parse(UNDEFENDED_TWICE, "two").override({"defenses": ["min-bin[k=5]"]})
    assert [[str(d) for d in grid.defenses] for grid in suite.grids] == [
        ["none", "min-bin[k=5]"],
        ["none", "min-bin[k=5]"],
    ]


def test_the_key_for_the_undefended_run_is_true_or_false():
    text = UNDEFENDED_TWICE.replace("undefended = false", 'undefended = "no"')
    with pytest.raises(UsageError, match="undefended='no'; give true or false"):
        Suite.parse(text, "two")
