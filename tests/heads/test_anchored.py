"""Properties specific to anchored heads, necks and embeddings; cases.py includes anchored heads in the laws of all heads."""

import copy
import math

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from guided_collapse import (
    AnchoredHead,
    Classifier,
    CosineHead,
    NearestETFHead,
    collapse_of,
    compatibility_loss,
    embeddings_of,
    replace_classifier,
    simplex_etf,
)
from guided_collapse.geometry import tightness_defect
from tests.heads.cases import assert_same_state, batches, train
from tests.processes import results_of_two_processes

INPUTS = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 6
LOADER = [(INPUTS[:25], LABELS[:25]), (INPUTS[25:], LABELS[25:])]
ANCHORS = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
CENTER = torch.full((10,), 0.2)


def old_model(num_classes=4):
    """A third-party model that knows four of the six classes."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, num_classes))


def unit(rows):
    return rows / rows.norm(dim=-1, keepdim=True)


def test_rows_are_the_directions_of_the_class_means_of_unit_norm_features():
    old = old_model().train()
    head = AnchoredHead.from_model(old, LOADER)
    features = unit(old[:2](INPUTS)).double()
    means = torch.stack([features[label == LABELS].mean(dim=0) for label in range(6)])
    torch.testing.assert_close(head.weight.double(), unit(means), rtol=0, atol=1e-6)
    assert old.training
    assert old[2].training
    centered = AnchoredHead.from_model(old, LOADER, num_classes=6, center=CENTER)
    torch.testing.assert_close(centered.weight.double(), unit(means - CENTER), rtol=0, atol=1e-6)


def test_a_model_with_a_head_is_measured_by_its_embedding():
    old = Classifier(nn.Linear(8, 7), AnchoredHead(ANCHORS, center=CENTER), neck=7)
    embeddings = old.embed(INPUTS).detach()
    means = torch.stack([embeddings[label == LABELS].mean(dim=0) for label in range(6)])
    torch.testing.assert_close(AnchoredHead.from_model(old, LOADER).weight, unit(means))


def test_an_embedding_model_is_measured_by_its_outputs():
    for backbone in (nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.ReLU())):  # with one linear layer, and with two
        model = Classifier(backbone, AnchoredHead(ANCHORS), neck=8).eval()
        exported, expected = model.export(embedding=True), embeddings_of(model, LOADER).embeddings
        torch.testing.assert_close(embeddings_of(exported, LOADER).embeddings, expected)
    bare = nn.Sequential(nn.Flatten(), nn.Tanh())
    torch.testing.assert_close(embeddings_of(bare, LOADER).embeddings, unit(torch.tanh(INPUTS)))
    with pytest.raises(ValueError, match="this one returns unit vectors"):
        collapse_of(Classifier(nn.Tanh(), AnchoredHead(ANCHORS), neck=8).export(embedding=True), LOADER)


def test_embeddings_are_finite():
    with pytest.raises(ValueError, match="embeddings must be finite; got 10 NaN"):
        embeddings_of(old_model(), [(INPUTS[:2] * torch.tensor([[1.0], [math.nan]]), LABELS[:2])])


@pytest.mark.parametrize(("num_outputs", "ending"), [(4, nn.Softmax(dim=1)), (1, nn.Sigmoid())])
def test_certain_probabilities_are_not_embeddings(num_outputs, ending):
    model = nn.Sequential(nn.Tanh(), nn.Linear(8, num_outputs), ending).eval()
    nn.init.zeros_(model[1].weight)
    model[1].bias.data = 1e3 * torch.arange(1.0, num_outputs + 1)
    assert set(model(INPUTS).flatten().tolist()) <= {0.0, 1.0}
    torch.testing.assert_close(embeddings_of(model, LOADER).embeddings, unit(torch.tanh(INPUTS)))


def test_the_same_network_embeds_bit_for_bit_as_before():
    old = old_model().eval()
    gallery, labels = embeddings_of(old, LOADER)
    assert torch.equal(labels, LABELS)
    for options in ({}, {"frame": 0.5}, {"scale": 12.0}):
        new = Classifier(old[:3], AnchoredHead.from_model(old, LOADER, **options))
        assert torch.equal(embeddings_of(new, LOADER).embeddings, gallery)
        assert torch.equal(torch.cat([new.embed(inputs) for inputs, _ in LOADER]), gallery)


def test_logits_are_scaled_cosines_of_the_embedding_in_either_mode():
    for center in (None, CENTER):
        head = AnchoredHead(ANCHORS, scale=12.0, center=center)
        features = torch.randn(5, 3, 10)
        points = unit(features) if center is None else unit(unit(features) - center)
        torch.testing.assert_close(head.embed(features), points)
        torch.testing.assert_close(head(features), 12.0 * points @ head.weight.T)
        assert torch.equal(head.eval()(features), head.train()(features))
        assert list(head.parameters()) == []


@pytest.mark.parametrize("sizes", [(6, 10), (12, 4)], ids=["simplex", "tight"])
def test_rows_go_from_the_anchors_to_their_nearest_frame(sizes):
    anchors = torch.randn(*sizes, generator=torch.Generator().manual_seed(4))
    start, half, end = (AnchoredHead(anchors, frame=frame).weight for frame in (0.0, 0.5, 1.0))
    torch.testing.assert_close(start, unit(anchors))
    torch.testing.assert_close(half, unit(start + end))
    assert tightness_defect(end.double()) < 1e-4
    if sizes == (6, 10):
        left, _, right = torch.linalg.svd((start - start.mean(dim=0)).double(), full_matrices=False)
        torch.testing.assert_close(end.double(), math.sqrt(6 / 5) * left[:, :5] @ right[:5], rtol=0, atol=1e-6)
    assert (end * start).sum() > 0.5 * len(anchors)
    for weight in (start, half, end):
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(anchors)))


def test_a_frame_is_its_own_nearest_frame():
    frame = simplex_etf(5)
    torch.testing.assert_close(AnchoredHead(3 * frame, frame=1.0).weight, frame, rtol=0, atol=1e-6)


@pytest.mark.parametrize("center", [None, CENTER])
def test_new_classes_leave_the_rows_as_they_are(center):
    head = AnchoredHead(ANCHORS, scale=12.0, frame=0.3, center=center).eval()
    means = torch.randn(2, 10)
    wider = head.extended(means)
    assert (wider.num_classes, wider.scale, wider.training) == (8, 12.0, False)
    assert torch.equal(wider.weight[:6], head.weight)
    torch.testing.assert_close(wider.weight[6:], unit(means if center is None else means - center))
    features = torch.randn(4, 10)
    assert torch.equal(wider.embed(features), head.embed(features))
    assert head.extended(means, scale=5.0).scale == 5.0
    assert head.double().extended(means).rows.dtype == torch.float64
    # Neither shares memory with the other.
    wider.rows.zero_()
    assert head.weight.abs().max() > 0


BAD_ARGUMENTS = {
    "NaN": (ANCHORS * math.nan, {}, ValueError, "anchors must be finite; got 60 NaN"),
    "zero rows": (ANCHORS * (torch.arange(6) != 2)[:, None], {}, ValueError, "direction for every class; got zero for class 2"),
    "integers": (ANCHORS.long(), {}, TypeError, "anchors must be a floating-point tensor; got torch.int64"),
    "a list": (ANCHORS.tolist(), {}, TypeError, "anchors must be a floating-point tensor; got list"),
    "a vector": (ANCHORS[0], {}, ValueError, r"anchors must be a matrix .* got \(10,\)"),
    "one class": (ANCHORS[:1], {}, ValueError, "num_classes must be at least 2"),
    "frame": (ANCHORS, {"frame": 1.5}, ValueError, "frame must be between 0 .* got 1.5"),
    "frame NaN": (ANCHORS, {"frame": math.nan}, ValueError, "frame must be between 0"),
    "scale": (ANCHORS, {"scale": 0.0}, ValueError, "scale must be positive"),
    "center too long": (
        ANCHORS,
        {"center": torch.zeros(11)},
        ValueError,
        r"center must be \(feature_dim,\) = \(10,\); got \(11,\)",
    ),
    "center NaN": (ANCHORS, {"center": CENTER * math.nan}, ValueError, "center must be finite"),
    "center a number": (ANCHORS, {"center": 0.5}, TypeError, "center must be a floating-point tensor; got float"),
    "an anchor at the center": (ANCHORS, {"center": ANCHORS[3]}, ValueError, "anchors minus the center .* zero for class 3"),
}


@pytest.mark.parametrize(("anchors", "options", "error", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments_are_refused(anchors, options, error, message):
    with pytest.raises(error, match=message):
        AnchoredHead(anchors, **options)


def test_what_does_not_fit_is_refused_where_it_shows():
    head = AnchoredHead(ANCHORS)
    with pytest.raises(ValueError, match="means must be a matrix with feature_dim=10 columns"):
        head.extended(torch.randn(2, 11))
    with pytest.raises(ValueError, match="num_classes - 1 = 5; got values from 0 to 6"):
        head(torch.randn(7, 10), torch.arange(7))
    for call in (Classifier(nn.Linear(8, 16), head), Classifier(nn.Linear(8, 16), head).embed):
        with pytest.raises(ValueError, match=r"feature_dim=10; got \(60, 16\)"):
            call(INPUTS)
    with pytest.raises(ValueError, match="features must be finite"):
        head.embed(torch.full((2, 10), math.nan))


def without_labels(loader):
    return [inputs for inputs, _ in loader]


BAD_LOADERS = {
    "without labels": (without_labels(LOADER), {}, TypeError, r"must yield batches \(inputs, labels\); got Tensor"),
    "of a data set without labels": ([[INPUTS]], {}, TypeError, r"must yield batches \(inputs, labels\); got list of 1"),
    "of dictionaries without labels": ([{"input": INPUTS}], {}, ValueError, "labels under one of labels, label; got input"),
    "of other targets": ([(INPUTS, INPUTS)], {}, TypeError, "labels must be class indices"),
    "with too few labels": ([(INPUTS, LABELS[:7])], {}, ValueError, r"labels must be \(num_samples,\) = \(60,\)"),
    "with negative labels": ([(INPUTS, LABELS - 1)], {}, ValueError, "got values from -1 to 4"),
    "with more classes": (LOADER, {"num_classes": 4}, ValueError, r"num_classes - 1 = 3; got values from 0 to 5"),
    "with fewer classes": (LOADER, {"num_classes": 9}, ValueError, "got none for 3 of 9 classes: 6, 7, 8. Add samples"),
    "with gaps": ([(INPUTS, LABELS * 10**9)], {}, ValueError, r"none for 4999999995 of 5000000001 classes: 1, 2, .*10, \.\.\."),
    "without batches": ([], {}, ValueError, "at least one batch; got none"),
    "with NaN": ([(INPUTS * math.nan, LABELS)], {}, ValueError, "features must be finite"),
}


@pytest.mark.parametrize(("loader", "options", "error", "message"), BAD_LOADERS.values(), ids=BAD_LOADERS)
def test_bad_loaders_are_refused_and_the_model_stays_as_it_was(loader, options, error, message):
    old = old_model()
    before = copy.deepcopy(old)
    with pytest.raises(error, match=message):
        AnchoredHead.from_model(old, loader, **options)
    assert_same_state(old, before)
    assert all(module.training and len(module._forward_hooks) == 0 for module in old.modules())


def test_a_new_backbone_learns_to_query_the_old_gallery():
    (gallery, labels), (queries, query_labels) = batches(2, batch_size=200)
    old = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
    embedded = embeddings_of(old, [(gallery, labels)]).embeddings
    new = Classifier(
        nn.Sequential(nn.Linear(8, 24), nn.ReLU()), AnchoredHead.from_model(old, [(gallery, labels)], scale=12.0), neck=24
    )

    def accuracy():
        return (labels[(new.embed(queries) @ embedded.T).argmax(dim=1)] == query_labels).float().mean()

    assert accuracy() < 0.6
    train(new, batches(150))
    assert accuracy() > 0.9


def test_a_classifier_takes_a_backbone_then_a_head():
    with pytest.raises(TypeError, match=r"backbone, then a head.*got a Linear and the class CosineHead"):
        Classifier(nn.Linear(8, 4), CosineHead)
    with pytest.raises(TypeError, match=r"backbone, then a head.*got a CosineHead and a Linear"):
        Classifier(CosineHead(4, 3), nn.Linear(8, 4))


def test_a_neck_maps_the_backbone_to_the_head():
    for head in (AnchoredHead(ANCHORS), CosineHead(10, 6), nn.Linear(10, 6)):
        model = Classifier(nn.Linear(8, 32), head, neck=32)
        features = model.neck(model.backbone(INPUTS))
        assert torch.equal(model.features(INPUTS), features)
        torch.testing.assert_close(model.embed(INPUTS), unit(features))
        torch.testing.assert_close(model.eval()(INPUTS), head(features))
        torch.testing.assert_close(model.export()(INPUTS), head(features))
        assert collapse_of(model, LOADER).feature_dim == 10
        assert "neck.weight" in model.state_dict()
    assert "neck.weight" not in Classifier(nn.Linear(8, 10), AnchoredHead(ANCHORS)).state_dict()
    assert Classifier(nn.Linear(8, 32).double(), AnchoredHead(ANCHORS), neck=32).neck.weight.dtype == torch.float64
    assert Classifier(nn.Identity(), AnchoredHead(ANCHORS), neck=8)(INPUTS).shape == (60, 6)
    for wrong in (0, -3):
        with pytest.raises(ValueError, match="neck must be at least 1; got neck="):
            Classifier(nn.Identity(), AnchoredHead(ANCHORS), neck=wrong)
    with pytest.raises(TypeError, match="neck must be an integer; got True"):
        Classifier(nn.Identity(), AnchoredHead(ANCHORS), neck=True)
    with pytest.raises(TypeError, match=r"head must have in_features.* got a Sequential"):
        Classifier(nn.Identity(), nn.Sequential(nn.Linear(10, 6)), neck=8)


def test_the_embedding_is_the_same_in_either_mode_and_changes_no_state():
    model = Classifier(nn.Linear(8, 10), NearestETFHead(10, 6))
    model(INPUTS, LABELS)
    before = copy.deepcopy(model)
    embedded = model.train().embed(INPUTS)
    torch.testing.assert_close(embedded, unit(model.backbone(INPUTS)))
    assert torch.equal(model.eval().embed(INPUTS), embedded)
    assert_same_state(model, before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.embed(INPUTS).dtype == torch.float32
    torch.testing.assert_close(model.bfloat16().embed(INPUTS.bfloat16()), embedded, rtol=0, atol=0.02)


def test_a_head_in_the_place_of_a_last_layer():
    model, head = old_model().eval(), AnchoredHead(ANCHORS)
    model.num_classes = 4
    assert replace_classifier(model, head) is head
    assert model.num_classes == 6
    assert model[3] is head
    assert not head.training
    other = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 3))
    with pytest.raises(ValueError, match=r"feature_dim=12; got feature_dim=10.*neck=12"):
        replace_classifier(other, head, layer="1")
    with pytest.raises(ValueError, match="that of the head, 6, or None; got 3"):
        replace_classifier(old_model(), head, num_classes=3)
    with pytest.raises(TypeError, match=r"options require a head class.*scale"):
        replace_classifier(old_model(), head, scale=3.0)
    assert isinstance(other[1], nn.Linear)


EXPORTED = {
    "anchored": lambda: AnchoredHead(ANCHORS),
    "centered": lambda: AnchoredHead(ANCHORS, center=CENTER),
    "nearest": lambda: NearestETFHead(10, 6),
    "linear": lambda: nn.Linear(10, 6),
}


def assert_same_embedding_by_onnxruntime(file, model):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: INPUTS.numpy()})
    np.testing.assert_allclose(found, model.embed(INPUTS).detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("head", EXPORTED.values(), ids=EXPORTED)
def test_the_embedding_is_exported_as_stock_layers_and_through_onnx(head, tmp_path):
    model = Classifier(nn.Linear(8, 16), head(), neck=16).eval()
    exported = model.export(embedding=True)
    torch.testing.assert_close(exported(INPUTS), model.embed(INPUTS), rtol=0, atol=1e-6)
    assert {type(part).__module__.split(".")[0] for part in exported.modules()} == {"torch"}
    free = {"input_names": ["inputs"], "dynamic_axes": {"inputs": {0: "batch"}}}
    plain = model.export(embedding=True, rms_norm=False)
    torch.onnx.export(plain, (torch.randn(4, 8),), tmp_path / "embed.onnx", dynamo=False, **free)
    assert_same_embedding_by_onnxruntime(tmp_path / "embed.onnx", model)
    assert model.double().export(embedding=True)(INPUTS.double()).dtype == torch.float64


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_embedding_goes_through_the_newer_onnx_exporter(tmp_path):
    model = Classifier(nn.Linear(8, 16), AnchoredHead(ANCHORS, center=CENTER), neck=16).eval()
    free = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    torch.onnx.export(
        model.export(embedding=True), (torch.randn(4, 8),), tmp_path / "embed.onnx", dynamo=True, verbose=False, **free
    )
    assert_same_embedding_by_onnxruntime(tmp_path / "embed.onnx", model)


def test_compatibility_loss_is_one_minus_the_mean_cosine():
    new, old = (torch.randn(7, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    loss = compatibility_loss(new, 3 * old)
    expected = 1 - nn.functional.cosine_similarity(new, old, dim=1).mean()
    torch.testing.assert_close(loss, expected)
    assert torch.autograd.gradcheck(lambda embeddings: compatibility_loss(embeddings, old), new)
    loss.backward()
    assert old.grad is None
    agreeing = compatibility_loss(new, new.detach())
    assert 0 <= agreeing < 1e-30
    assert compatibility_loss(new.detach(), -new).item() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("embeddings", "old_embeddings", "error", "message"),
    [
        (torch.randn(3, 4), torch.randn(3, 5), ValueError, r"equal shapes.*got \(3, 4\) and \(3, 5\).* a neck"),
        (torch.randn(0, 4), torch.randn(0, 4), ValueError, "at least one sample"),
        (torch.randn(3, 4), torch.randn(4), ValueError, "old_embeddings must be a matrix"),
        (torch.randn(3, 4), torch.full((3, 4), math.nan), ValueError, "old_embeddings must be finite"),
        (torch.randn(3, 4), [[1.0]], TypeError, "old_embeddings must be a floating-point tensor; got list"),
    ],
)
def test_compatibility_loss_refuses_what_does_not_fit(embeddings, old_embeddings, error, message):
    with pytest.raises(error, match=message):
        compatibility_loss(embeddings, old_embeddings)


WORKER = """
import sys
import torch
import torch.distributed as dist
from guided_collapse import AnchoredHead, embeddings_of
from tests.heads.test_anchored import LOADER, old_model

rank, rendezvous, results = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
found = embeddings_of(old_model(), LOADER[rank : rank + 1])
rows = AnchoredHead.from_model(old_model(), LOADER[rank : rank + 1]).rows
torch.save({"rows": rows, **found._asdict()}, f"{results}/rank-{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_measure_as_one(tmp_path):
    expected, embedded = AnchoredHead.from_model(old_model(), LOADER), embeddings_of(old_model(), LOADER)
    for found in results_of_two_processes(WORKER, tmp_path):
        torch.testing.assert_close(found["rows"], expected.rows, rtol=0, atol=1e-7)
        assert torch.equal(found["embeddings"], embedded.embeddings)
        assert torch.equal(found["labels"], embedded.labels)
