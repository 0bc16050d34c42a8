"""`python -m descsim_tools` is `descsim`."""

import sys

from descsim_tools.cli import main

sys.exit(main())
