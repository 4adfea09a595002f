"""A site's own file: what only the site decides. It is neither hashed nor sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from common.documents import Part, load_json, validate
from common.errors import UserError
from common.spec import FactoryName, PositiveFloat, SiteName

Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")]


class SiteConfig(Part):
    """One site. Relative paths start at the folder of the file that holds them."""

    name: SiteName
    """The site's name in the run's spec."""
    aggregator: str
    """The aggregator's address, such as http://127.0.0.1:8765."""
    data: str
    """Folder of the data file that the spec names."""
    output: str
    """Folder for the trained model, the timings and the log."""
    spec: str | None = None
    """A copy of the run's spec: the site then takes part in this run alone."""
    allow_factories: tuple[FactoryName, ...] = ()
    """Model factories whose code the site has read and permits to run."""
    policy: str | None = None
    """The file with the site's limits on what leaves it (`local.policy`); without one the defaults hold."""
    device: Device = "cpu"
    """Where the model is trained."""
    patience: PositiveFloat = 300.0
    """Seconds for which the site tries to reach an aggregator that does not answer."""

    @field_validator("aggregator")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", value):
            raise ValueError(f"got {value!r}, expected an address such as http://10.0.0.1:8765")
        return value

    @classmethod
    def read(cls, path: Path) -> SiteConfig:
        """Read a site's file.

        Raises:
            UserError: it is unreadable, or a field is wrong.
        """
        document = load_json(path)
        if isinstance(document, dict) and "aggregator" not in document and {"run", "federation"} & document.keys():
            raise UserError(f"{path}: is a run's file, expected a site's: name, aggregator, data, output")
        config = validate(cls, document, file=path)
        folder = path.resolve().parent
        paths = ("data", "output", "spec", "policy")
        places = {key: str(folder / value) for key in paths if (value := getattr(config, key))}
        return config.model_copy(update=places)
