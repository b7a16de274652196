"""The table of networks, and laws that hold for every one."""

import copy
import math

import pytest
import torch
from torch import nn

from guided_collapse import AGD, Classifier, NearestETFHead
from guided_collapse.experiments.backbones import BACKBONES, build_backbone
from guided_collapse.experiments.backbones.backbone import ImageBackbone, initialize, scaled
from guided_collapse.experiments.backbones.plain import VGG13, SmallConvNet
from guided_collapse.experiments.backbones.resnet import ResNet
from tests.experiments.backbones.cases import OPTIONS, build, images

CASES = pytest.mark.parametrize("case", OPTIONS)


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


@CASES
@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (2, 3, 33, 50), (1, 3, 224, 224), (0, 3, 32, 32)])
def test_features_have_the_width_that_the_backbone_says(case, shape):
    model = build(case).eval()
    with torch.no_grad():
        features = model(torch.randn(shape))
    assert features.shape == (shape[0], model.feature_dim)
    assert features.isfinite().all()


@CASES
def test_agd_trains_every_parameter_of_the_default_form(case):
    model = Classifier(build(case), NearestETFHead(build(case).feature_dim, 4))
    assert all(parameter.ndim >= 2 for parameter in model.parameters())
    optimizer = AGD(model.parameters(), gain=1.0)
    optimizer.init_weights()
    before = copy.deepcopy(model.state_dict())
    labels = torch.arange(8) % 4
    nn.functional.cross_entropy(model(images(8), labels), labels).backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        assert not torch.equal(parameter, before[name]), name


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
    for wrong in (0, -width, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"width must be a positive, finite number; got {wrong}"):
            scaled(64, wrong)


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


@CASES
def test_save_and_load(case):
    model = build(case)
    model(images())
    other = build(case, generator=torch.Generator().manual_seed(5))
    assert not torch.equal(other.eval()(images()), model.eval()(images()))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images()), model(images()))
    assert torch.equal(copy.deepcopy(model)(images()), model(images()))


@CASES
def test_bfloat16_autocast_is_close_in_eval_mode(case):
    # Not so in training mode on noise: BatchNorm over few samples makes much of the rounding of the images alone.
    model = build(case).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = model(images(8))
    exact = model(images(8))
    assert (features.float() - exact).norm() < 0.03 * exact.norm()


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["resnet18", "vgg13", "small"])
def test_compiled_training_agrees_with_eager(case):
    eager, twin = build(case).double(), build(case).double()
    torch._dynamo.reset()
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for model in (eager, compiled):
        model(images(4).double()).square().sum().backward()
    for expected, parameter in zip(eager.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[key], value)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["resnet18", "resnet50", "vgg13", "small"])
def test_export_with_batches_of_any_size(case):
    model = build(case).eval()
    exported = torch.export.export(model, (images(3),), dynamic_shapes=[{0: torch.export.Dim("batch")}]).module()
    torch.testing.assert_close(exported(images(5)), model(images(5)))


@CASES
def test_images_that_do_not_fit_are_refused(case):
    model = build(case)
    with pytest.raises(ValueError, match=r"with in_channels=3; got \(2, 1, 32, 32\)\. .*their number of channels"):
        model(images(2, channels=1))
    with pytest.raises(ValueError, match=r"\(num_samples, in_channels, height, width\).*got \(3, 32, 32\)"):
        model(images()[0])
    with pytest.raises(ValueError, match=r"floating-point tensor; got torch\.uint8.*images\.float"):
        model(images().to(torch.uint8))
    with pytest.raises(ValueError, match="floating-point tensor; got list"):
        model([images()])


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


@CASES
@pytest.mark.parametrize("in_channels", [0, -1, 2.5])
def test_channels_must_be_positive(case, in_channels):
    with pytest.raises(ValueError, match=f"in_channels must be an integer, at least 1; got {in_channels}"):
        build(case, in_channels=in_channels)


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
