"""Runs the command line, as `python -m guided_collapse.experiments.cli`."""

import sys

from guided_collapse.experiments.cli import main

sys.exit(main())
