"""Neural collapse, measured: class statistics, the metrics on them, and the same from a stream, a model or a file."""
