"""Configuration, the loop, checkpoints, records."""
