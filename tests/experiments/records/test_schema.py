"""Every file and field of a record is named in one source file, and records written before read as they did."""

import ast
import gzip
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from guided_collapse.experiments.records import schema
from guided_collapse.experiments.records.epochs import records_as_text, records_from_text
from guided_collapse.experiments.records.fields import Record, RecordError
from guided_collapse.experiments.records.schema import (
    CostRecord,
    EpochRecord,
    Hardware,
    HeadCounts,
    Inputs,
    PeakRates,
    RunFacts,
    StepCost,
)
from guided_collapse.experiments.configuration import Configuration

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "guided_collapse"
RECORDS = ROOT / "results" / "records"

# Rooms that write or read records. The others know nothing of them; what they call "train" or "samples" is their own.
ROOMS = ("records", "training", "profiling", "experiments", "report", "cli")
# Words that are also something else: file, and what they are there.
OTHERWISE = {
    ("epoch", "training/loop.py"): "of a checkpoint's state",
    ("epoch", "training/folder/progress.py"): "of a checkpoint's state",
    ("inputs", "training/export.py"): "of the metadata of an exported model",
    ("format", "records/seal.py"): "of the metadata that safetensors writes itself",
    ("train", "training/measure.py"): "a split",
    ("train", "cli/command.py"): "a command",
    ("devices", "training/settings/placement.py"): "a field of the placement",
    ("steps", "profiling/cost.py"): "a field of a request",
    ("train", "records/declared/metrics.py"): "a split",
    ("test", "records/declared/metrics.py"): "a split",
    ("loss_lower_bound", "records/declared/metrics.py"): "the name of a reference line",
    ("loss_lower_bound", "records/declared/metric_declaration.py"): "the name of a reference line",
    ("loss_lower_bound", "report/experiment.py"): "the name of a reference line",
    ("loss_lower_bound", "report/page/panels.py"): "the name of a reference line",
    **{(name, "report/run_table.py"): "a column of a table of pandas" for name in ("epoch", "seconds", "loss_lower_bound")},
    ("loss_lower_bound", "report/figures/collapse.py"): "a column of a table of pandas",
}


def file_names() -> set[str]:
    constants = {value for name, value in vars(schema).items() if name.isupper() and isinstance(value, str)}
    return {value for value in constants if Path(value).suffix}


def field_names() -> set[str]:
    classes = [kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, Record)]
    names = {name for kind in classes for name in kind.FIELDS}
    return names | {field.name for field in fields(schema.Trace)} | {*CostRecord.HEADER, schema.CHECKSUM}


def literals(tree: ast.AST) -> Iterator[str]:
    """Every string that the code holds."""
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def keys(tree: ast.AST) -> Iterator[str]:
    """The strings with which something is put into a dictionary, or taken out of it, or out of an object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            found = node.keys
        elif isinstance(node, ast.Subscript):
            found = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop", "setdefault"):
            found = node.args[:1]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "dict"):
            found = [*node.args[1:2], *(ast.Constant(keyword.arg) for keyword in node.keywords)]
        else:
            continue
        yield from (key.value for key in found if isinstance(key, ast.Constant) and isinstance(key.value, str))


def named_again(file: Path) -> set[str]:
    """The names of the schema that a source file uses as such.

    A name that is no ordinary word must not stand there at all, unless the configuration has it too. An ordinary word must not be
    a key, but in the tables and on the page, whose rows and data for the script have names of their own.
    """
    tree, place = ast.parse(file.read_text(encoding="utf-8")), str(file.relative_to(SOURCE))
    of_configuration = {field.name for field in fields(Configuration)}
    names = field_names()
    words = {name for name in names if name.isalpha()}
    found = set(literals(tree)) & (file_names() | (names - words - of_configuration))
    if not place.startswith(("report/tables/", "report/page/")):
        found |= set(keys(tree)) & (words - of_configuration)
    return {name for name in found if (name, place) not in OTHERWISE}


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_and_field_is_named_in_the_schema_alone(room):
    files = [file for file in (SOURCE / room).rglob("*.py") if file != SOURCE / "records" / "schema.py"]
    assert {str(file.relative_to(SOURCE)): found for file in files if (found := named_again(file))} == {}


def test_the_check_sees_names(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.experiments.records.test_schema.SOURCE", tmp_path)
    for line, found in {
        'path / "config.json"': {"config.json"},
        'names = ("peak_mb", "num_train")': {"peak_mb", "num_train"},
        'line["epoch"]': {"epoch"},
        'line.get("seconds")': {"seconds"},
        'getattr(run, "head_forward_ms")': {"head_forward_ms"},
        'record = {"started": 1}': {"started"},
        "dict(hardware=1)": {"hardware"},
        'said = "seconds"': set(),
    }.items():
        (tmp_path / "a.py").write_text(line)
        assert named_again(tmp_path / "a.py") == found, line
    assert len(file_names()) == 12
    assert {"experiment", "sample_labels", "note", "format", "sha256", "class_names", "threads", "running"} <= field_names()


def test_no_exception_is_left_over():
    for name, place in OTHERWISE:
        assert name in set(literals(ast.parse((SOURCE / place).read_text(encoding="utf-8")))), (name, place)


@pytest.mark.thorough
def test_every_record_that_was_kept_comes_back_byte_for_byte():
    for file in RECORDS.rglob(schema.CONFIG):
        text = file.read_text(encoding="utf-8")
        content = json.loads(text)
        assert json.dumps(content, indent=2) + "\n" == text
        content.pop(schema.CHECKSUM, None)  # which records of earlier versions do not have
        facts = RunFacts.from_json(content)
        assert json.dumps(facts.to_json()) == json.dumps(content)
        assert Hardware.from_json(facts.hardware).to_json() == facts.hardware
        assert facts.inputs is None or Inputs.from_json(facts.inputs).to_json() == facts.inputs
    for file in RECORDS.rglob(schema.METRICS_COMPRESSED):
        text = gzip.decompress(file.read_bytes()).decode()
        assert records_as_text(records_from_text(text)) == text
    for file in RECORDS.rglob(schema.COST):
        text = file.read_text(encoding="utf-8")
        assert json.dumps(CostRecord.from_json(json.loads(text)).to_json(), indent=2) + "\n" == text


def test_what_an_epoch_has_not_is_not_written():
    line = EpochRecord(3, running={"loss": 0.5}, seconds=1.5, train={"loss": 0.25, "nc1": None})
    assert line.to_json() == {"epoch": 3, "running": {"loss": 0.5}, "seconds": 1.5, "train": {"loss": 0.25, "nc1": None}}
    assert EpochRecord.from_json(line.to_json()) == line
    assert (line.measured("train"), line.measured("test")) == ({"loss": 0.25, "nc1": None}, {})
    assert list(line.parts()) == ["running", "train"]


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        (
            Hardware,
            {"cpu": "a", "threads": 0, "devices": "cpu", "processes": 1},
            "threads must be a whole number of at least 1; got 0",
        ),
        (Hardware, {"threads": 1, "devices": "cpu", "processes": 1}, "cpu must be text; got None"),
        (Inputs, {"shape": [1, 8]}, r"shape must be three positive whole numbers; got \[1, 8\]"),
        (Inputs, {"shape": [1, 8, 8], "mean": ["a"]}, r"mean must be a number for each channel; got \['a'\]"),
        (
            Inputs,
            {"shape": [1, 8, 8], "mean": [0], "std": [1], "class_names": [3]},
            "class_names must be a list of text",
        ),
        (PeakRates, {"float32_tflops": 0, "memory_gbs": 1, "source": "a"}, "float32_tflops must be a positive number; got 0"),
        (PeakRates, {"float32_tflops": 1, "memory_gbs": 1}, "source must be text; got None"),
        (
            HeadCounts,
            {"head": "a", "device_kind": "cpu", "operations": -1},
            "operations must be a whole number of at least 0; got -1",
        ),
        (StepCost, [1], r"a record must be an object; got \[1\]"),
        (EpochRecord, {"epoch": 1, "train": {"loss": "low"}}, "train cannot be used: loss must be a number"),
    ],
)
def test_what_is_no_such_record_is_refused(kind, content, said):
    with pytest.raises(RecordError, match=said):
        kind.from_json(content)
