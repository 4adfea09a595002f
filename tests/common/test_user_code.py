"""Code of installed distributions is allowed by version; another version, or another package's, is never imported."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from rankdad.common.errors import PolicyError
from rankdad.common.user_code import CodeOrigin, origin, pack, permit, resolve, unpack
from tests.common.faults import fault

IMPORTED = "heart_models_were_imported"
SOURCE = f"import sys\nsys.{IMPORTED} = True\ndef make():\n    return 1\n"
NAME = "heart_models.nets:make"
HERE = CodeOrigin(NAME, "Heart_Models", "1.2.3")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distribution, Heart_Models 1.2.3, in a folder of its own; once, since Python's are looked through once."""
    places = tmp_path_factory.mktemp("places")
    package, metadata = (places / "site-packages" / name for name in ("heart_models", "heart_models-1.2.3.dist-info"))
    for one in (package, metadata, places / "empty"):
        one.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(SOURCE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: Heart_Models\nVersion: 1.2.3\n")
    (metadata / "RECORD").write_text("heart_models/__init__.py,,\nheart_models/nets.py,,\n")
    return places


@pytest.fixture
def installed(places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the distribution is; the present folder is empty."""
    monkeypatch.chdir(places / "empty")
    monkeypatch.setattr(sys, "path", [*sys.path, str(places / "site-packages")])
    monkeypatch.delattr(sys, IMPORTED, raising=False)
    for name in ("heart_models", "heart_models.nets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return places / "site-packages"


@pytest.mark.parametrize("entry", [HERE.entry, f"{NAME}@heart-models==1.2.3", f"{NAME}@heart.models==*"])
def test_a_listed_version_is_loaded(installed: Path, entry: str) -> None:
    assert permit(NAME, ["other:make", f"{NAME}@heart-models==1.0", entry], "model.factory") == HERE
    assert not hasattr(sys, IMPORTED)
    assert resolve(NAME, [entry], "model.factory")() == 1


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "factory-not-allowed"),
        (["heart_models.nets:other@heart-models==1.2.3"], "factory-not-allowed"),
        ([NAME], "factory-version-differs"),
        ([f"{NAME}@heart-models==1.2.4"], "factory-version-differs"),
        ([f"{NAME}@torch==1.2.3", f"{NAME}@torch==*"], "factory-version-differs"),
    ],
)
def test_what_is_not_listed_is_not_imported(installed: Path, entries: list[str], code: str) -> None:
    assert fault(lambda: resolve(NAME, entries, "model.factory"))[:2] == (code, "model.factory")
    assert not hasattr(sys, IMPORTED)


@pytest.mark.slow
def test_a_file_that_hides_a_distribution_is_of_none(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the run is started, which Python looks through first
    package = Path("heart_models")
    package.mkdir()
    (package / "nets.py").write_text(SOURCE)
    (package / "__init__.py").touch()
    assert permit(NAME, [NAME], "model.factory") == CodeOrigin(NAME)
    with pytest.raises(PolicyError, match=r"no installed package"):
        permit(NAME, [HERE.entry], "model.factory")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_editable_checkout_is_its_distributions(installed: Path, tmp_path: Path) -> None:
    checkout, metadata = tmp_path / "checkout", tmp_path / "own" / "heart_models-1.2.3.dist-info"
    shutil.copytree(installed / metadata.name, metadata)
    shutil.copytree(installed / "heart_models", checkout / "heart_models")
    sys.path.remove(str(installed))
    (metadata / "RECORD").write_text("__editable__.heart_models-1.2.3.pth,,\n")
    (metadata / "top_level.txt").write_text("heart_models\n")
    (metadata / "direct_url.json").write_text(f'{{"url": "{checkout.as_uri()}", "dir_info": {{"editable": true}}}}')
    sys.path += [str(metadata.parent), str(checkout)]
    assert origin(NAME) == HERE


@pytest.mark.slow
def test_what_is_of_no_distribution_has_no_version() -> None:
    names = ("os:getcwd", "nowhere.at_all:make", "rankdad.models:make")
    assert [origin(name) for name in names] == [CodeOrigin(name) for name in names]
    assert origin("torch.nn:Linear").distribution == "torch"


def test_functions_travel_whole() -> None:
    functions = (CodeOrigin("a:b"), HERE)
    assert unpack(pack(functions)) == functions
    for wrong in (b"a", b"a:b " * 11, HERE.entry.encode() + b"0" * 200, b"a:b@x==1\xff"):
        with pytest.raises(ValueError, match=r"package|decode"):
            unpack(wrong)
