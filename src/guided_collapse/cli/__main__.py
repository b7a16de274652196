"""`python -m guided_collapse.cli`."""

import sys

from guided_collapse.cli.command import main

sys.exit(main())
