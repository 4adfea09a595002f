"""Creates small volumes for three hospitals, half of them with a bright lesion: python data.py"""

from pathlib import Path

import nibabel
import numpy as np
import pandas as pd

SIDE = 32  # voxels
draw = np.random.default_rng(0)
grid = np.stack(np.meshgrid(*[np.arange(SIDE)] * 3, indexing="ij"))


def volume(lesion: bool) -> np.ndarray:
    """Draw a round organ in noise, with or without a lesion."""
    found = 40.0 * (np.linalg.norm(grid - SIDE / 2, axis=0) < 12) + draw.normal(0, 8, [SIDE] * 3)
    if lesion:
        centre = SIDE / 2 + draw.uniform(-6, 6, 3)
        found += 60.0 * (np.linalg.norm(grid - centre[:, None, None, None], axis=0) < 5)
    return found.astype(np.float32)


for hospital in "abc":
    folder = Path("data") / f"hospital-{hospital}"
    (folder / "scans").mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(24):
        lesion, name = bool(draw.integers(2)), f"scans/{hospital}{number:02}.nii.gz"
        nibabel.save(nibabel.Nifti1Image(volume(lesion), np.eye(4)), folder / name)
        rows.append((f"{hospital}{number:02}", name, "lesion" if lesion else "none"))
    pd.DataFrame(rows, columns=["scan", "image", "finding"]).to_csv(folder / "scans.csv", index=False)
