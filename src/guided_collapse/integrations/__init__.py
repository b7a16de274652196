"""Callbacks for the trainers of Lightning and transformers, and the Hugging Face Hub. Each library is imported on first use."""

from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.integrations.lightning import LightningCollapse
    from guided_collapse.integrations.transformers import TransformersCollapse

__all__ = ["LightningCollapse", "TransformersCollapse"]

__getattr__, __dir__ = on_demand(
    __name__, {"LightningCollapse": "integrations.lightning", "TransformersCollapse": "integrations.transformers"}
)
