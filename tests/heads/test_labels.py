"""Labels that do not go through the model: handed over before the forward pass, or given to a lagged head after it."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from guided_collapse import NearestETFHead
from tests.heads.cases import FEATURE_DIM, HEADS, NUM_CLASSES, InputsAlone, batches, build, step_after, step_before, train

every_head = pytest.mark.parametrize("name", HEADS)
FEATURES, LABELS = torch.randn(20, FEATURE_DIM, generator=torch.Generator().manual_seed(5)), torch.arange(20) % NUM_CLASSES


def unchanged(head, before):
    return all(torch.equal(before[key], value) for key, value in head.state_dict().items())


def lagged(**options):
    return NearestETFHead(FEATURE_DIM, NUM_CLASSES, lagged=True, **options)


@every_head
def test_labels_that_are_handed_over_train_as_labels_in_the_call(name):
    expected, model = build(name), InputsAlone(name)
    train(expected, batches(5))
    train(model, batches(5), take_step=step_before(model.last))
    inputs, _ = next(batches(1, seed=7))
    assert torch.equal(model.eval()(inputs), expected.eval()(inputs))
    assert model.last.state_dict().keys() == expected.head.state_dict().keys()
    assert unchanged(model.last, expected.head.state_dict())


@pytest.mark.parametrize("every", [1, 3])
def test_an_update_afterward_trains_as_labels_in_the_call(every):
    expected, model = build("nearest-etf-lagged"), InputsAlone("nearest-etf-lagged")
    expected.head.every = model.last.every = every
    train(expected, batches(7))
    train(model, batches(7), take_step=step_after(model.last))
    inputs, _ = next(batches(1, seed=7))
    assert torch.equal(model.eval()(inputs), expected.eval()(inputs))
    assert unchanged(model.last, expected.head.state_dict())


def test_an_update_may_come_before_the_backward_pass():
    models = [InputsAlone("nearest-etf-lagged") for _ in range(2)]
    (inputs, labels), (more, more_labels) = batches(2)
    step_after(models[0].last)(models[0], inputs, labels)
    step_after(models[0].last)(models[0], more, more_labels)
    loss = cross_entropy(models[1](inputs), labels)
    models[1].last.update(labels)
    loss = loss + cross_entropy(models[1](more), more_labels)
    models[1].last.update(more_labels)
    loss.backward()
    for expected, parameter in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)


@every_head
def test_several_calls_in_one_block_take_the_same_labels(name):
    head, expected = build(name).head, build(name).head
    with head.labels(LABELS):
        views = [head(FEATURES), head(2 * FEATURES + 1)]
    assert torch.equal(views[0], expected(FEATURES, LABELS))
    assert torch.equal(views[1], expected(2 * FEATURES + 1, LABELS))


def test_the_innermost_block_counts_and_none_outlives_an_error():
    head, expected = NearestETFHead(FEATURE_DIM, NUM_CLASSES), NearestETFHead(FEATURE_DIM, NUM_CLASSES)
    other = LABELS.flip(0)
    with head.labels(LABELS):
        with head.labels(other):
            assert torch.equal(head(FEATURES), expected(FEATURES, other))
        assert torch.equal(head(FEATURES), expected(FEATURES, LABELS))
    with pytest.raises(ZeroDivisionError), head.labels(LABELS):
        raise ZeroDivisionError
    with pytest.raises(ValueError, match=r"labels are required in training mode.*with head\.labels\(labels\)"):
        head(FEATURES)


def test_eval_mode_takes_no_labels_that_are_handed_over():
    head = build("nearest-etf").head
    head(FEATURES, LABELS)
    before, expected = copy.deepcopy(head.state_dict()), head.eval()(FEATURES)
    with head.labels(LABELS):
        assert torch.equal(head(FEATURES[:3]), expected[:3])
        assert torch.equal(head(FEATURES[:3], LABELS[:3]), expected[:3])
    assert unchanged(head, before)


@every_head
def test_labels_that_are_handed_over_and_do_not_fit_leave_the_state_as_it_was(name):
    head = build(name).head
    before = copy.deepcopy(head.state_dict())
    with pytest.raises(ValueError, match=r"got \(19,\)"), head.labels(LABELS[1:]):
        head(FEATURES)
    with pytest.raises(ValueError, match="got values from 1 to 5"), head.labels(LABELS + 1):
        head(FEATURES)
    with pytest.raises(ValueError, match="labels must come one way"), head.labels(LABELS):
        head(FEATURES, LABELS)
    assert unchanged(head, before)


@every_head
def test_only_a_lagged_head_is_updated_afterward(name):
    head = build(name).head
    if name == "nearest-etf-lagged":
        return
    before = copy.deepcopy(head.state_dict())
    reason = "need the labels first; got lagged=False" if isinstance(head, NearestETFHead) else "for a lagged NearestETFHead"
    with pytest.raises(RuntimeError, match=reason):
        head.update(LABELS)
    assert unchanged(head, before)


def test_another_training_batch_before_the_update_is_refused():
    head = lagged()
    before = copy.deepcopy(head.state_dict())
    logits = head(FEATURES)
    for labels in (None, LABELS):
        with pytest.raises(RuntimeError, match=r"the labels of the previous batch, 20 samples, are missing\. Call head\.update"):
            head(FEATURES, labels)
    assert unchanged(head, before)
    head.update(LABELS)
    expected = lagged()
    assert torch.equal(expected(FEATURES, LABELS), logits)
    assert unchanged(head, expected.state_dict())


def test_an_update_without_a_batch_is_refused():
    head = lagged()
    for _ in range(2):
        before = copy.deepcopy(head.state_dict())
        with pytest.raises(RuntimeError, match="no batch is waiting"):
            head.update(LABELS)
        assert unchanged(head, before)
        head(FEATURES, LABELS)


def test_labels_that_do_not_fit_the_batch_leave_it_waiting():
    head = lagged()
    head(FEATURES)
    before = copy.deepcopy(head.state_dict())
    wrong = {"got \\(19,\\)": LABELS[1:], "got values from 1 to 5": LABELS + 1, "got torch.float32": LABELS.float()}
    for message, labels in wrong.items():
        with pytest.raises((TypeError, ValueError), match=message):
            head.update(labels)
    with pytest.raises(ValueError, match="labels are required"):
        head.update(None)
    assert unchanged(head, before)
    head.update(LABELS)
    assert int(head.class_means.steps) == 1


def test_nothing_waits_under_no_grad_nor_in_eval_mode():
    head = lagged()
    head(FEATURES)
    before = copy.deepcopy(head.state_dict())
    with torch.no_grad():
        head(FEATURES[:3])
    head.eval()(FEATURES[:4])
    with pytest.raises(RuntimeError, match="20 samples"), torch.no_grad():
        head.train()(FEATURES, LABELS)
    assert unchanged(head, before)
    head.update(LABELS)
    with torch.no_grad():
        head(FEATURES)
    with pytest.raises(RuntimeError, match="no batch is waiting"):
        head.update(LABELS)


def test_a_batch_can_be_left_out():
    for leave_out in (NearestETFHead.forget, NearestETFHead.reset_parameters, lambda head: head.load_state_dict(head.state_dict())):
        head = lagged()
        head(FEATURES)
        leave_out(head)
        head(FEATURES)
        head.update(LABELS)
        assert int(head.class_means.steps) == 1


@pytest.mark.parametrize(("name", "steps"), [("nearest-etf", [step_before]), ("nearest-etf-lagged", [step_before, step_after])])
def test_gradients_that_accumulate_and_an_evaluation_in_the_middle(name, steps):
    models = {step: InputsAlone(name) for step in steps}
    expected = build(name)
    evaluated, _ = next(batches(1, seed=7))
    for number, (inputs, labels) in enumerate(batches(4)):
        cross_entropy(expected.train()(inputs, labels), labels).backward()
        for step, model in models.items():
            step(model.last)(model.train(), inputs, labels)
            if number == 1:
                assert torch.equal(model.eval()(evaluated), expected.eval()(evaluated))
    for model in models.values():
        for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(parameter.grad, other.grad)
        assert unchanged(model.last, expected.head.state_dict())


def test_both_ways_under_autocast():
    expected = build("nearest-etf-lagged")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for inputs, labels in batches(2):
            expected(inputs, labels)
        for step in (step_before, step_after):
            model = InputsAlone("nearest-etf-lagged")
            for inputs, labels in batches(2):
                step(model.last)(model, inputs, labels)
            assert unchanged(model.last, expected.head.state_dict())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "step"), [("nearest-etf", step_before), ("nearest-etf-lagged", step_before), ("nearest-etf-lagged", step_after)]
)
def test_a_compiled_model_in_one_graph(name, step):
    expected, model = build(name), InputsAlone(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager_decomp_partition")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for inputs, labels in batches(3):
            cross_entropy(expected(inputs, labels), labels).backward()
            step(model.last)(compiled, inputs, labels)
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)
    for key, value in expected.head.state_dict().items():
        torch.testing.assert_close(model.last.state_dict()[key], value)


@pytest.mark.parametrize("step", [step_before, step_after])
def test_a_compiled_step_in_one_graph(step):
    expected, model = build("nearest-etf-lagged"), InputsAlone("nearest-etf-lagged")

    def loss_of(inputs, labels):
        if step is step_before:
            with model.last.labels(labels):
                return cross_entropy(model(inputs), labels)
        loss = cross_entropy(model(inputs), labels)
        model.last.update(labels)
        return loss

    torch._dynamo.reset()
    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager_decomp_partition")
    for inputs, labels in batches(2):
        torch.testing.assert_close(compiled(inputs, labels), cross_entropy(expected(inputs, labels), labels))


def test_a_compiled_lagged_head_refuses_a_second_batch_too():
    torch._dynamo.reset()
    head = lagged()
    compiled = torch.compile(head, backend="aot_eager")
    compiled(FEATURES)
    before = copy.deepcopy(head.state_dict())
    with pytest.raises(RuntimeError, match="20 samples, are missing"):
        compiled(FEATURES)
    assert unchanged(head, before)
