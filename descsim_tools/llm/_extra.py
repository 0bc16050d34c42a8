"""Imported first by the package, so that a missing dependency is told by the name of its extra."""

from descsim_tools.errors import require

require("openai", "openai")
require("pydantic", "openai")
require("tenacity", "openai")
