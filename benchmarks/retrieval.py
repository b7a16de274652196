"""Time and memory of an exact search with mAP in a large gallery.

    python -m benchmarks.retrieval --classes 100 --threads 2

The targets for a gallery of 100,000 x 128 and 10,000 queries on two cores are one minute, and 2 GB for the whole process.
"""

import argparse
import resource
import time

import torch

from guided_collapse import RetrievalResult, retrieval


def search(num_items: int, num_queries: int, feature_dim: int, num_classes: int) -> RetrievalResult:
    """Returns the result of a retrieval among noisy samples of random class centers, and prints its time."""
    generator = torch.Generator().manual_seed(0)
    centers, sides = torch.randn(num_classes, feature_dim, generator=generator), []
    for size in (num_queries, num_items):
        labels = torch.randint(num_classes, (size,), generator=generator)
        sides += [centers[labels] + 3 * torch.randn(size, feature_dim, generator=generator), labels]
    start = time.perf_counter()
    result = retrieval(*sides)
    print(f"{time.perf_counter() - start:.1f} s: {result.scalars()}")
    return result


def megabytes() -> float:
    """Returns the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("items", 100_000), ("queries", 10_000), ("dimensions", 128), ("classes", 100), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    sizes = parser.parse_args()
    torch.set_num_threads(sizes.threads)
    search(sizes.items, sizes.queries, sizes.dimensions, sizes.classes)
    print(f"{megabytes():.0f} MB peak, with torch and all embeddings")
