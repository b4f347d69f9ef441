import pytest

from tests.unit.render.helpers import settings
from triton_renderer.render import Renderer


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    """The bundled model's, with both parsers and a context of 600 tokens."""
    return Renderer.load(settings())
