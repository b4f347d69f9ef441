import pytest

from triton_renderer import errors
from triton_renderer.errors import ALL_ERRORS, RendererError, StageUnavailable, from_wire, to_wire


@pytest.mark.parametrize("cls", ALL_ERRORS)
@pytest.mark.parametrize(
    "prefix", ["", "in ensemble 'chat', ", "Failed to process the request(s) for model 'render_0_0', message: "]
)
def test_error_survives_triton(cls: type[RendererError], prefix: str) -> None:
    error = from_wire(prefix + to_wire(cls("the picture: is [cut] off", "messages.0.content.1")))
    assert (type(error), error.message, error.param) == (cls, "the picture: is [cut] off", "messages.0.content.1")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("InvalidRequest", 400), ("BadBody", 400), ("NoHistory", 400), ("Forbidden", 403), ("NotFound", 404), ("TooLarge", 413),
        ("QueueFull", 429), ("Cancelled", 499), ("StageUnavailable", 503), ("RendererError", 500),
    ],
)  # fmt: skip
def test_statuses_that_clients_go_by(name: str, status: int) -> None:
    assert {cls.__name__: cls.status for cls in ALL_ERRORS}[name] == status


@pytest.mark.parametrize("name", ["features.a].0", "a\nb", "[", "x]: NotFound: y"])
def test_whatever_a_client_calls_things_the_class_survives(name: str) -> None:
    error = from_wire("in ensemble 'chat', " + to_wire(errors.InvalidRequest(f"{name} is unknown", name)))
    assert type(error) is errors.InvalidRequest
    assert error.message == f"{name} is unknown"


def test_long_messages_are_cut_to_what_grpc_carries() -> None:
    text = to_wire(errors.InvalidRequest("x" * 10**6, "y" * 10**6))
    assert len(text) < 4000
    assert type(from_wire(text)) is errors.InvalidRequest


def test_every_error_class_is_known_to_the_wire() -> None:
    classes = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, RendererError)}
    assert classes == set(ALL_ERRORS)


@pytest.mark.parametrize(
    "text",
    [
        "Stub process 'render_0_0' is not healthy.",
        "in ensemble 'chat', Stub process 'prefill_decode_0_0' is not healthy.",
        "Request for unknown model: 'encode' has no available versions",
        "Request for unknown model: 'chat' is not ready",
        "failed to connect to all addresses",
    ],
)
def test_tritons_words_for_a_stage_that_is_down(text: str) -> None:
    assert isinstance(from_wire(text), StageUnavailable)


def test_anything_else_is_an_internal_error() -> None:
    assert type(from_wire("AttributeError: 'NoneType' object has no attribute 'x'")) is RendererError
