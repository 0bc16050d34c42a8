"""The folder of a run: for one run at a time, and only ever for the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from descsim_tools.training.config import ConfigError, TrainConfig

_IDENTITY = "run.json"
_RESULT = "result.json"
_SHOWN = 3
_WORK = (
    _RESULT,
    "checkpoints/checkpoint-*",
    f"seed-*/{_RESULT}",
    "seed-*/checkpoints/checkpoint-*",
)
"""What would be lost, or mixed with what is not like it."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run gave.

    Attributes:
        folder: Holds `model/` (a sentence-transformers folder), what it adds to its base
            (`delta.safetensors`, see `descsim_tools.encoders.delta`, for a pair whose base is one
            encoder; or `description-map.safetensors` and `sentence-map.safetensors`, see
            `descsim_tools.encoders.maps`), `log.csv` and `curve.png` (of an average in the folders
            of its seeds), and `result.json`.
        metrics: Dev figures of the kept checkpoint.
        epoch: That it was taken after.
        groups: Trained on.
        seconds: Wall time of the call that ended the run.
    """

    folder: str
    metrics: dict[str, float]
    epoch: float
    groups: int
    seconds: float


@contextmanager
def run_folder(config: TrainConfig, folder: str | Path) -> Iterator[TrainResult | None]:
    """Make the folder of a run and keep other runs out of it, also those of another configuration.

    Only how trained seeds are mixed, `average` and `base_share`, may change: the seeds that are
    there are mixed anew.

    Yields:
        The result, where this very run has ended before.

    Raises:
        ConfigError: The folder cannot be made, a run is going on in it, or it holds one of another
            configuration or other data.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}") from error
    lock = FileLock(folder / ".lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(
            f"another run is going on in {folder}; wait for it, or choose another folder"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error
    try:
        yield _claim(config, folder)
    finally:
        lock.release()


def write_result(config: TrainConfig, result: TrainResult, folder: Path) -> None:
    """Write configuration and figures, without a path of this machine."""
    content = {"config": _settings(config), **asdict(result)}
    del content["folder"]
    _write(content, folder / _RESULT)


def _claim(config: TrainConfig, folder: Path) -> TrainResult | None:
    """Note whose run this is, unless the folder has one that it would be mixed with."""
    now = {**_settings(config), "files": _digests(config)}
    if any(any(folder.glob(pattern)) for pattern in _WORK):
        then = _read(folder / _IDENTITY)
        if then == now:
            ended = (folder / _RESULT).is_file() and (folder / "model").is_dir()
            return _ended(folder) if ended else None
        if not (config.is_average and _is_average(then) and _unmixed(then) == _unmixed(now)):
            raise ConfigError(
                f"{folder} holds another run: {_differences(then, now)}. Choose another folder, or "
                "delete this one"
            )
    (folder / _RESULT).unlink(missing_ok=True)
    _write(now, folder / _IDENTITY)
    return None


def _is_average(identity: Mapping[str, Any]) -> bool:
    training = identity.get("training", {})
    return training.get("average", 1) > 1 or any(training.get("base_share", ()))


def _unmixed(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what only says how trained seeds are mixed."""
    training = {k: v for k, v in identity["training"].items() if k not in ("average", "base_share")}
    return {**identity, "training": training}


def _settings(config: TrainConfig) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(config.model_dump_json())
    for key in ("train", "dev"):
        settings["data"][key] = [Path(file).name for file in settings["data"][key]]
    return settings


def _digests(config: TrainConfig) -> dict[str, str]:
    return {
        f"{key} {number}, {file.name}": hashlib.sha256(file.read_bytes()).hexdigest()
        for key, files in (("train", config.data.train), ("dev", config.data.dev))
        for number, file in enumerate(files, 1)
        if file.is_file()  # what is missing is told by whoever reads it
    }


def _ended(folder: Path) -> TrainResult:
    content = _read(folder / _RESULT)
    names = ("metrics", "epoch", "groups", "seconds")
    return TrainResult(str(folder), *(content[name] for name in names))


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if not then:
        return f"it has no {_IDENTITY}"
    flat = [dict(_flat(content)) for content in (then, now)]
    different = [
        f"{name} is {flat[0].get(name, 'not given')} there and {flat[1].get(name, 'not given')} now"
        for name in dict.fromkeys([*flat[1], *flat[0]])
        if flat[0].get(name) != flat[1].get(name)
    ]
    shown = [
        text if not text.startswith("files.") else f"{text.split(' is ')[0]} has another content"
        for text in different[:_SHOWN]
    ]
    more = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return "; ".join(shown) + more


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}. Delete its folder") from error
    return content if isinstance(content, dict) else {}


def _write(content: Mapping[str, Any], path: Path) -> None:
    # Whole or not at all, since what is damaged makes the folder unusable.
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    new.replace(path)
