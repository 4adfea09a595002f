"""Methods that the paper compares and the product has not, as another package would bring them along.

The folder holds what an installation would: the entry points of `benchmarks.paper.authors` and
`benchmarks.paper.top_rows`. With it and the checkout on PYTHONPATH, any command knows both methods.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def put_on_path() -> None:
    """Register the methods for this process, before it imports rankdad, and for its children."""
    folder = Path(__file__).parent
    paths = [str(folder.parents[1]), str(folder)]
    sys.path += [path for path in paths if path not in sys.path]
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*([given] if given else []), *paths])
