"""Models of torchvision, timm and transformers with a head in place of their last layer, trained on digits."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from guided_collapse import Classifier, NearestETFHead, StratifiedBatchSampler, collapse_of, replace_classifier
from tests.heads.cases import step_after, step_before
from tests.integrations.models import CASES, LABELS, NUM_TRAIN

pytestmark = pytest.mark.integrations

every_model = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
both_ways = pytest.mark.parametrize(("labeled", "lagged"), [(step_before, False), (step_after, True)], ids=["labels", "update"])


def built(case):
    torch.manual_seed(0)
    return case.build()


@every_model
@both_ways
def test_it_trains_as_a_classifier_with_the_same_backbone(case, labeled, lagged):
    model, body = built(case), built(case)
    kind, names = type(model), {name for name in model.state_dict() if not name.startswith(f"{case.layer}.")}
    head = replace_classifier(model, lagged=lagged)
    assert model.get_submodule(case.layer) is head
    body.set_submodule(case.layer, nn.Identity())
    expected = Classifier(case.as_function(body), NearestETFHead(head.feature_dim, 10, lagged=lagged))
    function = case.as_function(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (function, expected)]
    inputs, labels = case.inputs[:20], LABELS[:20]
    for step in range(2):
        torch.manual_seed(step)
        loss = labeled(head)(function.train(), inputs, labels)
        torch.manual_seed(step)
        expected_loss = cross_entropy(expected.train()(inputs, labels), labels)
        expected_loss.backward()
        torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        torch.testing.assert_close(function.eval()(inputs), expected.eval()(inputs), rtol=0, atol=1e-5)
    assert type(model) is kind
    assert names <= set(model.state_dict())


@every_model
@both_ways
def test_it_learns_digits_and_is_saved_loaded_and_exported(case, labeled, lagged, tmp_path):
    model = built(case)
    head, function = replace_classifier(model, lagged=lagged), case.as_function(model)
    train(function, labeled(head), case)
    function.eval()
    inputs, labels = case.inputs[NUM_TRAIN:], LABELS[NUM_TRAIN:]
    with torch.no_grad():
        logits = function(inputs)
    accuracy = (logits.argmax(dim=1) == labels).float().mean().item()
    assert accuracy > 0.9

    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = case.build().eval()
    replace_classifier(loaded, lagged=lagged)
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(case.as_function(loaded)(inputs), logits, rtol=0, atol=1e-5)

    shipped = copy.deepcopy(model)
    shipped.set_submodule(case.layer, head.export())
    batch = torch.export.Dim("batch", max=1000)
    program = torch.export.export(case.as_function(shipped).eval(), (inputs[:2],), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(inputs), logits, rtol=0, atol=1e-3)
    assert collapse_of(function, [(inputs, labels)]).accuracy == pytest.approx(accuracy)


def train(function, take_step, case):
    sampler = StratifiedBatchSampler(LABELS[: case.num_train], batch_size=50)
    loader = DataLoader(TensorDataset(case.inputs[: case.num_train], LABELS[: case.num_train]), batch_sampler=sampler)
    optimizer = torch.optim.AdamW(function.parameters(), lr=case.learning_rate)
    steps = case.epochs * len(sampler)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 10, 1 - step / steps))
    function.train()
    for epoch in range(case.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            take_step(function, inputs, labels)
            optimizer.step()
            falling.step()
