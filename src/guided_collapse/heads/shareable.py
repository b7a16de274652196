"""The methods by which a classifier is saved, loaded and shared."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from torch import nn

from guided_collapse.lazy import imported

# What they do is in a later room, because it builds networks too; it is imported when it is first asked for.
SHARING = "guided_collapse.integrations.sharing.pretrained"


class Shareable(nn.Module):
    """Saving to a folder, loading from there, and the Hugging Face hub: weights in safetensors, `config.json`, and a card."""

    def save_pretrained(self, folder: str | Path, *, data: str | None = None, metrics: Mapping[str, float] | None = None) -> None:
        """Writes `model.safetensors`, `config.json` and the card `README.md` to a folder.

        Args:
            folder: made if there is none; what it holds of these files is replaced.
            data: what the model was trained on, for the card.
            metrics: for the card, such as `collapse_of(model, loader).scalars()`.

        Raises:
            ValueError: for the folder of a run, numbers that are not finite, or if safetensors is missing.
        """
        imported(f"{SHARING}:save")(self, Path(folder), data=data, metrics=metrics)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        backbone: nn.Module | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> Self:
        """A model that was saved, in eval mode. Nothing is unpickled.

        Args:
            source: a folder, or the name of a repository on the hub.
            backbone: built as it was when the model was saved, its weights are replaced; networks of this package are built anew.
            revision: branch, tag or commit of the repository.
            token: for the hub, if the repository is not public.

        Raises:
            ValueError: if there is no such model, it is damaged, a backbone must be given, or a package is missing.
        """
        model: Self = imported(f"{SHARING}:load")(cls, source, backbone=backbone, revision=revision, token=token)
        return model

    def push_to_hub(
        self,
        repository: str,
        *,
        data: str | None = None,
        metrics: Mapping[str, float] | None = None,
        private: bool | None = None,
        token: str | bool | None = None,
    ) -> str:
        """Uploads what `save_pretrained` writes to a repository of the Hugging Face hub, and returns the address of its page.

        Args:
            repository: "name/model"; made if there is none.
            data: what the model was trained on, for the card.
            metrics: for the card.
            private: whether a new repository is private; None takes what is usual for its owner.
            token: that may write to it; None takes the one of `hf auth login`.

        Raises:
            ValueError: as for `save_pretrained`, or if huggingface_hub is missing.
        """
        address: str = imported(f"{SHARING}:push")(self, repository, data=data, metrics=metrics, private=private, token=token)
        return address
