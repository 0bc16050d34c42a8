"""Agents over a store; installed as `descsim_tools.agents`.

`InstanceFinder` finds all instances of a concept and tells how complete that is. The names below
are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from descsim_tools.agents.finder import InstanceFinder
    from descsim_tools.agents.plan import Plan, Query
    from descsim_tools.agents.report import write_report
    from descsim_tools.agents.settings import FinderSettings
    from descsim_tools.agents.statement import Row, Statement
    from descsim_tools.agents.steps import Event

_HOMES = {
    "Event": "steps",
    "FinderSettings": "settings",
    "InstanceFinder": "finder",
    "Plan": "plan",
    "Query": "plan",
    "Row": "statement",
    "Statement": "statement",
    "write_report": "report",
}

__all__ = [
    "Event",
    "FinderSettings",
    "InstanceFinder",
    "Plan",
    "Query",
    "Row",
    "Statement",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
