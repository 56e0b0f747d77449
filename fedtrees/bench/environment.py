"""What a run ran on, for `environment.json` and `fedtrees doctor`."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedtrees import __version__

LIBRARIES = (
    "numpy", "numba", "scipy", "pandas", "scikit-learn", "xgboost", "gmpy2", "ortools",
    "plotly", "matplotlib", "typer", "rich", "joblib", "imbalanced-learn", "phe",
)  # fmt: skip
OPTIONAL = ("torch", "dp-accounting", "opacus")


def library_versions() -> dict[str, str | None]:
    """Return the installed version of every library used, None where it is missing."""
    return {name: installed(name) for name in (*LIBRARIES, *OPTIONAL)}


def installed(name: str) -> str | None:
    """Return the version of an installed package, None if it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Return versions and the size of the machine; no names, no paths, no variables."""
    return {
        "fedtrees": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "libraries": {k: v for k, v in library_versions().items() if v},
    }


def browser() -> str | None:
    """Return the name of an installed Chromium-like browser, None if there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if shutil.which(name):
            return name
    return None
