"""The paper's own way to compute and differentiate the nearest simplex ETF: a slow reference for tests and benchmarks."""
