"""Nothing that comes from outside is ever loaded as a pickle: the sources name no loader of any, nor of code objects."""

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from tests.unit.hostile import PICKLES, no_pickle
from triton_renderer.wire import decode_item

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("triton_renderer", "client", "model_repository") for path in (ROOT / folder).rglob("*.py"))
LOADERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "pandas"}
"""Modules that load pickles or code objects, or do so by default."""


def complaints(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            yield from _call(ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords})
        yield from (f"line {node.lineno}: imports {name}" for name in names if name.partition(".")[0] in LOADERS)


def _call(name: str, words: dict[str | None, str]) -> Iterator[str]:
    if name == "torch.load" and words.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if name in ("np.load", "numpy.load") and words.get("allow_pickle", "False") != "False":
        yield f"{name} with pickles"
    if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
        yield name
    if name.endswith(("msgpack.unpackb", "msgpack.unpack", "msgpack.Unpacker")) and "ext_hook" not in words:
        yield f"{name} without ext_hook"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_loads_what_may_run_code(path: Path) -> None:
    assert list(complaints(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch.utils, marshal",
        "torch.load(x)",
        "torch.load(x, weights_only=False)",
        "np.load(x, allow_pickle=True)",
        "msgpack.unpackb(x)",
    ],
)
def test_such_a_source_would_be_noticed(source: str) -> None:
    assert list(complaints(source))


@pytest.mark.parametrize("pickled", PICKLES)
def test_a_pickle_that_were_loaded_would_be_noticed(pickled: bytes) -> None:
    with pytest.raises(AssertionError, match="find_class"), no_pickle():
        pickle.loads(pickled)  # our own
    with no_pickle():
        for data in (pickled, msgpack.packb({"x": {"data": msgpack.ExtType(1, pickled), "field": ["batched", {}]}})):
            with pytest.raises(ValueError, match="not a serialized"):
                decode_item(data)
