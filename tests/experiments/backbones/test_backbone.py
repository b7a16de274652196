"""Laws that hold for every network."""

import copy
import math

import pytest
import torch
from torch import nn

from guided_collapse import AGD, Classifier, NearestETFHead
from guided_collapse.experiments.backbones.backbone import initialize, scaled
from tests.experiments.backbones.cases import OPTIONS, build, images

CASES = pytest.mark.parametrize("case", OPTIONS)


@CASES
@pytest.mark.parametrize("size", [32, 33, 96])
def test_features_have_the_width_that_the_backbone_says(case, size):
    model = build(case).eval()
    with torch.no_grad():
        features = model(images(2, size))
    assert features.shape == (2, model.feature_dim)
    assert features.isfinite().all()
    assert features.std() > 0


@pytest.mark.parametrize("case", ["resnet18", "resnet50", "vgg13"])
def test_images_of_imagenet_and_oblong_ones(case):
    model = build(case).eval()
    with torch.no_grad():
        assert model(images(1, 224)).shape == (1, model.feature_dim)
        assert model(torch.randn(2, 3, 32, 50)).shape == (2, model.feature_dim)
        assert model(images(0)).shape == (0, model.feature_dim)


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
def test_the_gradient_against_a_finite_difference(case):
    model, inputs = build(case).double().eval(), images(2).double()
    direction = [torch.randn_like(parameter) for parameter in model.parameters()]
    gradients = torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))
    slope = sum((gradient * along).sum() for gradient, along in zip(gradients, direction, strict=True))
    values = []
    for step in (1e-7, -1e-7):
        moved = copy.deepcopy(model)
        for parameter, along in zip(moved.parameters(), direction, strict=True):
            parameter.data.add_(along, alpha=step)
        values.append(moved(inputs).square().sum())
    torch.testing.assert_close((values[0] - values[1]) / 2e-7, slope, rtol=1e-4, atol=1e-8)


@CASES
def test_in_eval_mode_features_do_not_depend_on_the_batch(case):
    model = build(case)
    model(images(6))  # gives BatchNorm statistics of its own
    model.eval()
    with torch.no_grad():
        together = model(images(6))
        apart = torch.cat([model(part) for part in images(6).split([1, 3, 2])])
    torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-5)


@CASES
def test_only_networks_with_batch_norm_look_at_the_batch_in_training(case):
    model = build(case)
    with torch.no_grad():
        together = model(images(6))
        apart = torch.cat([model(part) for part in images(6).split(3)])
    alike = torch.allclose(apart, together, rtol=1e-4, atol=1e-5)
    assert alike == (case == "small without BatchNorm")


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
def test_channels_last_gives_the_same_features(case):
    model = build(case).eval()
    twin = copy.deepcopy(model).to(memory_format=torch.channels_last)
    torch.testing.assert_close(twin(images().to(memory_format=torch.channels_last)), model(images()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("affine", [False, True])
@CASES
def test_bfloat16_autocast_trains(case, affine):
    model = build(case, affine=affine)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = model(images(8))
    features.float().square().sum().backward()
    assert features.dtype == torch.bfloat16
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(value.dtype != torch.bfloat16 for value in model.state_dict().values())


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


@pytest.mark.parametrize(("width", "expected"), [(1.0, 64), (0.25, 16), (2, 128), (0.3, 19), (0.29, 19), (0.001, 1)])
def test_channels_are_rounded_to_the_nearest_and_at_least_one(width, expected):
    assert scaled(64, width) == expected


@pytest.mark.parametrize("width", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_width_must_be_positive(width):
    with pytest.raises(ValueError, match=f"width must be a positive, finite number; got {width}"):
        scaled(64, width)


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
