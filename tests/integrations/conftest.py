"""Some of these tests need packages that only `make integrations` installs."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torchvision") else ["test_callbacks.py", "test_models.py", "test_others.py"]
