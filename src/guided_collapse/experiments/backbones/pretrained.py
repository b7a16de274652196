"""Any timm model as a backbone, optionally with pretrained weights from timm or from a file."""

import pickle
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from guided_collapse.experiments.backbones.backbone import Backbone
from guided_collapse.experiments.backbones.neck import Neck, NeckKind
from guided_collapse.lazy import optional

WEIGHT_FILES = (".safetensors", ".pt", ".pth", ".bin")
MAX_KEYS_NAMED = 4


class Expected(NamedTuple):
    """The size and normalization of the images that a timm model expects: mean and std of each channel, for pixels from 0 to 1."""

    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def expected(model: str) -> Expected:
    """Returns the image size and normalization that the timm model expects; raises ValueError for an unknown name."""
    declared = _declared(model)
    return Expected(declared.input_size[1], tuple(declared.mean), tuple(declared.std))


class TimmBackbone(Backbone):
    """A timm model up to the input of its classifier, `forward_head(..., pre_logits=True)`, followed by a neck.

    Args:
        model: name of the model in timm.
        in_channels: channels of the images, which must be 3.
        image_size: height and width of the images; if None, the size that the model expects.
        pretrained: whether to load timm's pretrained weights, from its cache or the hub.
        weights: file with a state dict to load instead; a classifier in it is ignored.
        freeze: whether to keep the model, but not the neck, in eval mode and without gradients.
        freeze_batch_norm: whether to freeze the model's BatchNorm layers in this way, but no others.
        backbone_rate: not used here; the optimizer reads it from the configuration.
        neck, feature_dim, affine: as for `Neck`.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        model: str,
        *,
        in_channels: int = 3,
        image_size: int | None = None,
        pretrained: bool = False,
        weights: str | None = None,
        freeze: bool = False,
        freeze_batch_norm: bool = False,
        backbone_rate: float = 1.0,
        neck: NeckKind = "none",
        feature_dim: int | None = None,
        affine: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        if in_channels != 3:
            raise ValueError(f"images for a timm model must have 3 channels; got {in_channels}. Convert them to RGB.")
        own_size = expected(model).image_size
        found = None if weights is None else read_state_dict(Path(weights))
        with torch.random.fork_rng(devices=[]):  # timm draws from the global generator
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            network = _created(model, pretrained=pretrained).eval()
        if found is not None:
            load_weights(network, found, name=model, source=f"{weights}")
        width = _width_for(network, image_size or own_size, name=model, own_size=own_size)
        super().__init__(width if feature_dim is None else feature_dim)
        self.model = network
        self.neck = Neck(in_channels=width, neck=neck, feature_dim=feature_dim, affine=affine, generator=generator)
        self.freeze, self.freeze_batch_norm = freeze, freeze_batch_norm
        for module in self._frozen():
            module.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of every layer that is not frozen; frozen layers stay in eval mode."""
        super().train(mode)
        for module in self._frozen():
            module.eval()
        return self

    def _frozen(self) -> list[nn.Module]:
        """Returns the frozen modules, looked up every time because conversion to synchronized BatchNorm replaces layers."""
        if self.freeze:
            return [self.model]
        return [module for module in self.model.modules() if self.freeze_batch_norm and isinstance(module, _BatchNorm)]

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the features of a batch of floating-point images, (num_samples, 3, height, width)."""
        return self.neck(_features(self.model, inputs))


def with_synchronized_batch_norm(model: nn.Module) -> nn.Module:
    """Returns the model with BatchNorm synchronized across processes.

    timm models need timm's own conversion, because torch's would drop the activations that are part of timm's layers.
    """
    of_timm = any(isinstance(module, TimmBackbone) for module in model.modules())
    owner = optional("timm.layers", extra="timm") if of_timm else nn.SyncBatchNorm
    converted: nn.Module = owner.convert_sync_batchnorm(model)
    return converted


def load_weights(network: nn.Module, found: Mapping[str, Tensor], *, name: str, source: str) -> None:
    """Loads a state dict into a timm model without a classifier; raises ValueError, naming keys and shapes that do not match."""
    wanted, classifier = network.state_dict(), _declared(name).classifier or ()
    prefixes = tuple(f"{layer}." for layer in ([classifier] if isinstance(classifier, str) else classifier))
    found = {key: value for key, value in found.items() if key in wanted or not key.startswith(prefixes)}
    # Old files lack the batch counts of BatchNorm, which only layers without momentum use.
    missing, unexpected = (
        [key for key in keys if key not in others and not key.endswith("num_batches_tracked")]
        for keys, others in ((wanted, found), (found, wanted))
    )
    shapes = [
        f"{key} of shape {tuple(found[key].shape)} instead of {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in found and found[key].shape != value.shape
    ]
    problems = {"it lacks": missing, "it also has": unexpected, "it has": shapes}
    if any(problems.values()):
        listed = "; ".join(f"{what} {_some(keys)}" for what, keys in problems.items() if keys)
        raise ValueError(f"weights must match timm's {name}; {source} does not: {listed}. Choose the model of this file.")
    network.load_state_dict(found, strict=False)


def read_state_dict(file: Path) -> dict[str, Tensor]:
    """Returns the state dict in a file, without unpickling other objects.

    Raises:
        ValueError: if the file is unreadable or holds anything other than a state dict of tensors.
    """
    if file.suffix not in WEIGHT_FILES:
        raise ValueError(f"weights must be in a file that ends in {', '.join(WEIGHT_FILES)}; got {file}.")
    try:
        if file.suffix == ".safetensors":
            found = optional("safetensors.torch", extra="experiments").load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"weights must be in a readable file; {file} is not: {error.strerror or error}.") from error
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"weights must be a state dict of tensors; {file} holds other pickled objects, which are never loaded. "
            "Save model.state_dict() alone."
        ) from error
    except Exception as error:  # a damaged file can fail in any layer of the readers
        raise ValueError(f"weights must be a readable state dict; reading {file} failed: {error}") from error
    for name in ("state_dict", "model"):  # where training scripts put it
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"weights must be a state dict of tensors; {file} holds something else. Save model.state_dict() alone.")
    return {key.removeprefix("module."): value for key, value in found.items()}  # DistributedDataParallel adds this prefix


def _declared(model: str) -> Any:
    """Returns timm's declaration of the model; raises ValueError for an unknown name."""
    timm = optional("timm", extra="timm")
    if not timm.is_model(model):
        near = get_close_matches(model, timm.list_models())
        hint = f"Did you mean {' or '.join(near)}?" if near else "timm.list_models() lists all names."
        raise ValueError(f"backbone timm:NAME must name a timm model; got {model!r}. {hint}")
    return timm.get_pretrained_cfg(model)


def _created(model: str, *, pretrained: bool) -> nn.Module:
    try:
        return optional("timm", extra="timm").create_model(model, pretrained=pretrained, num_classes=0)
    except Exception as error:  # a download can fail in any layer of timm
        if not pretrained:
            raise
        raise ValueError(
            f"pretrained weights of {model} must be in timm's cache or on the hub; getting them failed: {str(error).rstrip('.')}. "
            "Without a connection, use --weights FILE."
        ) from error


@torch.no_grad()
def _width_for(network: nn.Module, size: int, *, name: str, own_size: int) -> int:
    """Adapts the network to images of this size and returns its number of features; raises ValueError if the size does not fit."""
    try:
        if size != own_size and hasattr(network, "set_input_size"):  # models with a position embedding for every patch
            network.set_input_size(img_size=(size, size))  # type: ignore[operator]
        return _features(network, torch.zeros(1, 3, size, size)).shape[1]
    except Exception as error:  # every architecture raises its own error
        raise ValueError(
            f"images must have a size that timm's {name} takes; got {size} x {size}: {str(error).rstrip('.')}. "
            f"Choose another --image-size; the model's own is {own_size}."
        ) from error


def _features(network: nn.Module, images: Tensor) -> Tensor:
    return network.forward_head(network.forward_features(images), pre_logits=True)  # type: ignore[operator]


def _some(names: list[str]) -> str:
    more = len(names) - MAX_KEYS_NAMED
    return ", ".join(names[:MAX_KEYS_NAMED]) + (f" and {more} more" if more > 0 else "")
