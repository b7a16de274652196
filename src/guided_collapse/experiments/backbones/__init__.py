"""Backbones: networks that turn images into features, and features that are free variables."""
