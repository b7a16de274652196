"""The command `guided-collapse`: one module for each command, imported when it is asked for."""

from guided_collapse.experiments.cli.command import main

__all__ = ["main"]
