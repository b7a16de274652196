"""Simplex frames, the polar factor and its derivative, and the nearest-ETF problem, as pure functions."""
