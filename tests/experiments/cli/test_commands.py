"""The commands, as a user calls them: output, messages and exit status."""

import errno
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from guided_collapse.experiments import loop
from guided_collapse.experiments.cli import main
from guided_collapse.experiments.cli.commands import COMMANDS, parsed
from guided_collapse.experiments.errors import DamageError, RequestError, WorkError
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.presets import PRESETS
from tests.experiments.data.made_up import write_folders
from tests.experiments.runs import FREE, placed

pytestmark = pytest.mark.slow

SHORT = ["--epochs", "1", "--accelerator", "cpu", "--quiet"]


def call(capsys, *arguments):
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_list_and_version(capsys):
    status, out, _ = call(capsys, "list")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 100
    lines = [line.split() for line in out.splitlines()]
    for name, preset in PRESETS.items():
        assert [name, preset.data, preset.backbone, preset.optimizer, str(preset.epochs)] in lines
    for name, head in HEADS.items():
        assert [name, *head.about.split()] in lines
    assert call(capsys, "--version")[:2] == (0, f"{metadata.version('guided-collapse')}\n")


def test_an_interrupted_run_says_so_continues_and_is_extended(capsys, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    run = tmp_path / "digits" / "fixed-etf" / "seed-0"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "measure", interrupt)
        flags = ["--head", "fixed-etf", "--epochs", 2, "--accelerator", "cpu", "--quiet", "--out", tmp_path]
        status, _, err = call(capsys, "train", "digits", *flags)
    assert status == 130
    assert "from epoch 1 of 2 on cpu" in err
    assert "continues from its last checkpoint" in err
    for flags, said in (([], "from epoch 1 of 2 on"), (["--epochs", 3], "from epoch 3 of 3 on")):
        status, out, err = call(capsys, "resume", run, *flags, "--quiet")
        assert (status, out) == (0, f"{run}\n")
        assert said in err


def test_train_with_ones_own_images(capsys, tmp_path):
    write_folders(tmp_path / "photos", num_per_class=6, size=32)
    run = tmp_path / "runs" / "photos" / "nearest-etf" / "seed-0"
    flags = ["--batch-size", 9, "--width", 0.125, *SHORT, "--out", tmp_path / "runs"]
    status, _, err = call(capsys, "train", tmp_path / "photos", *flags)
    assert status == 2
    assert f"Write --data {tmp_path / 'photos'}" in err
    status, out, err = call(capsys, "train", "--data", tmp_path / "photos", "--head", "nearest-etf", *flags)
    assert (status, out) == (0, f"{run}\n"), err
    assert "of 32 x 32 in 3 classes; from epoch 1 of 1 on cpu" in err
    status, _, err = call(capsys, "export", run.parents[1], "--to", tmp_path / "model.pt2")
    assert status == 2
    assert f"Did you mean {run}?" in err
    (tmp_path / "photos").rename(tmp_path / ".photos")
    hidden = parsed(["train", "--data", str(tmp_path / ".photos")])
    assert hidden.configuration.experiment == "photos"
    assert call(capsys, "export", run, "--to", tmp_path / "model.pt2")[0] == 0
    assert (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize("command", ["train", "compare"])
def test_runs_do_not_become_a_class_of_the_images(command, capsys, tmp_path, monkeypatch):
    write_folders(tmp_path, num_per_class=6, size=32, parts=("",))
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    status, out, err = call(capsys, command, "--data", ".", *SHORT)
    assert (status, out) == (2, "")
    assert f"--out must not lie inside the data folder; got runs in {tmp_path}. Choose another --out." in err
    assert set(tmp_path.rglob("*")) == before


def test_compare_prints_a_table(capsys, tmp_path):
    flags = ["--heads", "cosine", "nearest-etf", "--seeds", "0", "1", *SHORT, "--out", tmp_path]
    status, out, err = call(capsys, "compare", "digits", *flags)
    assert status == 0, err
    first_words = [line.split()[0] for line in out.splitlines()[1:4]]
    assert first_words == ["head", "Cosine", "Nearest"]
    page = tmp_path / "digits" / "report" / "report.html"
    assert out.splitlines()[-1] == f"Open this page: {page.as_uri()}"
    assert "nearest-etf" in page.read_text(encoding="utf-8")
    status, out, err = call(capsys, "compare", "digits", "--heads", "cosine", "--seeds", "0", *SHORT, "--out", tmp_path)
    assert status == 0, err
    assert "nearest-etf" not in page.read_text(encoding="utf-8")
    status, out, err = call(capsys, "report", tmp_path, "--out", tmp_path / "again", "--epochs", 1)
    assert (status, out) == (0, f"{tmp_path / 'again' / 'report.html'}\n"), err


@pytest.mark.filterwarnings("default:.*seed-0 failed:RuntimeWarning")
def test_compare_says_what_failed(capsys, tmp_path):
    (tmp_path / "digits" / "fixed-etf").mkdir(parents=True)
    (tmp_path / "digits" / "fixed-etf" / "seed-0").write_text("in the way")
    flags = ["--heads", "fixed-etf", "nearest-etf", "--seeds", "0", *SHORT, "--out", tmp_path]
    status, out, err = call(capsys, "compare", "digits", *flags)
    assert status == 1
    assert "Nearest ETF" in out
    assert f"failed: {tmp_path / 'digits' / 'fixed-etf' / 'seed-0'}" in err


def test_data(capsys, tmp_path):
    assert call(capsys, "data", "digits")[0] == 0
    status, _, err = call(capsys, "data", "imagenet", "--data-root", tmp_path)
    assert status == 2
    assert "imagenet" in err


WRONG = [
    ("train digitz", "Did you mean digits"),
    ("train digits --head nearst-etf", "Did you mean nearest-etf"),
    ("compare digits --seed 0", "--seeds"),
    ("compare digits --epoch 3", "--epochs"),
    ("compare digits --epochs three", "epochs must be a whole number; got 'three'"),
    ("compare digits --epochs -1", "epochs must be at least 1; got '-1'"),
    ("compare digits --epochs 1.5", "epochs must be a whole number; got '1.5'"),
    ("compare digits --scale big", "scale must be a number; got 'big'"),
    ("compare digits --epochs", "--epochs"),
    ("compare digits --heads linear,cosine", "heads must be one of linear, cosine,"),
    ("compare digits --optimizer adam", "Did you mean adamw"),
    ("compare digits --backbone resnet19", "Did you mean resnet18"),
    ("compare digits --learning-rate 0.1", "Choose --optimizer sgd or adamw"),
    ("compare digits --trace yes", "yes"),
    ("compare digits --jobs 0", "jobs must be at least 1; got '0'"),
    ("train", "guided-collapse list"),
    ("train --epochs 3 digits", "the experiment must come before all flags"),
    ("train digits more words", "more, words"),
    ("train digits --out FILE", "out must be a folder"),
    ("train cifar100-vgg13 --data-root nowhere", "guided-collapse data cifar100"),
    ("train --data nowhere", "nowhere"),
    ("train --data EMPTY", "EMPTY has none"),
    ("train digits --optimizer agd --affine", "dimension"),
    ("resume nowhere", "nowhere must be the folder of a run"),
    ("resume nowhere --out elsewhere", "--out"),
    ("resume", "RUN_DIR"),
    ("upgrade nowhere", "nowhere must be the folder of a run"),
    ("export nowhere --to x.pt2", "nowhere must be the folder of a run"),
    ("export nowhere", "--to"),
    ("report --out report", "RUNS"),
    ("report nowhere --out report", "nowhere"),
    ("data cifar", "Did you mean cifar10"),
    ("measure nowhere.npz", "No such file"),
    ("search digits", "a search needs heads, seeds, trial seeds and a grid"),
    ("search digits --grid learning_rate=0.1 --optimizer agd", "with --optimizer agd must be one of scale,"),
    ("melt", "the command must be one of list, train,"),
    ("comapre digits", "Did you mean compare"),
    ("--epochs 3", "the command must be one of list, train,"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_request_exits_with_2_and_says_why(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "FILE").touch()
    status, out, err = call(capsys, *line.split())
    assert (status, out) == (2, "")
    assert message in " ".join(re.sub("[─-╿]", " ", err).split())
    assert not re.search(r"Traceback|invalid literal|<class|\{None\}|guided-collapse search", err)
    assert len(err) <= 800
    assert not any(tmp_path.rglob("model.safetensors"))


def test_without_words_it_lists_the_commands(capsys):
    status, out, err = call(capsys)
    assert (status, out) == (2, "")
    assert call(capsys, "--help") == (0, err, "")
    assert {line.split()[0] for line in err.splitlines() if line.startswith("  ")} == set(COMMANDS)
    assert max(map(len, err.splitlines())) <= 100


def test_a_run_that_was_moved_is_not_resumed_elsewhere(capsys, tmp_path):
    run = loop.train(FREE, placed(tmp_path / "runs"))
    shutil.move(run.path, tmp_path / "moved")
    status, _, err = call(capsys, "resume", tmp_path / "moved")
    assert status == 2
    assert "ufm-10/nearest-etf/seed-0" in err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MemoryError(), 1, "out of memory. Use a smaller batch"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "out of memory (DefaultCPUAllocator: can't allocate"),
        (RuntimeError("two\n  lines"), 1, "guided-collapse: two lines"),
        (OSError(errno.ENOSPC, "No space left on device", "file"), 1, "guided-collapse: No space left on device: file"),
        (ValueError("not expected"), 1, "guided-collapse: not expected"),
        (DamageError("another run"), 1, "guided-collapse: another run"),
        (WorkError("lost"), 1, "guided-collapse: lost"),
        (RequestError("wrong"), 2, "guided-collapse: wrong"),
        (ModuleNotFoundError("No module named 'rich'", name="rich"), 2, "Install guided-collapse with its extra experiments"),
    ],
)
def test_the_exit_status_tells_a_wrong_request_from_a_failure_on_the_way(error, status, message, capsys, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("guided_collapse.experiments.loop.train", fail)
    found, out, err = call(capsys, "train", "digits")
    assert (found, out) == (status, "")
    assert message in err
    assert err.count("\n") == 1
    _, _, err = call(capsys, "--traceback", "train", "digits")
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("guided-collapse: ")


@pytest.mark.parametrize(("lost", "status"), [("Path.mkdir", 2), ("RunFolder.write_records", 1)])
def test_an_output_folder_that_cannot_be_written_is_a_wrong_request_unless_training_has_begun(
    lost, status, capsys, tmp_path, monkeypatch
):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "there")

    monkeypatch.setattr(f"guided_collapse.experiments.run.{lost}", refuse)
    found, _, err = call(capsys, "train", "digits", *SHORT, "--out", tmp_path)
    assert found == status
    assert err.endswith("guided-collapse: Permission denied: there\n")


def test_a_reader_that_goes_away_is_no_error(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody_reads:
        monkeypatch.setattr("sys.stdout", nobody_reads)
        assert main(["list"]) == 141
    assert capsys.readouterr().err == ""


def configuration(*words):
    return parsed(["train", *words]).configuration


def test_values_of_a_preset_that_no_longer_have_an_effect_go_back_to_their_defaults():
    assert configuration("cifar10-resnet18", "--backbone", "vgg13").stem is None
    sizes = ["--num-samples", "60", "--num-classes", "10", "--backbone=unconstrained", "--data", "unconstrained"]
    free = configuration("imagenet-resnet50", *sizes)
    assert (free.flip, free.rotation, free.crop_size, free.random_resized) == (False, 0.0, None, False)
    assert configuration("digits", "--optimizer", "sgd", "--gain", "10").gain == 10.0


def test_the_learning_rate_of_a_preset_is_for_its_optimizer():
    def rate(*flags):
        return configuration("omniglot-small", *flags).resolved().learning_rate

    assert rate() == rate("--optimizer", "sgd") == 0.3
    assert rate("--optimizer=adamw") == 1e-3
    assert rate("--optimizer", "adamw", "--learning-rate", "0.3") == 0.3
    assert rate("--optimizer", "agd", "--no-affine") is None


def test_fields_that_a_head_does_not_use_are_a_warning():
    flags = ["--proximal-weight", "0.5"]
    with pytest.warns(UserWarning, match="head fixed-etf has no option proximal_weight"):
        configuration("digits", "--head", "fixed-etf", *flags)
    with pytest.warns(UserWarning, match="head cosine and fixed-etf has no option"):
        parsed(["compare", "digits", "--heads", "cosine", "fixed-etf", *flags])
    assert parsed(["compare", "digits", "--heads", "cosine", "nearest-etf", *flags]).configuration.proximal_weight == 0.5


@pytest.mark.filterwarnings("default:agd has no learning_rate")
def test_a_search_for_learning_rates_needs_no_optimizer_flag(capsys, tmp_path):
    """The preset's optimizer, agd, has no learning rate: sgd takes its place."""
    flags = ["--grid", "learning_rate=0.1,0.3", "--heads", "cosine", "fixed-etf", "--seeds", "0", *SHORT, "--out", tmp_path]
    status, out, err = call(capsys, "search", "digits", *flags)
    assert status == 0, err
    assert "uses --optimizer sgd" in err
    assert "learning_rate=0.3" in out
    assert out.splitlines()[-1].endswith("digits-search/report/report.html")
    assert parsed(["search", "cifar100-small", "--grid", "learning_rate=0.1"]).configuration.optimizer == "sgd"
    plan = parsed(["search", "digits", "--grid", "gain=.5,10", "batch-size=64"]).plan()
    assert (plan.grid, plan.configuration["optimizer"]) == ({"gain": [0.5, 10], "batch_size": [64]}, "agd")


@pytest.mark.parametrize("grid", [["learning_rate"], ["learning_rate=0.1", "learning_rate=0.2"], ["scale=-1"], ["every=0.5"], []])
def test_a_malformed_grid_is_refused_before_torch_is_loaded(grid):
    words = ["search", "digits", "--heads", "nearest-etf-lagged", *(["--grid", *grid] if grid else [])]
    script = "import sys; from guided_collapse.experiments.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert done.stderr.count("\n") == 1


def test_heads_that_learn_need_no_neck_before_given_features(tmp_path):
    words = ["--features", f"{tmp_path / 'given.npz'}", "--neck", "none", "--grid", "learning_rate=0.1"]
    assert parsed(["search", *words, "--heads", "linear", "cosine"]).plan().heads == ("linear", "cosine")
    with pytest.raises(RequestError, match="must have trainable parameters"):
        parsed(["search", *words, "--heads", "linear", "nearest-etf"])
