import pytest
import torch

from guided_collapse.experiments.backbones.backbone import ImageBackbone
from guided_collapse.experiments.backbones import BACKBONES, build_backbone
from guided_collapse.experiments.backbones.resnet import ResNet
from guided_collapse.experiments.backbones.plain import SmallConvNet
from guided_collapse.experiments.backbones.plain import VGG13


@pytest.mark.parametrize(
    ("name", "feature_dim"), [("resnet18", 512), ("resnet34", 512), ("resnet50", 2048), ("vgg13", 512), ("small", 64)]
)
def test_every_name_builds_its_network_with_its_own_defaults(name, feature_dim):
    with torch.device("meta"):
        model = build_backbone(name)
        direct = {"vgg13": VGG13, "small": SmallConvNet}[name]() if name in ("vgg13", "small") else ResNet(int(name[-2:]))
    assert isinstance(model, ImageBackbone)
    assert model.feature_dim == feature_dim
    assert str(model) == str(direct)
    assert model.smallest_size == direct.smallest_size


def test_there_are_no_other_names():
    assert list(BACKBONES) == ["resnet18", "resnet34", "resnet50", "vgg13", "small"]
    with pytest.raises(ValueError, match="must be one of resnet18, resnet34, resnet50, vgg13, small; got 'resnet'"):
        build_backbone("resnet")


def test_options_reach_the_network():
    assert str(build_backbone("resnet18", stem="cifar", width=0.05, affine=True, in_channels=1)) == str(
        ResNet(18, stem="cifar", width=0.05, affine=True, in_channels=1)
    )
    assert str(build_backbone("vgg13", width=0.05, affine=True, in_channels=1)) == str(
        VGG13(width=0.05, affine=True, in_channels=1)
    )
    built = build_backbone("small", feature_dim=9, affine=True, in_channels=2, batch_norm=False, width=0.5)
    assert str(built) == str(SmallConvNet(9, affine=True, in_channels=2, batch_norm=False, width=0.5))
    assert built.linear.in_features == 32
    assert not any("BatchNorm" in str(layer) for layer in built.modules())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "vgg13",
            {"stem": "cifar"},
            "vgg13 has no option stem; got stem='cifar'. Its options are affine, in_channels, width",
        ),
        ("small", {"stem": "cifar"}, "small has no option stem"),
        ("small", {"width": -1.0}, "width must be a positive, finite number; got -1.0"),
        ("vgg13", {"feature_dim": 512}, "vgg13 has no option feature_dim"),
        ("resnet50", {"batch_norm": False}, "resnet50 has no option batch_norm; got batch_norm=False"),
        ("resnet18", {"stem": "mnist"}, "stem must be one of 'imagenet', 'cifar'; got 'mnist'"),
        ("vgg13", {"width": 0.0}, "width must be a positive, finite number; got 0.0"),
    ],
)
def test_options_that_a_network_does_not_have_are_refused_and_bad_values_too(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_backbone(name, **options)
