"""Creates a log of heartbeats for each of three hospitals: python data.py"""

import json
from pathlib import Path

import numpy as np

draw = np.random.default_rng(0)

for hospital in "abc":
    folder = Path("data") / f"hospital-{hospital}"
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for patient in range(120):
        irregular = bool(draw.integers(2))
        for visit in range(int(draw.integers(1, 4))):
            intervals = draw.normal(800, 60) + draw.normal(0, 70 if irregular else 35, 16)
            line = {"recording": f"{hospital}{patient}-{visit}", "patient": f"{hospital}{patient}"}
            rhythm = "irregular" if irregular else "regular"
            lines.append(json.dumps(line | {"rhythm": rhythm, "intervals": intervals.round().tolist()}))
    (folder / "beats.jsonl").write_text("\n".join(lines) + "\n")
