"""Draw the packages of fedtrees and the imports between them.

``python -m fedtrees.benchmarks.structure`` writes ``docs/images/structure.svg``. The layers are
those that import-linter enforces (``pyproject.toml``). The sizes and the imports of each package
are read from the source code, so that the drawing cannot differ from it.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

import fedtrees

ROOT = Path(fedtrees.__file__).parents[1]
#: Folders in the repository that are installed as packages of fedtrees.
FOLDERS = ("attacks", "defenses", "benchmarks")
WIDTH, BOX_HEIGHT, GAP = 960, 60, 12


def read_layers() -> list[list[str]]:
    """Return the packages of every layer, from the command line down to the core."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [
        [name.strip().strip("()") for name in layer.split("|")]
        for layer in contract["layers"]
        if layer != "moved"  # only old names of modules
    ]


def source_files(package: str) -> list[Path]:
    """Return the Python files of a package, or the file of a top-level module."""
    folder = ROOT / package if package in FOLDERS else ROOT / "fedtrees" / package
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def imported_packages(package: str, packages: set[str]) -> set[str]:
    """Return the other packages of fedtrees that a package imports."""
    names: set[str] = set()
    for path in source_files(package):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
    imported = {name.split(".")[1] for name in names if name.startswith("fedtrees.")}
    return (imported & packages) - {package}


def draw() -> str:
    """Return the drawing as SVG: one row per layer, and one box per package."""
    layers = read_layers()
    packages = {package for layer in layers for package in layer}
    height = GAP + len(layers) * (BOX_HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="14">',
        "<title>Packages of fedtrees by layer, with the packages that each one imports</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for i, layer in enumerate(layers):
        width = (WIDTH - GAP) / len(layer) - GAP
        top = GAP + i * (BOX_HEIGHT + GAP)
        for j, package in enumerate(layer):
            left = GAP + j * (width + GAP)
            parts += draw_package(package, left, top, width, imported_packages(package, packages))
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_package(
    package: str, left: float, top: float, width: float, imports: set[str]
) -> list[str]:
    """Return the box of one package: its name, its number of modules, and its imports.

    Parameters
    ----------
    package
        Name of the package.
    left, top, width
        Position and width of the box, in units of the drawing.
    imports
        The packages that it imports.
    """
    middle = left + width / 2
    n_modules = len(source_files(package))
    parts = [
        f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="6" '
        'fill="#ebf8ff" stroke="#4a5568"/>',
        f'<text x="{middle:.0f}" y="{top + 19}" text-anchor="middle" font-weight="bold" '
        f'fill="#2d3748">{escape(package)}'
        f'<tspan font-weight="normal" font-size="11"> {n_modules}</tspan></text>',
    ]
    # About 6 units per character of the small font. Longer lists continue on a second line.
    lines, line = [], ""
    for name in sorted(imports):
        if line and 6 * len(f"{line}, {name}") > width:
            lines.append(f"{line},")
            line = name
        else:
            line = f"{line}, {name}" if line else name
    for k, text in enumerate([*lines, line]):
        parts.append(
            f'<text x="{middle:.0f}" y="{top + 33 + 11 * k}" text-anchor="middle" '
            f'font-size="10" fill="#4a5568">{escape(text)}</text>'
        )
    return parts


if __name__ == "__main__":
    path = ROOT / "docs/images/structure.svg"
    path.write_text(draw(), encoding="utf-8")
    print(path)
