"""`python -m plimsoll`: the command line."""

import sys

from plimsoll.cli.main import main

sys.exit(main())
