"""The table of networks, and laws that hold for all of them."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from guided_collapse.experiments.backbones import build_backbone
from guided_collapse.experiments.backbones.backbone import initialize, scaled
from guided_collapse.experiments.backbones.plain import VGG13, SmallConvNet
from guided_collapse.experiments.backbones.resnet import ResNet
from tests.experiments.backbones.cases import OPTIONS, build, images

CASES = pytest.mark.parametrize("case", OPTIONS)


COMMON = {"width": 0.05, "affine": True, "in_channels": 1}
SMALL = {"feature_dim": 9, "batch_norm": False}


@pytest.mark.parametrize(
    ("name", "built", "options", "feature_dim"),
    [
        ("resnet18", partial(ResNet, 18), {"stem": "cifar"}, 512),
        ("resnet34", partial(ResNet, 34), {"feature_dim": 7}, 512),
        ("resnet50", partial(ResNet, 50), {"stem": "imagenet"}, 2048),
        ("vgg13", VGG13, {}, 512),
        ("small", SmallConvNet, SMALL, 64),
    ],
)
def test_every_name_builds_its_network_with_its_own_defaults_and_options(name, built, options, feature_dim):
    with torch.device("meta"):
        assert build_backbone(name).feature_dim == feature_dim
        for given in ({}, COMMON | options):
            model, direct = build_backbone(name, **given), built(**given)
            assert str(model) == str(direct)
            assert model.smallest_size == direct.smallest_size


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, "must be one of resnet18, resnet34, resnet50, vgg13, small, timm:MODEL, none; got 'resnet'"),
        ("vgg13", {"stem": "cifar"}, "options of vgg13 must be among affine, in_channels, width; got stem='cifar'"),
        ("vgg13", {"feature_dim": 512}, "got feature_dim=512"),
        ("resnet50", {"batch_norm": False}, "got batch_norm=False"),
        ("resnet18", {"stem": "mnist"}, "stem must be one of 'imagenet', 'cifar'; got 'mnist'"),
    ],
)
def test_wrong_names_and_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_backbone(name, **options)


@CASES
@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (2, 3, 33, 50), (1, 3, 224, 224), (0, 3, 32, 32)])
def test_features_have_the_width_that_the_backbone_says(case, shape):
    model = build(case).eval()
    with torch.no_grad():
        features = model(torch.randn(shape))
    assert features.shape == (shape[0], model.feature_dim)
    assert features.isfinite().all()


@CASES
@pytest.mark.parametrize("affine", [False, True])
def test_the_gradient_reaches_every_parameter_and_the_images(case, affine):
    model, inputs = build(case, affine=affine), images(8).requires_grad_()
    model(inputs).square().sum().backward()
    for name, parameter in [*model.named_parameters(), ("images", inputs)]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # BatchNorm takes away what a bias before it adds.
        if not (name.endswith("bias") and affine):
            assert parameter.grad.abs().max() > 0, name


@CASES
def test_features_depend_on_the_batch_only_with_batch_norm_in_training(case):
    model = build(case)
    for training in (True, False):
        model.train(training)
        with torch.no_grad():
            together = model(images(6))
            apart = torch.cat([model(part) for part in images(6).split(3)])
        alike = torch.allclose(apart, together, rtol=1e-4, atol=1e-5)
        assert alike == (not training or case == "small without BatchNorm")


@pytest.mark.parametrize(("width", "expected"), [(1.0, 64), (0.25, 16), (2, 128), (0.3, 19), (0.29, 19), (0.001, 1)])
def test_channels_are_rounded_to_the_nearest_and_at_least_one(width, expected):
    assert scaled(64, width) == expected


@CASES
@pytest.mark.parametrize("affine", [False, True])
def test_biases_and_affine_normalization_come_with_the_ordinary_form_only(case, affine):
    model = build(case, affine=affine)
    assert any(parameter.ndim == 1 for parameter in model.parameters()) == affine
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.affine == affine
        if isinstance(layer, nn.Conv2d | nn.Linear):
            assert (layer.bias is not None) == (affine and not case.startswith("resnet"))


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["resnet18", "resnet50", "vgg13", "small"])
def test_export_with_batches_of_any_size(case):
    model = build(case).eval()
    exported = torch.export.export(model, (images(3),), dynamic_shapes=[{0: torch.export.Dim("batch")}]).module()
    torch.testing.assert_close(exported(images(5)), model(images(5)))


@CASES
def test_images_that_do_not_fit_are_refused(case):
    model = build(case)
    with pytest.raises(ValueError, match=r"with in_channels=3; got .* of shape \(2, 1, 32, 32\)\. .*for their channels"):
        model(images(2, channels=1))
    with pytest.raises(ValueError, match=r"\(num_samples, in_channels, height, width\).*of shape \(3, 32, 32\)"):
        model(images()[0])
    with pytest.raises(ValueError, match=r"must be floating-point .*got torch\.uint8"):
        model(images().to(torch.uint8))


@pytest.mark.parametrize(
    ("case", "options", "smallest"),
    [("resnet18", {}, 17), ("resnet50", {"stem": "cifar"}, 5), ("vgg13", {}, 32), ("small", {}, 4)],
)
def test_images_that_are_too_small_are_refused_with_the_least_size(case, options, smallest):
    model = build(case, **options).eval()
    assert model(images(2, smallest)).shape == (2, model.feature_dim)
    with pytest.raises(
        ValueError, match=rf"at least {smallest} x {smallest} for this .*; got {smallest - 1} x {smallest + 1}\. Enlarge"
    ):
        model(torch.randn(2, 3, smallest - 1, smallest + 1))


def test_weights_have_the_spread_of_he_and_biases_are_zero():
    model = nn.Sequential(nn.Conv2d(40, 60, 3), nn.Sequential(nn.Linear(200, 100)), nn.BatchNorm2d(3))
    initialize(model, torch.Generator().manual_seed(0))
    for layer, fan_out in ((model[0], 60 * 9), (model[1][0], 100)):
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.03)
        assert layer.weight.mean().item() == pytest.approx(0, abs=0.05 * math.sqrt(2 / fan_out))
        assert layer.bias.count_nonzero() == 0
    assert torch.equal(model[2].weight, torch.ones(3))


@CASES
def test_all_weights_come_from_the_generator_or_else_from_the_global_one(case):
    def weights(generator_seed, global_seed):
        generator = None if generator_seed is None else torch.Generator().manual_seed(generator_seed)
        model = build(case)  # its weights are other ones
        torch.manual_seed(global_seed)
        initialize(model, generator)
        return [parameter.detach() for parameter in model.parameters()]

    assert all(map(torch.equal, weights(1, 2), weights(1, 3)))
    assert not any(map(torch.equal, weights(1, 2), weights(4, 2)))
    assert all(map(torch.equal, weights(None, 2), weights(None, 2)))
    assert not any(map(torch.equal, weights(None, 2), weights(None, 3)))
    built = [build(case, generator=torch.Generator().manual_seed(1)).parameters(), weights(1, 0)]
    assert all(map(torch.equal, *built))
