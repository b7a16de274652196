"""Heads in models and trainers that others have written."""
