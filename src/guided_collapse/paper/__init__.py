"""The paper's own route to the nearest simplex ETF, kept as an oracle and for benchmarks. Slow on purpose."""
