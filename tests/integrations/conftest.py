"""Some of these tests need packages that only `make integrations` installs."""

from importlib.util import find_spec

names = ("callbacks", "collapse_of", "models", "others", "pretrained")
collect_ignore = [] if find_spec("torchvision") else [f"test_{name}.py" for name in names]
