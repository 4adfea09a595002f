"""Names of sites."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

from pydantic import Field

SiteName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
LETTERS = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "ø": "oe", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d"}
)


def site_name(text: str) -> str:
    """Return the site's name for a folder's name: koeln for Köln; "" if no letter or digit is left."""
    plain = unicodedata.normalize("NFC", text).lower().translate(LETTERS)
    plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9._-]+", "-", plain).strip("._-")[:63]
