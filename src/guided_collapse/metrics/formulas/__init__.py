"""The metrics as formulas on class statistics and samples."""
