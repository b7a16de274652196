"""Classifier heads that sit at the simplex ETF nearest to a network's own class means."""

from importlib.metadata import version

from guided_collapse.data.stratified import StratifiedBatchSampler
from guided_collapse.geometry.nearest import NearestETF, nearest_etf
from guided_collapse.geometry.simplex import simplex_etf
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.fixed import FixedETFHead
from guided_collapse.heads.head import Head
from guided_collapse.heads.linear import LinearHead
from guided_collapse.heads.nearest import NearestETFHead
from guided_collapse.heads.running_means import RunningClassMeans
from guided_collapse.optim.agd import AGD

__version__ = version("guided-collapse")

__all__ = [
    "AGD",
    "Classifier",
    "FixedETFHead",
    "Head",
    "LinearHead",
    "NearestETF",
    "NearestETFHead",
    "RunningClassMeans",
    "StratifiedBatchSampler",
    "nearest_etf",
    "simplex_etf",
]
