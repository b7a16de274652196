"""Stratified batches."""
