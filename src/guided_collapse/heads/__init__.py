"""Classifier heads, the running class means they follow, and `Classifier`, which joins a backbone and a head."""

from guided_collapse.heads.anchored import AnchoredHead, compatibility_loss
from guided_collapse.heads.class_means import RunningClassMeans
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.cosine import CosineHead
from guided_collapse.heads.fixed import FixedETFHead
from guided_collapse.heads.head import Head
from guided_collapse.heads.loss import NearestETFLoss
from guided_collapse.heads.nearest import NearestETFHead
from guided_collapse.heads.nearest_tight import NearestTightFrameHead
from guided_collapse.heads.replace import replace_classifier

__all__ = [
    "AnchoredHead",
    "Classifier",
    "CosineHead",
    "FixedETFHead",
    "Head",
    "NearestETFHead",
    "NearestETFLoss",
    "NearestTightFrameHead",
    "RunningClassMeans",
    "compatibility_loss",
    "replace_classifier",
]

HEAD_CLASSES = {head.__name__: head for head in (AnchoredHead, CosineHead, FixedETFHead, NearestETFHead, NearestTightFrameHead)}
"""Head classes by name, as in `config.json` of a saved model."""
