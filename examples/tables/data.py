"""Creates tables of patients for three hospitals, and three new patients: python data.py"""

from pathlib import Path

import numpy as np
import pandas as pd

draw = np.random.default_rng(0)


def patients(count: int, first: int, older: float) -> pd.DataFrame:
    """Draw patients of one hospital; the risk rises with age, creatinine and earlier stays."""
    age = draw.normal(62 + older, 12, count).clip(20, 95).round()
    creatinine = draw.lognormal(0.1, 0.35, count).round(2)
    stays = draw.poisson(1.2, count)
    sex = draw.choice(["female", "male"], count)
    score = 0.05 * (age - 65) + 1.4 * (creatinine - 1.1) + 0.7 * (stays - 1.2) + 0.4 * (sex == "male")
    readmitted = np.where(draw.random(count) < 1 / (1 + np.exp(-score)), "yes", "no")
    table = pd.DataFrame({"patient": np.arange(first, first + count), "age": age.astype(int), "sex": sex})
    table["creatinine"] = np.where(draw.random(count) < 0.06, np.nan, creatinine)  # sometimes not measured
    return table.assign(stays=stays, readmitted=readmitted)


for hospital, (count, older) in enumerate([(600, 0), (450, 5), (300, -4)]):
    folder = Path("data") / f"hospital-{'abc'[hospital]}"
    folder.mkdir(parents=True, exist_ok=True)
    patients(count, 1000 * (hospital + 1), older).to_csv(folder / "patients.csv", index=False)
patients(3, 9000, 0).drop(columns="readmitted").to_csv("new.csv", index=False)
