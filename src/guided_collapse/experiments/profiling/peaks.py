"""What known devices can do at most, as their makers say. Nothing here needs torch."""

from collections.abc import Mapping
from typing import Literal

from guided_collapse.experiments.records.schema import PeakRates

DeviceName = Literal["A100", "H100", "V100", "T4", "RTX-4090", "M1"]

GIVEN = "as given"
"""The source of rates that are nobody's but the caller's."""


def _device(name: DeviceName, tflops: float, gbs: float, source: str) -> PeakRates:
    return PeakRates(device_name=name, float32_tflops=tflops, memory_gbs=gbs, source=source)


KNOWN_DEVICES: Mapping[DeviceName, PeakRates] = {
    "A100": _device("A100", 19.5, 1555.0, "NVIDIA A100 data sheet, 40 GB SXM, float32 without tensor cores"),
    "H100": _device("H100", 67.0, 3350.0, "NVIDIA H100 data sheet, SXM, float32 without tensor cores"),
    "V100": _device("V100", 15.7, 900.0, "NVIDIA V100 data sheet, SXM2, float32 without tensor cores"),
    "T4": _device("T4", 8.1, 300.0, "NVIDIA T4 data sheet, float32 without tensor cores"),
    "RTX-4090": _device("RTX-4090", 82.6, 1008.0, "NVIDIA GeForce RTX 4090 specifications, float32 without tensor cores"),
    "M1": _device("M1", 2.6, 68.0, "Apple's announcement of M1, graphics of 8 cores; its memory, LPDDR4X-4266 of 128 bits"),
}
"""Peak rates of float32 arithmetic and of memory, by name."""
