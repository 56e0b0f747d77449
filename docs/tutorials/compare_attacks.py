"""Print the share of rows in leaves that are counted correctly, for each attack of a run.

Usage: python docs/tutorials/compare_attacks.py RUN
"""

import sys

from fedtrees import Run

frame = Run(sys.argv[1]).frame
scores = frame[(frame.metric == "leaf_mass_exact") & (frame.status == "ok")]
settings = ["threat", "attack", "defense", "defense_params"]
for (threat, attack, defense, parameters), values in scores.groupby(settings).value:
    setting = f"{defense} {parameters}".strip()
    print(f"{threat:7} {attack:13} {setting:26} {values.mean():4.0%} ± {values.std():.0%}")
