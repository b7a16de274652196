"""Data: stratified batches."""
