"""Tight frames, for more classes than a simplex ETF has room for."""
