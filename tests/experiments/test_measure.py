"""A run's measurements agree with `collapse_of`, and add the loss and accuracy of the head's own logits."""

from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from torch.nn import functional

from guided_collapse import collapse_of, measure_collapse
from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.measure import measure, parts_by_size
from guided_collapse.experiments.tasks import build_model, build_task
from guided_collapse.metrics.declared import recorded
from tests.experiments.runs import DIGITS, FREE, UNANCHORED

CPU = torch.device("cpu")


def measured(configuration):
    """The model, its batches and their measurement."""
    task, share = build_task(configuration.resolved()), ProcessShare(0, 1, CPU)
    model = build_model(configuration.resolved(), task, CPU).train()
    inputs, labels = next(iter(task.training_batches(1, share)))
    model(inputs, labels)
    model.backbone.eval()
    train, test = (list(task.clean_batches(share, test=test)) for test in (False, True))
    return model, train, test, measure(model, task, share, Fabric(accelerator="cpu", devices=1))


@pytest.mark.parametrize("head", ["linear", "cosine", "nearest-etf"])
@pytest.mark.parametrize("kept", [True, False])
def test_it_is_what_collapse_of_gives(head, kept, monkeypatch):
    if not kept:
        monkeypatch.setattr("guided_collapse.experiments.measure.KEPT_BYTES", 0)
    model, train, test, found = measured(replace(DIGITS, head=head))
    expected = collapse_of(model, train, test_loader=test, keep_features=kept).to_dict()
    for split, values in (("train", found.train), ("test", found.test)):
        names = recorded(split)
        assert set(values) - {"nc1_normalized"} == {"loss", "top1", *names}
        assert {name: values[name] for name in names} == {name: expected[key] for name, key in names.items()}
    assert found.margins["train"].tolist() == torch.tensor(expected["cosine_margins"]).float().tolist()
    assert (found.train["numerical_rank"] is None) == (not kept)


@pytest.mark.parametrize("head", UNANCHORED)
def test_nc1_of_normalized_features_is_measured_alike_for_every_head(head):
    model, train, _, found = measured(replace(DIGITS, head=head))
    model.eval()
    with torch.no_grad():
        features = torch.cat([model.backbone(inputs) for inputs, _ in train])
    labels = torch.cat([labels for _, labels in train])
    expected = measure_collapse(functional.normalize(features.double()), labels).nc1
    assert found.train["nc1_normalized"] == pytest.approx(expected, rel=1e-4)
    assert (found.train["nc1"] == pytest.approx(expected, rel=1e-4)) == (head != "linear")


def test_loss_and_accuracy_are_those_of_the_logits():
    model, _, test, found = measured(DIGITS)
    model.eval()
    with torch.no_grad():
        logits, labels = torch.cat([model(inputs) for inputs, _ in test]), torch.cat([labels for _, labels in test])
    assert found.test["loss"] == pytest.approx(functional.cross_entropy(logits.double(), labels).item(), rel=1e-12)
    assert found.test["top1"] == (logits.argmax(dim=1) == labels).double().mean().item()


def test_the_model_comes_back_as_it_was_and_without_test_samples_there_is_no_test_record():
    model, _, _, found = measured(FREE)
    assert found.test is None
    assert (model.training, model.head.training, model.backbone.training) == (True, True, False)
    assert not model.head._forward_pre_hooks


def test_a_long_tail_has_an_accuracy_for_classes_with_many_medium_and_few_samples():
    model, train, test, found = measured(replace(DIGITS, long_tail="exponential", long_tail_ratio=20.0))
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(inputs).argmax(dim=1) == labels for inputs, labels in test]).double()
    labels, seen = (torch.cat([labels for _, labels in batches]) for batches in (test, train))
    # The tail falls with the index of the class: 4, 3 and 3 of ten.
    assert seen.bincount().tolist() == sorted(seen.bincount().tolist(), reverse=True)
    for name, classes in (("many", (0, 1, 2, 3)), ("medium", (4, 5, 6)), ("few", (7, 8, 9))):
        chosen = torch.isin(labels, torch.tensor(classes))
        assert found.test[f"top1_{name}"] == right[chosen].mean().item()
        assert f"top1_{name}" not in found.train


def test_parts_are_thirds_of_the_classes_and_none_if_sizes_are_alike():
    labels = torch.tensor([0, 1, 1, 1, 1, 2, 2, 3, 3, 3])
    parts = {name: classes.tolist() for name, classes in parts_by_size(labels, 4).items()}
    assert parts == {"many": [1, 3], "medium": [2], "few": [0]}
    assert parts_by_size(torch.arange(30) % 10, 10) == {}
    assert parts_by_size(torch.tensor([0, 0, 0, 1]), 2) == {}
