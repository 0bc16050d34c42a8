"""A record of every exchange, one JSON object a line, without secrets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_MASK = "[secret]"


class Transcript:
    """Appends entries to a file, or does nothing without one."""

    def __init__(self, path: Path | None, secrets: Iterable[str]) -> None:
        self._secrets = [secret for secret in secrets if secret]
        self._lock = threading.Lock()
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry with its time; it is in the file when this returns."""
        if self._file is None:
            return
        stamped = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}
        line = self.masked(json.dumps(stamped, ensure_ascii=False))
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def masked(self, text: str) -> str:
        """Return a text with the secrets in it masked."""
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return text

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
