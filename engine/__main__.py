"""`python -m engine`: the `diptych` command where nothing is installed."""

import sys

from engine.cli import main

sys.exit(main())
