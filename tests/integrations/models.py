"""Models of other libraries, small enough to learn scikit-learn's digits on two cores in seconds."""

from collections.abc import Callable
from typing import NamedTuple

import timm
import torch
import torchvision
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import interpolate
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

pixels, digits = load_digits(return_X_y=True)
order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
PIXELS, LABELS = torch.tensor(pixels)[order], torch.tensor(digits)[order]
NUM_TRAIN = 1400


def images(size, channels):
    small = (PIXELS.float().reshape(-1, 1, 8, 8) / 16 - 0.3) / 0.37
    return interpolate(small, size=size).expand(-1, channels, -1, -1)


class Logits(nn.Module):
    """A model of transformers as one that takes inputs and gives logits."""

    def __init__(self, model, name):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, inputs):
        return self.model(**{self.name: inputs}).logits


def as_it_is(model):
    return model


def first_layers_of_vit_b_16():
    """The model with three of its twelve layers and images of a single patch, to save time."""
    model = torchvision.models.vit_b_16(num_classes=10, image_size=16)
    model.encoder.layers = model.encoder.layers[:3]
    return model


def vit_of_transformers():
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **sizes))


def bert_of_transformers():
    """Reads a digit as a text of 64 words, one of 17 for each pixel."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(
        BertConfig(vocab_size=17, max_position_embeddings=64, num_labels=10, **sizes, **without_dropout)
    )


class Case(NamedTuple):
    """A model, its inputs, and how it is trained."""

    build: Callable[[], nn.Module]
    inputs: torch.Tensor
    layer: str
    learning_rate: float
    epochs: int
    num_train: int = 700
    as_function: Callable[[nn.Module], nn.Module] = as_it_is


CASES = {
    "torchvision resnet18": Case(lambda: torchvision.models.resnet18(num_classes=10), images(16, 3), "fc", 2e-3, 5),
    "torchvision resnet50": Case(lambda: torchvision.models.resnet50(num_classes=10), images(16, 3), "fc", 2e-3, 5, 1000),
    "torchvision vit_b_16": Case(first_layers_of_vit_b_16, images(16, 3), "heads.head", 3e-4, 3),
    "timm resnet18": Case(lambda: timm.create_model("resnet18", num_classes=10, in_chans=1), images(16, 1), "fc", 2e-3, 5),
    "timm vit_tiny": Case(
        lambda: timm.create_model("vit_tiny_patch16_224", num_classes=10, in_chans=1, img_size=8, patch_size=4, depth=4),
        images(8, 1),
        "head",
        1e-3,
        10,
    ),
    "timm convnext": Case(
        lambda: timm.create_model("convnext_atto", num_classes=10, in_chans=1), images(32, 1), "head.fc", 2e-3, 4
    ),
    "transformers ViT": Case(
        vit_of_transformers, images(8, 1), "classifier", 3e-3, 8, NUM_TRAIN, lambda model: Logits(model, "pixel_values")
    ),
    "transformers BERT": Case(
        bert_of_transformers, PIXELS.long(), "classifier", 3e-3, 14, NUM_TRAIN, lambda model: Logits(model, "input_ids")
    ),
}
