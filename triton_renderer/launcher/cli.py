"""`triton-renderer`: every setting is a flag, an environment variable and a make variable; see `triton-renderer settings`."""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from triton_renderer import __version__
from triton_renderer.launcher.checks import check_all
from triton_renderer.launcher.describe import describe, table
from triton_renderer.launcher.errors import LaunchError
from triton_renderer.launcher.example import example_curl
from triton_renderer.launcher.packaged_models import with_packaged_model
from triton_renderer.launcher.processes import StopSignal
from triton_renderer.launcher.runtime import DEFAULTS, MODEL_REPOSITORY, install_perf_analyzer, install_runtime
from triton_renderer.launcher.supervisor import POLL_S, Stopped, say, serve
from triton_renderer.settings import Settings, SettingsError, load_settings

SWITCHES = {"--enable-scale-out": "vllm_enable_scale_out_endpoints"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, 1 for a start that failed, 2 for a wrong flag or setting."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except SettingsError as error:
        return _fail(error, 2)
    except LaunchError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code


def _fail(error: Exception, code: int) -> int:
    print(f"triton-renderer: error: {error}", file=sys.stderr, flush=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="triton-renderer", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = _command(commands, "serve", _serve, "start Triton and the shim, and run until Ctrl-C")
    _add_settings(command)
    command.add_argument("--log-dir", type=Path, help="folder for the logs (default: build/logs/<SHIM_PORT>)")

    command = _command(commands, "triton-command", _triton_command, "print the plain command that starts Triton alone")
    _add_settings(command)

    _command(commands, "settings", _settings, "list all settings with their defaults")

    command = _command(commands, "install", _install, "get the Triton runtime, as serve does where it is missing")
    command.add_argument("--perf-analyzer", action="store_true", help="perf_analyzer too")

    command = _command(commands, "perf-analyzer", _perf_analyzer, "run Triton's perf_analyzer: perf-analyzer -- ARGUMENTS")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="perf_analyzer's own arguments")
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text, usage=f"triton-renderer {name} …", allow_abbrev=False)
    command.set_defaults(run=run)
    return command


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting. Its value is taken as it is written: `load_settings` judges flags and variables alike."""
    for name, field in Settings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, metavar="VALUE", default=argparse.SUPPRESS, help=field.description)
    for flag, name in SWITCHES.items():
        parser.add_argument(flag, dest=name, action="store_const", const="1", default=argparse.SUPPRESS, help=f"--{name} 1")


def _load_settings(options: argparse.Namespace) -> Settings:
    settings = load_settings(**{name: value for name, value in vars(options).items() if name in Settings.model_fields})
    return with_packaged_model(settings)


def _serve(options: argparse.Namespace) -> int:
    settings = _load_settings(options)
    check_all(settings)
    install_runtime()  # while Ctrl-C still ends pip and all
    signals = StopSignal()
    signals.install()
    log_dir = options.log_dir or Path("build", "logs", str(settings.shim_port))
    say(f"starting {settings.model_name} ({settings.model}); logs in {log_dir}")
    try:
        with serve(settings, log_dir, signals=signals) as stack:
            say(
                f"ready: {settings.model_name} at {stack.shim_url} (Triton: HTTP {settings.triton_http_port}, "
                f"gRPC {settings.triton_grpc_port}, metrics {settings.triton_metrics_port}); try: "
                + example_curl(settings, stack.shim_url)
            )
            while not signals.number:
                stack.check()
                time.sleep(POLL_S)
            say("stopping …")
    except Stopped:
        return 128 + signals.number
    return 0


def _triton_command(options: argparse.Namespace) -> int:
    settings = _load_settings(options)
    runtime = install_runtime()
    variables = {name: value for name, value in settings.environment().items() if name.lower() in settings.model_fields_set}
    variables.pop("API_KEY", None)  # only the shim asks for it
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    assignments += [f'{name}="${{{name}:-{value}}}"' for name, value in DEFAULTS.items()]
    for name, folders in runtime.search_paths().items():
        assignments.append(f'{name}={shlex.quote(":".join(map(str, folders)))}"${{{name}:+:${name}}}"')
    program, *flags = runtime.command(settings, _shown(MODEL_REPOSITORY))
    words = [str(_shown(Path(program))), *flags]
    say(" \\\n  ".join([*assignments, *map(shlex.quote, words)]))
    return 0


def _shown(path: Path) -> Path:
    """A path below the working directory, as seen from there."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _settings(options: argparse.Namespace) -> int:
    say(table(describe()))
    return 0


def _install(options: argparse.Namespace) -> int:
    install_runtime()
    if options.perf_analyzer:
        install_perf_analyzer()
    return 0


def _perf_analyzer(options: argparse.Namespace) -> int:
    analyzer = install_perf_analyzer()
    environment = {**os.environ, **analyzer.environment()}
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    os.execve(analyzer.program, [str(analyzer.program), *arguments], environment)


if __name__ == "__main__":
    sys.exit(main())
