"""The wheel in an environment of its own, in a folder with packages that have the names of our subpackages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path

import pytest

from rankdad.common import __version__

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.slow


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def built(source: Path, folder: Path) -> Path:
    """Return a wheel that pip has built of a folder or an archive."""
    subprocess.run([*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)], check=True)
    return next(folder.glob("*.whl"))


def cloned(folder: Path, *options: str) -> Path:
    """Return a clone: what is not committed is not in it."""
    subprocess.run(["git", "clone", "--quiet", "--no-tags", *options, str(ROOT), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    return built(cloned(folder / "source"), folder)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["clone without links", "zip of the tree", "sdist"])
def test_it_is_whole_whatever_it_is_built_from(wheel: Path, tmp_path: Path, kind: str) -> None:
    """A clone on a system without symbolic links, and a zip, have a text in the place of each."""
    source = tmp_path / "source"
    if kind == "clone without links":
        cloned(source, "--config", "core.symlinks=false")
    elif kind == "zip of the tree":
        archive = tmp_path / "tree.zip"
        subprocess.run(["git", "archive", "--format=zip", f"--output={archive}", "HEAD"], cwd=ROOT, check=True)
        with zipfile.ZipFile(archive) as tree:
            tree.extractall(source)
        assert not (source / "rankdad" / "common").is_dir()
    else:
        subprocess.run([*PIP, "install", "--quiet", "--target", str(tmp_path / "backend"), "hatchling"], check=True)
        code = "import sys; from hatchling.build import build_sdist; build_sdist(sys.argv[1])"
        clone, environment = cloned(tmp_path / "clone"), os.environ | {"PYTHONPATH": str(tmp_path / "backend")}
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=clone, env=environment, check=True)
        (source,) = tmp_path.glob("rankdad-*.tar.gz")
    made = built(source, tmp_path / "dist")
    assert sorted(zipfile.ZipFile(made).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_its_version_counts_commits_since_the_tag_where_there_is_one(tmp_path: Path) -> None:
    clone = cloned(tmp_path / "clone")

    def git(*words: str) -> None:
        own = ("-c", "user.name=anna", "-c", "user.email=anna@example.org")
        subprocess.run(["git", "-C", str(clone), *own, *words], check=True)

    def version(**environment: str) -> str:
        words = [sys.executable, "-c", "import version; print(version.version())"]
        return subprocess.run(
            words, cwd=clone, env=os.environ | environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert version() == __version__
    git("tag", f"v{__version__}")
    assert version() == __version__
    git("commit", "--quiet", "--allow-empty", "--message", "later")
    assert re.fullmatch(re.escape(f"{__version__}.post1+g") + "[0-9a-f]+", version())
    assert version(PATH="") == __version__, "without git, as in an image"
    (clone / ".git").rename(tmp_path / ".git")
    assert version() == __version__, "the repository that it lies in has other tags"


def test_the_wheel_holds_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"rankdad", f"{wheel.name.split('-py3')[0]}.dist-info"}
    assert "rankdad/simulations/specs/digits.json" in names
    assert not [name for name in names if "benchmark" in name]
    rooms = ("common", "distributed", "local", "page", "platforms", "rankdad", "remote", "simulations")
    listed = subprocess.run(["git", "ls-files", "-s", *rooms], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [line.split("\t")[1] for line in listed.stdout.splitlines() if not line.startswith("120000")]  # links
    assert {name if name.startswith("rankdad/") else f"rankdad/{name}" for name in files} <= set(names)


@pytest.mark.exhaustive
def test_it_runs_beside_packages_that_have_our_rooms_names(wheel: Path, tmp_path: Path) -> None:
    """What rankdad needs is taken from where it lies: it is rankdad that is installed afresh."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([*PIP, "--python", python, "install", "--quiet", "--no-deps", str(wheel)], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    here = tmp_path / "here"
    for name in ("local", "remote", "simulations", "platforms"):
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text("raise SystemExit('the package of the user ran')\n")
    (here / "common.py").write_text("raise SystemExit('the package of the user ran')\n")

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    code = "import rankdad, sys; print(rankdad.__file__, 'torch' in sys.modules, rankdad.spi.__module__)"
    assert run(python, "-c", code).stdout.split() == [
        str(packages / "rankdad" / "__init__.py"),
        "False",
        "rankdad.common.lowrank.reduction.spi",
    ]
    times = [run(python, "-X", "importtime", "-c", "import rankdad").stderr for _ in range(3)]
    taken = [int(re.findall(r"(\d+) \| +rankdad$", text, flags=re.MULTILINE)[-1]) for text in times]
    assert min(taken) < 200_000, f"{taken} microseconds"
    spec = str(packages / "rankdad" / "simulations" / "specs" / "digits.json")
    summary = run(str(Path(python).parent / "rankdad"), "simulate", spec, "--set", "run.training.epochs=1", "--json")
    assert json.loads(summary.stdout)["epochs"] == 1


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_the_readmes_commands_run_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """With the extra `demo`, from a package index; the specs are those of the package, and each trains one epoch."""
    venv.create(tmp_path / "venv", with_pip=False)
    python, environment = tmp_path / "venv" / "bin" / "python", dict(os.environ)
    environment.pop("PYTHONPATH", None)
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"
    install = [*PIP, "--python", str(python), "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    began = time.monotonic()
    subprocess.run([*install, str(wheel)], check=True)
    took = time.monotonic() - began
    size = sum(path.lstat().st_size for path in (tmp_path / "venv").rglob("*") if not path.is_symlink())
    print(f"\nwithout extras: {size / 1e9:.2f} GB, installed in {took:.0f} s")
    subprocess.run([*install, f"{wheel}[demo]"], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    here = tmp_path / "here"
    here.mkdir()
    (here / "simulations").symlink_to(packages / "rankdad" / "simulations")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^ +(rankdad [^#\n]*\S)", readme, flags=re.MULTILINE)
    assert len(commands) > 1
    for command in ["rankdad --version", "rankdad simulate simulations/specs/digits.json", *commands]:
        quick = " --set run.training.epochs=1" * command.startswith("rankdad simulate")
        done = subprocess.run(command + quick, shell=True, cwd=here, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert "weights: equal at all sites" in done.stdout
