"""The presets, and comparisons of heads over seeds."""
