"""What brings samples to the formulas: streams, hooks on models, checks."""
