"""Settings of a node, in a file there: a job brings none of them.

A site's file is the one that `rankdad site` takes, with `"aggregator": "nvflare"`. The server's says where runs lie.
"""

from __future__ import annotations

import os
from pathlib import Path

from rankdad.local.config import SiteConfig
from rankdad.platforms.jobs import SettingsError
from rankdad.remote.hosted import ServerSettings

FILE = "rankdad.json"  # in the folder `local` of a node's startup kit
ENVIRONMENT = "RANKDAD_NVFLARE"  # names a folder with a file for each node, such as hospital-a.json and server.json
SERVER = "server"


def settings_file(node: str, kit: str | None) -> Path:
    """Return where a node's settings lie.

    Args:
        node: its name, as the engine has checked it.
        kit: the folder `local` of its startup kit, if there is one.

    Raises:
        SettingsError: there are none.
    """
    folder = os.environ.get(ENVIRONMENT)
    path = Path(folder) / f"{node}.json" if folder else Path(kit or "local") / FILE
    if not path.is_file():
        said = f"{node} has no settings: expected {path.name} in "
        said += f"the folder that {ENVIRONMENT} names" if folder else "the folder local of its startup kit"
        raise SettingsError(said, code="settings-missing")
    return path


def site_settings(node: str, kit: str | None) -> SiteConfig:
    """Return a site's settings.

    Raises:
        SettingsError: there are none, or they are of a site with another name.
        UserError: they are not what a site's file should be.
    """
    config = SiteConfig.read(settings_file(node, kit))
    if config.name != node:
        said = f"the settings at {node} are of a site with another name: the engine's name and the run's must be equal"
        raise SettingsError(said, code="name-differs", field="name")
    return config


def server_settings(kit: str | None) -> ServerSettings:
    """Return the server's settings.

    Raises:
        SettingsError: there are none.
        UserError: they are not what they should be.
    """
    return ServerSettings.read(settings_file(SERVER, kit))
