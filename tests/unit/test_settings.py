"""What follows from the settings."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from triton_renderer.settings import BUNDLED_MODEL, Settings, SettingsError, load_settings, reachable
from triton_renderer.text.formats import REASONING_FORMATS, TOOL_FORMATS


@pytest.fixture(autouse=True)
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


def test_of_a_folder_only_the_name_is_shown_and_of_a_hub_id_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(model="some/model").model_id == "some/model"
    assert load_settings(model=str(BUNDLED_MODEL)).model_id == "shapes-vl"
    monkeypatch.chdir(tmp_path)
    assert load_settings(model=".").model_id == tmp_path.name


def test_a_model_is_served_under_its_own_name_or_another() -> None:
    assert load_settings(model="some/model").model_name == "some/model"
    assert load_settings(model="some/model", served_model_name="name").model_name == "name"


def test_neither_the_shim_nor_triton_is_on_the_network_unless_somebody_says_so() -> None:
    assert (load_settings().host, load_settings().triton_host) == ("127.0.0.1", "127.0.0.1")
    assert load_settings(host="0.0.0.0").triton_host == "127.0.0.1"


@pytest.mark.parametrize(
    ("role", "switch", "enabled"),
    [("all", None, False), ("all", "0", False), ("all", "1", True), ("render", None, True), ("render", "1", True)],
)
def test_the_scale_out_routes_are_off_unless_switched_on_or_all_that_there_is(
    role: str, switch: str | None, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLE", role)
    if switch is not None:
        monkeypatch.setenv("VLLM_ENABLE_SCALE_OUT_ENDPOINTS", switch)
    settings = load_settings()
    assert settings.scale_out_enabled is enabled
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings  # as a child process sees them


def test_a_render_server_with_its_routes_switched_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLE", "render")
    monkeypatch.setenv("VLLM_ENABLE_SCALE_OUT_ENDPOINTS", "0")
    with pytest.raises(SettingsError, match=r"^ROLE=render serves .*VLLM_ENABLE_SCALE_OUT_ENDPOINTS=0 switches them off"):
        load_settings()


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ("A.example., b.example ,", ("a.example", "b.example")),
        ("127.0.0.1,::1,[fe80::1]", ("127.0.0.1", "::1", "[fe80::1]")),
        ("bücher.example", ("bücher.example",)),
        ("b\udcc3\udcbccher.example", ("bücher.example",)),  # as a stage reads it
    ],
)
def test_media_come_from_hosts_by_their_names(given: str, hosts: tuple[str, ...]) -> None:
    assert load_settings(allowed_media_hosts=given).allowed_media_hosts == hosts


@pytest.mark.parametrize(
    "host", ["http://a.example", "a.example:8080", "a.example/b", "*.example", "me@a.example", "[a.example]"]
)
def test_what_no_url_can_name_as_its_host_is_refused(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_MEDIA_HOSTS", f"b.example,{host}")
    with pytest.raises(SettingsError, match=r"^ALLOWED_MEDIA_HOSTS=.* without scheme, port or path"):
        load_settings()


@pytest.mark.parametrize("name", ["host", "triton_host"])
def test_an_empty_address_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name.upper()}=''"):
        load_settings(**{name: ""})


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("10.1.2.3", "10.1.2.3"), ("box", "box")]
)
def test_a_server_on_all_addresses_is_reached_by_loopback(host: str, address: str) -> None:
    assert reachable(host) == address


@pytest.mark.parametrize(("name", "formats"), [("tool_call_parser", TOOL_FORMATS), ("reasoning_parser", REASONING_FORMATS)])
def test_parsers_go_by_their_registered_names(name: str, formats: Iterable[str]) -> None:
    for known in ("auto", "none", *formats):
        assert getattr(load_settings(model="some/model", **{name: known}), name) == known
    with pytest.raises(SettingsError, match=f"^{name.upper()}='other': .*one of auto, none, {', '.join(formats)} is expected$"):
        load_settings(**{name: "other"})


@pytest.mark.parametrize(
    ("reasoning", "tools", "fit"),
    [
        ("openai_gptoss", "openai", True),
        ("openai_gptoss", "none", True),
        ("none", "openai", True),
        ("openai_gptoss", "hermes", False),
        ("qwen3", "openai", False),
        ("granite", "hermes", True),
    ],
)
def test_the_two_parsers_of_gpt_oss_go_with_each_other_only(reasoning: str, tools: str, fit: bool) -> None:
    if fit:
        assert load_settings(reasoning_parser=reasoning, tool_call_parser=tools).reasoning_parser == reasoning
        return
    with pytest.raises(SettingsError, match=f"^TOOL_CALL_PARSER={tools} and REASONING_PARSER={reasoning} are of different"):
        load_settings(reasoning_parser=reasoning, tool_call_parser=tools)


def test_the_bundled_model_has_parsers_unless_somebody_wants_none_and_another_model_has_none() -> None:
    assert (load_settings().tool_parser_name, load_settings().reasoning_parser_name) == ("hermes", "qwen3")
    assert load_settings(tool_call_parser="none").tool_parser_name is None
    assert load_settings(model="some/model").tool_parser_name is None
    assert load_settings(model="some/model", reasoning_parser="granite").reasoning_parser_name == "granite"
