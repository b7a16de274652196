"""These tests take packages that only `make integrations` installs."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torchvision") else ["test_*.py"]
