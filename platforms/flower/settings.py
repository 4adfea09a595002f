"""Settings of a node, in a file there: a site's is that of `rankdad site`, with `"aggregator": "flower"`."""

from __future__ import annotations

import os
from pathlib import Path

from rankdad.common.numbers import PositiveFloat
from rankdad.local.config import SiteConfig
from rankdad.platforms.flower import ENVIRONMENT, SERVER
from rankdad.platforms.jobs import SettingsError
from rankdad.remote.hosted import ServerSettings


class FlowerSettings(ServerSettings):
    """Of the server. Relative paths start at the file's folder."""

    registered: bool = True
    """Whether a node's name is the one that its key is registered under; if not, it is what the node says."""
    patience: PositiveFloat = 600.0  # as its node may return into the running job
    """Seconds for which a site whose node is away is waited for."""


def site_settings(place: str) -> SiteConfig:
    """Return a site's settings, which lie at a place; "" if the node does not say.

    Raises:
        UserError: there are none, or they are invalid.
    """
    if not Path(place).is_file():
        lacks = "names a file for rankdad that is not there" if place else "has no settings for rankdad"
        said = f"the node {lacks}: expected --node-config 'rankdad=\"/path/to/site.json\"'"
        raise SettingsError(said, code="settings-missing")
    return SiteConfig.read(Path(place))


def server_settings() -> FlowerSettings:
    """Return the server's settings.

    Raises:
        SettingsError: there are none.
        UserError: they are not what they should be.
    """
    folder = os.environ.get(ENVIRONMENT)
    path = Path(folder or "") / f"{SERVER}.json"
    if not folder or not path.is_file():
        said = f"the server has no settings for rankdad: expected {SERVER}.json in the folder that {ENVIRONMENT} names"
        raise SettingsError(said, code="settings-missing")
    return FlowerSettings.read(path)
