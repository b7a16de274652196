"""Labels that do not pass through the model: with `head.labels` before the forward pass, or `head.update` after it."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from guided_collapse import NearestETFHead
from tests.heads.cases import (
    FEATURE_DIM,
    HEADS,
    NUM_CLASSES,
    InputsOnly,
    assert_same_gradients,
    assert_same_state,
    batches,
    build,
    step_after,
    step_before,
    train,
)

every_head = pytest.mark.parametrize("name", HEADS)
FEATURES, LABELS = torch.randn(20, FEATURE_DIM, generator=torch.Generator().manual_seed(5)), torch.arange(20) % NUM_CLASSES


def lagged(**options):
    return NearestETFHead(FEATURE_DIM, NUM_CLASSES, lagged=True, **options)


@every_head
def test_head_labels_trains_like_labels_in_the_call(name):
    expected, model = build(name), InputsOnly(name)
    train(expected, batches(5))
    train(model, batches(5), take_step=step_before(model.last))
    inputs, _ = next(batches(1, seed=7))
    assert torch.equal(model.eval()(inputs), expected.eval()(inputs))
    assert_same_state(model.last, expected.head)


@pytest.mark.parametrize(("every", "autocast"), [(1, False), (3, False), (1, True)])
def test_head_update_trains_like_labels_in_the_call(every, autocast):
    expected, model = build("nearest-etf-lagged"), InputsOnly("nearest-etf-lagged")
    expected.head.every = model.last.every = every
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        train(expected, batches(7))
        train(model, batches(7), take_step=step_after(model.last))
    inputs, _ = next(batches(1, seed=7))
    assert torch.equal(model.eval()(inputs), expected.eval()(inputs))
    assert_same_state(model.last, expected.head)


def test_head_update_works_before_the_backward_pass():
    models = [InputsOnly("nearest-etf-lagged") for _ in range(2)]
    (inputs, labels), (more, more_labels) = batches(2)
    step_after(models[0].last)(models[0], inputs, labels)
    step_after(models[0].last)(models[0], more, more_labels)
    loss = cross_entropy(models[1](inputs), labels)
    models[1].last.update(labels)
    loss = loss + cross_entropy(models[1](more), more_labels)
    models[1].last.update(more_labels)
    loss.backward()
    assert_same_gradients(models[1], models[0], rtol=1.3e-6, atol=1e-5)


def test_the_innermost_block_applies_and_errors_end_blocks():
    head, expected = NearestETFHead(FEATURE_DIM, NUM_CLASSES), NearestETFHead(FEATURE_DIM, NUM_CLASSES)
    other = LABELS.flip(0)
    with head.labels(LABELS):
        with head.labels(other):
            assert torch.equal(head(FEATURES), expected(FEATURES, other))
            assert torch.equal(head(2 * FEATURES + 1), expected(2 * FEATURES + 1, other))
        assert torch.equal(head(FEATURES), expected(FEATURES, LABELS))
    with pytest.raises(ZeroDivisionError), head.labels(LABELS):
        raise ZeroDivisionError
    with pytest.raises(ValueError, match=r"labels are required in training mode.*with head\.labels\(labels\)"):
        head(FEATURES)


def test_eval_mode_ignores_head_labels():
    head = build("nearest-etf").head
    head(FEATURES, LABELS)
    before, expected = copy.deepcopy(head), head.eval()(FEATURES)
    with head.labels(LABELS):
        assert torch.equal(head(FEATURES[:3]), expected[:3])
        assert torch.equal(head(FEATURES[:3], LABELS[:3]), expected[:3])
    assert_same_state(head, before)


@every_head
def test_invalid_head_labels_do_not_change_the_state(name):
    head = build(name).head
    before = copy.deepcopy(head)
    with pytest.raises(ValueError, match=r"got \(19,\)"), head.labels(LABELS[1:]):
        head(FEATURES)
    with pytest.raises(ValueError, match="labels must be passed only once"), head.labels(LABELS):
        head(FEATURES, LABELS)
    assert_same_state(head, before)


@pytest.mark.parametrize("name", [name for name in HEADS if name != "nearest-etf-lagged"])
def test_only_lagged_heads_support_update(name):
    head = build(name).head
    before = copy.deepcopy(head)
    with pytest.raises(RuntimeError, match=r"for a lagged NearestETFHead, .* that is not lagged"):
        head.update(LABELS)
    assert_same_state(head, before)


def test_a_batch_stays_pending_until_valid_labels_arrive():
    head, expected = lagged(), lagged()
    logits = head(FEATURES)
    before = copy.deepcopy(head)
    for labels in (None, LABELS):
        with pytest.raises(RuntimeError, match=r"previous batch, 20 samples, are pending\..*call head\.update"):
            head(FEATURES, labels)
    wrong = [(LABELS[1:], r"got \(19,\)"), (LABELS + 1, "from 1 to 5"), (LABELS.float(), "float32"), (None, "are required")]
    for labels, message in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            head.update(labels)
    assert_same_state(head, before)
    head.update(LABELS)
    assert torch.equal(expected(FEATURES, LABELS), logits)
    assert_same_state(head, expected)
    for without_a_batch in (head, expected, lagged()):
        before = copy.deepcopy(without_a_batch)
        with pytest.raises(RuntimeError, match="no batch is pending"):
            without_a_batch.update(LABELS)
        assert_same_state(without_a_batch, before)


def test_no_batch_is_pending_under_no_grad_or_in_eval_mode():
    head = lagged()
    head(FEATURES)
    before = copy.deepcopy(head)
    with torch.no_grad():
        head(FEATURES[:3])
    head.eval()(FEATURES[:4])
    with pytest.raises(RuntimeError, match="20 samples"), torch.no_grad():
        head.train()(FEATURES, LABELS)
    assert_same_state(head, before)
    head.update(LABELS)
    with torch.no_grad():
        head(FEATURES)
    with pytest.raises(RuntimeError, match="no batch is pending"):
        head.update(LABELS)


def test_forget_drops_the_pending_batch():
    for leave_out in (NearestETFHead.forget, NearestETFHead.reset_parameters, lambda head: head.load_state_dict(head.state_dict())):
        head = lagged()
        head(FEATURES)
        leave_out(head)
        head(FEATURES)
        head.update(LABELS)
        assert int(head.class_means.steps) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "step"), [("nearest-etf", step_before), ("nearest-etf-lagged", step_before), ("nearest-etf-lagged", step_after)]
)
def test_a_compiled_model_in_one_graph(name, step):
    expected, model = build(name), InputsOnly(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager_decomp_partition")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for inputs, labels in batches(3):
            cross_entropy(expected(inputs, labels), labels).backward()
            step(model.last)(compiled, inputs, labels)
    assert_same_gradients(model, expected, rtol=1.3e-6, atol=1e-5)
    assert_same_state(model.last, expected.head, 1e-5)


@pytest.mark.parametrize("step", [step_before, step_after])
def test_a_compiled_step_in_one_graph(step):
    expected, model = build("nearest-etf-lagged"), InputsOnly("nearest-etf-lagged")

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


def test_a_compiled_lagged_head_raises_for_a_second_batch():
    torch._dynamo.reset()
    head = lagged()
    compiled = torch.compile(head, backend="aot_eager")
    compiled(FEATURES)
    before = copy.deepcopy(head)
    with pytest.raises(RuntimeError, match="20 samples, are pending"):
        compiled(FEATURES)
    assert_same_state(head, before)
