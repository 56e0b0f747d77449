"""Models that several versions of other frameworks wrote, and the predictions of these versions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "models"
_EXPECTED = json.loads((FOLDER / "expected.json").read_text())
ROWS = np.array(_EXPECTED.pop("rows"), dtype=np.float32)
MARGINS = {name: np.array(margins) for name, margins in _EXPECTED.items()}


def names(prefix: str) -> list[str]:
    return sorted(name for name in MARGINS if name.startswith(prefix))
