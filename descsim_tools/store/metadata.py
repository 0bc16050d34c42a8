"""Metadata of any JSON shape in Chroma's flat one, and back.

Chroma keeps strings, 64-bit integers, finite floats, booleans and non-empty lists of one of these;
it refuses nested values and keys that begin with $ or #, drops None and NaN, rounds big integers,
and hides keys of its own prefix [chromadb 1.5.9]. What it keeps is stored as it is, so that `where`
can filter on it; the rest goes, as JSON, under one key of ours. Dates do both: an ISO string to
filter on, and their type.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from descsim_tools.store.manifest import PREFIX

_JSON_KEY = PREFIX + "json"
# Chroma refuses a row without metadata in some calls, so each row carries at least this.
_ROW_KEY = PREFIX + "row"
_INT64 = 2**63


def encode_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat metadata that Chroma stores without loss.

    NumPy scalars become the Python values they equal, tuples become lists.

    Raises:
        ValueError: A key is no string or is one of ours, or a value is nothing JSON can hold.
    """
    flat: dict[str, Any] = {_ROW_KEY: True}
    rest: dict[str, Any] = {}
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise ValueError(f"metadata key {key!r} is no string")
        if key.startswith(PREFIX):
            raise ValueError(f"metadata key {key!r} begins with {PREFIX!r}, which is reserved")
        plain = _to_json(value, key)
        storable_key = key != "" and not key.startswith(("chroma:", "$", "#"))
        if storable_key and _is_native(plain):
            flat[key] = plain
            continue
        rest[key] = plain
        if storable_key and isinstance(value, dt.date):
            flat[key] = value.isoformat()
    if rest:
        flat[_JSON_KEY] = json.dumps(rest, ensure_ascii=False, sort_keys=True)
    return flat


def decode_metadata(flat: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what `encode_metadata` was given."""
    flat = flat or {}
    metadata = {key: value for key, value in flat.items() if not key.startswith(PREFIX)}
    rest = json.loads(str(flat.get(_JSON_KEY, "{}")))
    metadata.update({key: _from_json(value) for key, value in rest.items()})
    return metadata


def _to_json(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dt.datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, dt.date):
        return {"$date": value.isoformat()}
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _without_surrogates(value, path)
    if isinstance(value, list | tuple):
        return [_to_json(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"metadata {path!r} holds a dict whose keys are not all strings")
        plain = {key: _to_json(item, f"{path}.{key}") for key, item in value.items()}
        return {"$dict": plain} if any(key.startswith("$") for key in plain) else plain
    raise ValueError(
        f"metadata {path!r} is of type {type(value).__name__}; allowed are None, bool, int, float, "
        "str, date, datetime, and lists and dicts of these"
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$datetime": str(text), **others} if not others:
            return dt.datetime.fromisoformat(text)
        case {"$date": str(text), **others} if not others:
            return dt.date.fromisoformat(text)
        case {"$dict": dict(plain), **others} if not others:
            return {key: _from_json(item) for key, item in plain.items()}
    return {key: _from_json(item) for key, item in value.items()}


def _without_surrogates(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"metadata {path!r} is no valid Unicode") from error
    return text


def _is_native(value: Any) -> bool:
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        return len(kinds) == 1 and kinds <= {bool, int, float, str} and all(map(_is_native, value))
    if isinstance(value, bool | str):
        return True
    if isinstance(value, int):
        return -_INT64 <= value < _INT64
    return isinstance(value, float) and math.isfinite(value)
