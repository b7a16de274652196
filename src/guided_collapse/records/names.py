"""The files of a run and of an experiment, and the version of what they hold."""

FORMAT = 1
"""Of everything that is written in JSON; readers refuse another."""

CONFIG = "config.json"
METRICS = "metrics.jsonl"
MARGINS = "margins.npz"
TRACE = "trace.npz"
LAST_CHECKPOINT = "last.ckpt"
PREVIOUS_CHECKPOINT = "previous.ckpt"
MODEL = "model.safetensors"
FAILURE = "failed.json"
COST = "cost.json"

SEALED = (METRICS, MARGINS, TRACE)
"""Whose checksums a finished model keeps."""
OF_A_RUN = (CONFIG, *SEALED, LAST_CHECKPOINT, PREVIOUS_CHECKPOINT, MODEL)
