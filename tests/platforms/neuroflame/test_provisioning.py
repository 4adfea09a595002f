"""What NeuroFLAME says before a run: both of its shapes, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import UserError
from rankdad.platforms.coinstac.fields import OWNER
from rankdad.platforms.coinstac.parameters import default_parameters
from rankdad.platforms.neuroflame import provisioning
from rankdad.platforms.neuroflame.provisioning import ADMIN, provision

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "how-to" / "neuroflame.md"
NEW = {
    "users": [{"id": "64a1", "name": "North"}, {"id": "64a2", "name": "South"}],
    "computation_parameters": {"label": "diagnosis"},
    "fed_learn_port": 3010,
    "host_identifier": "central.example.org",
}
OLD = {
    "user_ids": ["64a1", "64a2"],
    "active_participants": [
        {"participantId": "64a1", "kind": "user", "displayName": "North", "userId": "64a1", "vaultId": None},
        {"participantId": "64a2", "kind": "vault", "displayName": "South", "userId": None, "vaultId": "64a2"},
    ],
    "computation_parameters": '{"label": "diagnosis"}',
    "fed_learn_port": 3010,
    "admin_port": 3011,
    "host_identifier": "central.example.org",
}


@pytest.fixture(autouse=True)
def _kits(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(folder: Path, given: Any, clients: tuple[str, ...]) -> Path:
        made = folder / "made"
        for name in (given.host_identifier, ADMIN, *clients):
            (made / name / "local").mkdir(parents=True)
            (made / name / "startup").mkdir()
            (made / name / "local" / "resources.json.default").write_text('{"class_allow_list": ["nvflare.x"]}')
        (made / given.host_identifier / "startup" / "fed_server.json").write_text('{"servers": [{"name": "project"}]}')
        return made

    monkeypatch.setattr(provisioning, "_startup_kits", make)


def provisioned(folder: Path, given: dict[str, Any]) -> Path:
    (folder / "provision_input.json").write_text(json.dumps(given))
    provision(folder)
    return folder / "runKits"


@pytest.mark.parametrize("given", [NEW, OLD], ids=["users", "user_ids"])
def test_both_shapes_of_the_input_make_the_same_kits(tmp_path: Path, given: dict[str, Any]) -> None:
    kits = provisioned(tmp_path, given)
    assert {path.name for path in kits.iterdir()} == {"64a1", "64a2", "centralNode"}
    for kit in kits.iterdir():
        parameters = json.loads((kit / "parameters.json").read_text())
        assert parameters == {"label": "diagnosis", "site_id_name_map": {"64a1": "North", "64a2": "South"}}
    resources = json.loads((kits / "64a1" / "local" / "resources.json.default").read_text())
    assert resources["class_allow_list"] == ["nvflare.x", provisioning.EXECUTOR]
    assert (resources["class_list_enforcement_mode"], resources["allow_log_streaming"]) == ("enforce", False)
    meta = json.loads((kits / "centralNode" / "job" / "meta.json").read_text())
    assert (meta["min_clients"], len(meta["mandatory_clients"])) == (2, 2)
    assert not (kits / "centralNode" / "job" / "app" / "custom").exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"users": []}, "users"),
        ({"users": [{"id": "64a1", "name": "North"}, {"id": "64a1", "name": "South"}]}, "users"),
        ({"users": [{"id": "64a1", "name": "North"}, {"id": "64a2", "name": "North"}]}, "users"),
        ({"users": [{"id": "centralNode", "name": "North"}]}, "users"),
        ({"users": [{"id": 7, "name": "North"}]}, "users[0].id"),
        ({"fed_learn_port": 70000}, "fed_learn_port"),
        ({"host_identifier": ""}, "host_identifier"),
        ({"computation_parameters": "{"}, "parameters"),
        ({"computation_parameters": "[]"}, "parameters"),
        ({"computation_parameters": {"label": "y", "epocs": 3}}, "parameters"),
        ({"computation_parameters": {"label": "y", "min_rows": 1}}, "parameters"),
        ({"computation_parameters": {"spec": {"name": "x"}}}, "parameters"),
        ({}, "parameters"),
    ],
)
def test_what_cannot_be_run_is_said_before_a_kit_is_made(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    given = NEW | (changes or {"computation_parameters": {}})
    with pytest.raises(UserError) as error:
        provisioned(tmp_path, given)
    assert error.value.field == field
    assert not (tmp_path / "runKits").exists()


def test_the_page_has_all_parameters_with_their_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {key: json.loads(default) for key, default in rows} == default_parameters()
    assert {field.variable for field in OWNER} == {key for key, _ in rows}
