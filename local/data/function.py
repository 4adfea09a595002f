"""Arrays from a function of the user's own, which the site allows: checked like those of a npz file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from rankdad.common.errors import DataError, RankdadError, one_line
from rankdad.common.spec.images import FunctionData
from rankdad.common.spec.tasks import TaskSpec
from rankdad.common.user_code import resolve
from rankdad.local.data.npz import NAMES, samples_of
from rankdad.local.data.reading import Array, Reading


def read_function(path: Path, data: FunctionData, task: TaskSpec, dtype: str, allowed: Collection[str] = ()) -> Reading:
    """Call the schema's function with a folder, and check what it returns.

    Args:
        path: the site's folder.
        data: the schema.
        task: what the labels belong to.
        dtype: of the inputs, such as "float32".
        allowed: names of functions that the caller permits.

    Raises:
        PolicyError: the function is not among them.
        SpecError: it cannot be imported.
        DataError: it raised an error, or naming the array and row of what cannot be used.
    """
    function, source = resolve(data.function, allowed, "data.function"), f"{path} ({data.function})"
    try:
        returned = function(path, **data.arguments)
    except RankdadError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(
            source, f"the function raised {one_line(error)!r}", code="function-raised"
        ) from error  # quoted: it may tell of samples
    if not isinstance(returned, Mapping):
        raise DataError(
            source,
            f"the function returned {type(returned).__name__}, expected a dict of arrays",
            code="function-returned-no-arrays",
        )
    arrays: dict[str, Array] = {}
    for name, array in returned.items():
        if name not in NAMES:
            raise DataError(
                source,
                f"the function returned an array {name!r}, expected one of {', '.join(NAMES)}",
                code="array-unknown",
            )
        try:
            arrays[name] = np.asarray(array)
        except (ValueError, TypeError, RuntimeError) as error:
            raise DataError(source, f"{name} is no array: {one_line(error)!r}", code="not-an-array") from None
    return samples_of(source, arrays, data, task, dtype)
