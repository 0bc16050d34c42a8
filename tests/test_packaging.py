"""The wheel, installed where no source tree can shadow it."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from itertools import chain
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = ["descsim_tools", "agents", "index_builder"]
COPIED = [*SOURCES, "pyproject.toml", "README.md", "LICENSE"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> tuple[Path, Path]:
    """Python of a venv that holds the wheel, and the folder it was installed to."""
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    source.mkdir()
    for name in COPIED:
        path = ROOT / name
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", base / "dist", source],
        check=True,
        cwd=base,
    )
    wheels = list((base / "dist").glob("*.whl"))
    assert len(wheels) == 1
    venv.create(base / "venv", with_pip=False, symlinks=True)
    python = base / "venv/bin/python"
    subprocess.run(
        [*pip, "--python", python, "install", "--no-deps", "--no-index", wheels[0]],
        check=True,
        cwd=base,
    )
    site = next((base / "venv/lib").glob("python*/site-packages"))
    # The dependencies, without the editable install that a nested .pth file would bring along.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python, site


def modules() -> list[str]:
    names = []
    for top in SOURCES:
        package = top if top == "descsim_tools" else f"descsim_tools.{top}"
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT / top).with_suffix("").parts
            names.append(".".join([package, *(p for p in parts if p != "__init__")]))
    return [name for name in names if not name.endswith("__main__")]


def test_every_module_imports_from_the_wheel(installed, tmp_path):
    python, site = installed
    program = (
        "import importlib, sys\n"
        f"for name in {modules()}:\n"
        "    module = importlib.import_module(name)\n"
        f"    assert module.__file__.startswith({str(site)!r}), module.__file__\n"
        "print('ok')"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.stdout.strip() == "ok", result.stderr


def test_the_wheel_has_the_command_and_the_marker(installed, tmp_path):
    python, site = installed
    assert (site / "descsim_tools/py.typed").is_file()
    assert not (site / "agents").exists()
    assert not (site / "index_builder").exists()
    result = subprocess.run(
        [python.parent / "descsim", "--version"], capture_output=True, text=True, cwd=tmp_path
    )
    assert re.fullmatch(r"descsim, version \d+\.\d+\.\d+\n", result.stdout)


def test_packages_are_all_listed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = settings["tool"]["setuptools"]["packages"]
    found = {name.rpartition(".")[0] for name in modules() if "." in name}
    assert found <= set(listed)
    assert listed == sorted(listed)


def test_extras_that_errors_name_exist():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = settings["project"]["optional-dependencies"]
    named = set()
    for top in SOURCES:
        for path in (ROOT / top).rglob("*.py"):
            named |= set(re.findall(r'require\("[\w.]+", "([\w-]+)"\)', path.read_text()))
    assert named
    assert named <= set(extras)


def test_pins_satisfy_the_lower_bounds():
    from packaging.requirements import Requirement

    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = chain(project["dependencies"], *project["optional-dependencies"].values())
    for text in wanted:
        requirement = Requirement(text)
        if requirement.name == "descsim-tools":
            continue
        assert pins[requirement.name] in requirement.specifier, text
