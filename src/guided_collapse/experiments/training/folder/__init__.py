"""The folder of a run: what is in it, whole or damaged, and who may work there."""
