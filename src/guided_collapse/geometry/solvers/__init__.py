"""Two ways to a polar factor: by factorizations, and by matrix products alone."""
