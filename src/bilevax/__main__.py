"""`python -m bilevax`."""

import sys

from bilevax.cli import main

sys.exit(main())
