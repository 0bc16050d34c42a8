"""How text that is not ours reaches a model."""

from __future__ import annotations

import json
import re
from typing import Any

# What a chat template may read as the end of a message or as a role, once out of its JSON string,
# and separators of lines that JSON leaves as they are.
_MARKERS = re.compile(r"<|\[(?=/?[A-Z_]+\])|[\u2028\u2029]")


def as_data(data: Any) -> str:
    """Return data as one line of JSON that nothing in its strings can leave."""
    text = json.dumps(data, ensure_ascii=False)
    return _MARKERS.sub(lambda marker: f"\\u{ord(marker[0]):04x}", text)


def check_utf8(text: str, name: str) -> None:
    """Check that a user's text is whole characters, which alone can be sent and kept.

    Raises:
        ValueError: It holds half a character, as of a command line that is no UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} is not valid UTF-8 text: {text[error.start : error.end]!a} at character "
            f"{error.start + 1}; write it in UTF-8"
        ) from error
