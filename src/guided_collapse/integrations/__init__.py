"""Parts for the trainers of other libraries; each library is imported when its part is first asked for."""

from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.integrations.lightning_callback import LightningCollapse
    from guided_collapse.integrations.transformers_callback import TransformersCollapse

__all__ = ["LightningCollapse", "TransformersCollapse"]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "LightningCollapse": "integrations.lightning_callback",
        "TransformersCollapse": "integrations.transformers_callback",
    },
)
