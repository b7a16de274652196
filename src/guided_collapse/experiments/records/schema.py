from guided_collapse.experiments.run_format import *  # noqa
METRICS_COMPRESSED = "metrics.jsonl.gz"
