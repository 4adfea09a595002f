"""Before a run: startup kits of NVFlare's for all members and the central node, each with the run's parameters."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from rankdad.common.documents import load_json, validate
from rankdad.common.errors import UserError
from rankdad.common.files import make_folder, write_json
from rankdad.platforms.neuroflame.folders import CLIENT, NAMES, PARAMETERS
from rankdad.platforms.nvflare.job import job_files

INPUT = "provision_input.json"
PACKAGE = "rankdad.platforms.neuroflame"
CONTROLLER, EXECUTOR = f"{PACKAGE}.controller.IterationController", f"{PACKAGE}.executor.SiteExecutor"
ADMIN, CENTRAL, KITS = "admin@admin.com", "centralNode", "runKits"
ADMIN_TIMEOUT = 120.0  # seconds for which the server waits for members to take the job
BUILDERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("workspace.WorkspaceBuilder", {"template_file": "master_template.yml"}),
    ("static_file.StaticFileBuilder", {"config_folder": "config", "scheme": "grpc"}),
    ("cert.CertBuilder", {}),
    ("signature.SignatureBuilder", {}),
)
Name = Annotated[str, Field(min_length=1, max_length=200)]
Port = Annotated[int, Field(ge=1, le=65535)]


class User(BaseModel):
    """A member; more keys may come."""

    id: Name
    name: Name


class Input(BaseModel):
    """What NeuroFLAME says of a run, in either shape: `users`, or `user_ids` and `active_participants`."""

    users: tuple[User, ...] = ()
    user_ids: tuple[Name, ...] = ()
    active_participants: tuple[dict[str, Any], ...] = ()
    computation_parameters: dict[str, Any] | str = {}
    fed_learn_port: Port
    admin_port: Port | None = None
    host_identifier: Name

    def names(self) -> dict[str, str]:
        """Return what the members are called, by the id that NVFlare knows them by.

        Raises:
            UserError: there are none, or two are alike.
        """
        shown = {one.get("participantId"): one.get("displayName") for one in self.active_participants}
        pairs = [(user.id, user.name) for user in self.users]
        names = dict(pairs := pairs or [(id_, str(shown.get(id_) or id_)) for id_ in self.user_ids])
        if not names or len(set(names.values())) < len(pairs) or len(names) < len(pairs) or CENTRAL in names:
            said = f"{INPUT}: expected one member or more, each with an id and a name of its own"
            raise UserError(said, code="provision-input", field="users")
        return names


def provision(folder: Path) -> tuple[str, ...]:
    """Make the run kits of the members and of the central node, and return the members' ids.

    Args:
        folder: with `provision_input.json`.

    Raises:
        UserError: the input cannot be used, or NVFlare makes no kits of it.
    """
    given = validate(Input, load_json(folder / INPUT), file=INPUT)
    from rankdad.platforms.coinstac.parameters import parsed

    names, parameters = given.names(), parsed(given.computation_parameters or {})
    clients = {id_: f"{CLIENT}{id_}" for id_ in names}
    made = _startup_kits(folder, given, tuple(clients.values()))
    kits, parameters = folder / KITS, {**parameters, NAMES: names}
    for id_, client in clients.items():
        _copy(made / client, kits / id_, EXECUTOR)
        write_json(kits / id_ / PARAMETERS, parameters)
    _copy(made / given.host_identifier, kits / CENTRAL / "server", CONTROLLER)
    _copy(made / ADMIN, kits / CENTRAL / "admin")
    write_json(kits / CENTRAL / PARAMETERS, parameters)
    for place, document in job_files("rankdad", tuple(clients.values()), CONTROLLER, EXECUTOR, len(names)).items():
        path = kits / CENTRAL / "job" / place
        write_json(make_folder(path.parent) / path.name, document)
    return tuple(names)


def _startup_kits(folder: Path, given: Input, clients: tuple[str, ...]) -> Path:
    """Let NVFlare make startup kits, and return the folder that has them.

    Raises:
        UserError: it makes none.
    """
    ports = given.model_dump(include={"fed_learn_port", "admin_port"}, exclude_none=True)
    kinds = [(given.host_identifier, {"type": "server", **ports}), (ADMIN, {"type": "admin", "role": "project_admin"})]
    kinds += [(client, {"type": "client"}) for client in clients]
    participants = [{"name": name, "org": "neuroflame", **kind} for name, kind in kinds]
    builders = [{"path": f"nvflare.lighter.impl.{path}", "args": args} for path, args in BUILDERS]
    project = {"api_version": 3, "name": "project", "participants": participants, "builders": builders}
    write_json(folder / "project.yml", project)
    words = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(folder / "project.yml")]
    words += ["-w", str(folder / "startupKits"), "--force"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    made = sorted((folder / "startupKits" / "project").glob("prod_*"))
    if done.returncode or not made:
        said = f"NVFlare has made no startup kits: {(done.stderr or done.stdout).strip()[-500:]}"
        raise UserError(said, code="provision-failed")
    return made[-1]


def _copy(source: Path, target: Path, *classes: str) -> None:
    """Copy a startup kit, and permit the run's own classes there; a member's logs stay with the member."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    path, started = target / "local" / "resources.json.default", target / "startup" / "fed_server.json"
    if path.exists():
        resources = load_json(path)
        resources["class_allow_list"] = [*resources.get("class_allow_list", []), *classes]
        write_json(path, resources | {"class_list_enforcement_mode": "enforce", "allow_log_streaming": False})
    if started.exists():
        settings = load_json(started)
        settings["servers"] = [one | {"admin_timeout": ADMIN_TIMEOUT} for one in settings["servers"]]
        write_json(started, settings)
