"""The paper's own route to the nearest simplex ETF, kept as a test oracle and for benchmarks. Slow by design."""
