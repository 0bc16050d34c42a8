"""The command line: `descsim`. Heavy imports happen inside the commands."""

from descsim_tools.cli.main import main

__all__ = ["main"]
