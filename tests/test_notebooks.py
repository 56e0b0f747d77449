"""The notebooks of the documentation show the outputs of their code."""

from pathlib import Path

import pytest
from console_blocks import agrees

notebooks = pytest.importorskip("notebooks", reason="nbclient is not installed")
new_output = pytest.importorskip("nbformat.v4", reason="nbformat is not installed").new_output

PATHS = sorted((Path(__file__).parents[1] / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.long
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_shows_the_outputs_of_its_code(path):
    stored = notebooks.code_cells(notebooks.read(path))
    repeated = notebooks.code_cells(notebooks.execute(path))
    assert len(stored) == len(repeated) > 0
    for shown, new in zip(stored, repeated, strict=True):
        assert agrees(notebooks.texts(shown), notebooks.texts(new)), new.source


def test_printed_text_that_arrives_in_pieces_is_joined():
    pieces = [new_output("stream", name="stdout", text=text) for text in ("G:", " None\n")]
    result = new_output("execute_result", data={"text/plain": "3"}, execution_count=1)
    joined = notebooks.in_one_piece([*pieces, result])
    assert [output.output_type for output in joined] == ["stream", "execute_result"]
    assert joined[0].text == "G: None\n"


def test_there_are_four_notebooks_and_each_is_small():
    assert [path.stem for path in PATHS] == ["hospital", "paper_figure", "protocol", "view_attack"]
    for path in PATHS:
        assert path.stat().st_size < 100_000, path.name


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_its_purpose_and_stores_all_outputs(path):
    cells = notebooks.read(path).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    numbers = [c.execution_count for c in cells if c.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert sum(bool(c.outputs) for c in cells if c.cell_type == "code") >= 4
