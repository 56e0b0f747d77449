"""Write patients.csv: a table of 540 invented patients in three hospitals.

Run it: python docs/tutorials/make_patients.py
"""

import numpy as np
import pandas as pd

rng = np.random.default_rng(11)
n = 540
age = rng.integers(25, 90, n)
bmi = rng.normal(27, 4, n).round(1)
pressure = (95 + 0.5 * age + rng.normal(0, 12, n)).round().astype(int)
glucose = (4.2 + 0.06 * bmi + rng.gamma(2, 0.5, n)).round(1)
smoker = rng.choice(["never", "former", "current"], n, p=[0.5, 0.3, 0.2])
risk = 0.05 * (age - 60) + 0.5 * (glucose - 6.8) + 0.9 * (smoker == "current")
ill = rng.random(n) < 1 / (1 + np.exp(-risk))

table = pd.DataFrame(
    {
        "hospital": rng.choice(["north", "east", "south"], n, p=[0.5, 0.3, 0.2]),
        "age": age,
        "smoker": smoker,
        "bmi": np.where(rng.random(n) < 0.03, np.nan, bmi),
        "pressure": pressure,
        "glucose": glucose,
        "ill": np.where(ill, "yes", "no"),
    }
)
table.to_csv("patients.csv", index=False)
print(table.head(3).to_string(index=False))
