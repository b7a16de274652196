"""The tokenizer and token vectors of the package wordllama (0.4.0.post1), read from its files without importing it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor


def token_vectors() -> tuple[Any, Tensor]:
    """Returns the tokenizer, which neither pads nor truncates, and the vectors of its tokens, (num_tokens, 256)."""
    from tokenizers import Tokenizer

    package = find_spec("wordllama")
    if package is None or package.origin is None:
        raise ImportError("this needs the package wordllama. Run: pip install wordllama==0.4.0.post1")
    folder = Path(package.origin).parent
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    (vectors,) = load_file(folder / "weights" / "l2_supercat_256.safetensors").values()
    return tokenizer, vectors
