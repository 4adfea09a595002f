"""Numbers of a spec, within bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**53)]
PositiveInt = Annotated[int, Field(ge=1, le=2**53)]
UpToMillion = Annotated[int, Field(ge=1, le=1_000_000)]  # of what is counted, and what memory or time grows with
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
