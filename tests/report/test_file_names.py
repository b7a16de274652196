from guided_collapse.report.file_names import file_names


def test_ordinary_names_stay():
    assert file_names(["cifar10-resnet18", "my.run_2"]) == ["cifar10-resnet18", "my.run_2"]


def test_names_that_hold_anything_become_harmless_and_stay_apart():
    names = ["<script>alert(1)</script>", "../../etc", "", "a/b", "a b", "A-B", ".hidden", "x" * 500, "x" * 501]
    found = file_names(names)
    assert found[:7] == ["script-alert-1-script", "etc", "experiment", "a-b", "a-b-2", "A-B-3", "hidden"]
    assert len({name.lower() for name in found}) == len(names)
    assert all(len(name) <= 84 for name in found)
