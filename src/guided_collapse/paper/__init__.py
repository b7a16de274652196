"""The paper's own route to the nearest simplex ETF, kept as oracle and benchmark. Slow on purpose."""
