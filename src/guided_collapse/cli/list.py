"""`guided-collapse list`."""

import argparse

from guided_collapse.cli.command import DONE


def run(words: list[str]) -> int:
    """Prints the names of experiments and heads."""
    description = "List all experiments and heads."
    argparse.ArgumentParser(prog="guided-collapse list", description=description).parse_args(words)
    from guided_collapse.experiments.presets import PRESETS
    from guided_collapse.records.heads import HEADS

    for name, configuration in PRESETS.items():
        what = f"{configuration.backbone}, {configuration.epochs} epochs, batch {configuration.batch_size}"
        print(f"{name:20} {configuration.data:15} {what}")
    print(f"\nheads: {', '.join(HEADS)}")
    return DONE
