from pathlib import Path
from typing import Any

import pytest

from triton_renderer.launcher import cli
from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.runtime import Runtime
from triton_renderer.settings import Settings

VALUES = {
    "model": "some/model",
    "served_model_name": "name",
    "role": "all",
    "host": "127.0.0.2",
    "triton_host": "127.0.0.3",
    "shim_port": "9100",
    "triton_http_port": "9101",
    "triton_grpc_port": "9102",
    "triton_metrics_port": "9103",
    "max_model_len": "77",
    "dtype": "float32",
    "tool_call_parser": "hermes",
    "reasoning_parser": "none",
    "api_key": "secret",
    "allowed_media_hosts": "a.example,b.example",
    "allowed_local_media_path": "/srv/pictures",
    "max_request_bytes": "4096",
    "trust_request_chat_template": "1",
    "trust_request_mm_kwargs": "1",
    "vllm_enable_scale_out_endpoints": "1",
    "encoder_cache_bytes": "5",
    "max_image_pixels": "6",
    "max_images": "7",
    "max_videos": "3",
    "max_video_frames": "90",
    "max_running_requests": "8",
    "max_step_tokens": "600",
    "kv_cache_bytes": "700",
    "prefix_caching": "0",
    "cuda_graphs": "0",
    "attention_kernel": "flash_attention_3",
    "max_waiting_requests": "9",
    "queue_timeout_s": "9.5",
    "request_timeout_s": "10.5",
    "log_level": "debug",
}


@pytest.fixture(autouse=True)
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*Settings.model_fields, "enable_scale_out"]:
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What `serve` would have been started with: the checks, which come right after the settings, end it."""
    seen: list[Settings] = []

    def check_all(settings: Settings) -> None:
        seen.append(settings)
        raise LaunchError("far enough")

    monkeypatch.setattr(cli, "check_all", check_all)
    return seen


def serve(*flags: str) -> int:
    return cli.main(["serve", *flags])


def flags_for(values: dict[str, str]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", value)]


def test_values_above_cover_every_setting() -> None:
    assert VALUES.keys() == Settings.model_fields.keys()


def test_flags_and_environment_variables_give_the_same_settings(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(*flags_for(VALUES))
    for name, value in VALUES.items():
        monkeypatch.setenv(name.upper(), value)
    serve()
    from_flags, from_environment = served
    assert from_flags == from_environment
    assert from_flags.model_fields_set == Settings.model_fields.keys()
    assert from_flags.environment() == {name.upper(): value for name, value in VALUES.items()}


def test_a_flag_wins_over_the_environment(served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIM_PORT", "9100")
    monkeypatch.setenv("VLLM_ENABLE_SCALE_OUT_ENDPOINTS", "0")
    serve("--shim-port", "9200", "--enable-scale-out")
    assert served[0].shim_port == 9200
    assert served[0].vllm_enable_scale_out_endpoints


def test_an_empty_variable_counts_as_unset(served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIM_PORT", "")
    serve()
    assert served[0] == Settings()


@pytest.mark.parametrize("flag", ["--no-such-setting", "--shim", "--enable-scale"])
def test_an_unknown_or_shortened_flag_is_refused(flag: str, served: list[Settings], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        serve(flag, "1")
    assert refused.value.code == 2
    assert flag in capsys.readouterr().err
    assert not served


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shim_port", "0"),
        ("shim_port", "65536"),
        ("triton_grpc_port", "grpc"),
        ("role", "decode"),
        ("dtype", "int4"),
        ("max_model_len", "-1"),
        ("max_request_bytes", "lots"),
        ("vllm_enable_scale_out_endpoints", "perhaps"),
        ("request_timeout_s", "0"),
        ("log_level", "loud"),
    ],
)
def test_an_invalid_value_is_refused_in_one_line_that_names_it(
    name: str, value: str, served: list[Settings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(*flags_for({name: value})) == 2
    by_flag = capsys.readouterr().err
    monkeypatch.setenv(name.upper(), value)
    assert serve() == 2
    assert capsys.readouterr().err == by_flag
    assert by_flag.count("\n") == 1
    assert f"{name.upper()}={value!r}" in by_flag
    assert not served


def test_a_render_server_without_its_routes_is_refused_at_the_start(
    served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve("--role", "render", "--vllm-enable-scale-out-endpoints", "0") == 2
    error = capsys.readouterr().err
    assert error.startswith("triton-renderer: error: ROLE=render serves nothing but the render and derender routes")
    assert error.count("\n") == 1
    assert serve("--role", "render", "--enable-scale-out") == 1
    assert serve("--role", "render") == 1
    assert [settings.scale_out_enabled for settings in served] == [True, True]


def test_a_failed_start_is_one_line_and_exit_code_1(served: list[Settings], capsys: pytest.CaptureFixture[str]) -> None:
    assert serve() == 1
    assert capsys.readouterr().err == "triton-renderer: error: far enough\n"


def test_settings_are_listed_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [name.upper() for name in Settings.model_fields]
    assert any(line.split()[:2] == ["SHIM_PORT", "9000"] for line in lines)


def test_the_plain_command_holds_what_was_set_and_no_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "install_runtime", lambda: Runtime(Path("/opt/my triton")))
    assert cli.main(["triton-command", "--max-model-len", "77", "--triton-http-port", "8100", "--api-key", "secret"]) == 0
    command = capsys.readouterr().out
    assert "MAX_MODEL_LEN=77" in command
    assert "--http-port=8100" in command
    assert "'/opt/my triton/bin/tritonserver'" in command
    assert "LD_LIBRARY_PATH=" in command
    assert 'GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-100000}"' in command
    assert "secret" not in command
    assert "DTYPE" not in command


def test_perf_analyzer_gets_its_arguments_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []

    class Analyzer:
        program = tmp_path / "perf_analyzer"

        def environment(self) -> dict[str, str]:
            return {"LD_LIBRARY_PATH": "/libraries"}

    monkeypatch.setattr(cli, "install_perf_analyzer", Analyzer)
    monkeypatch.setattr("os.execve", lambda *call: calls.append(call))
    cli.main(["perf-analyzer", "--", "-m", "render", "--help"])
    [(program, arguments, environment)] = calls
    assert program == tmp_path / "perf_analyzer"
    assert arguments[1:] == ["-m", "render", "--help"]
    assert environment["LD_LIBRARY_PATH"] == "/libraries"
