"""Two ways to a polar factor: by factorisations, and by matrix products alone."""
