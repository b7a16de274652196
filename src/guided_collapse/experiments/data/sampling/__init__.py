"""Which samples go into which batch, split or long tail."""
