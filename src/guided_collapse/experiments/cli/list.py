"""`guided-collapse list`."""

import argparse

from guided_collapse.experiments.cli.command import DONE


def run(words: list[str]) -> int:
    """Prints the names of experiments and heads."""
    description = "List all experiments and heads."
    argparse.ArgumentParser(prog="guided-collapse list", description=description).parse_args(words)
    from guided_collapse.experiments.presets import PRESETS
    from guided_collapse.experiments.heads import HEADS
    from guided_collapse.experiments.records.text import aligned

    rows = [
        (name, preset.data, f"{preset.backbone}, {preset.epochs} epochs, batch {preset.batch_size}")
        for name, preset in PRESETS.items()
    ]
    print("\n".join(aligned(rows)))
    print(f"\nheads: {', '.join(HEADS)}")
    return DONE
