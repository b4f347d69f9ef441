from pathlib import Path

import pytest

from triton_renderer.launcher.logs import LogFollower, failed_model, interesting, loaded_model

LOADED = "I1130 12:00:00.000001 42 model_lifecycle.cc:839] \"successfully loaded 'render'\""
FAILED = (
    "E1130 12:00:00.000001 42 model_lifecycle.cc:642] \"failed to load 'encode' version 1: Internal: "
    'OSError: no such model\\n\\nAt:\\n  /somewhere/model.py(3): initialize\\n"'
)
DIED = (
    "E1130 12:00:00.000001 42 model_lifecycle.cc:642] "
    "\"failed to load 'encode' version 1: Internal: Stub process 'encode_0_0' is not healthy.\""
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def follow(log: Path, *pieces: str) -> list[str]:
    seen: list[str] = []
    follower = LogFollower(log, seen.append)
    follower.start()
    with log.open("a", newline="") as file:
        for piece in pieces:
            file.write(piece)
            file.flush()
    follower.finish()
    return seen


def test_everything_written_before_the_end_is_seen(log: Path) -> None:
    assert follow(log, "one\ntw", "o\n", "", "three without an end") == ["one", "two", "three without an end"]


def test_what_was_there_already_is_seen(log: Path) -> None:
    log.write_text("early\n")
    assert follow(log, "late\n") == ["early", "late"]


def test_a_progress_bar_is_shown_now_and_then(log: Path) -> None:
    bar = "".join(f"{percent}%\r" for percent in range(100))
    assert follow(log, bar, "100%\n", "done\n") == ["0%", "100%", "done"]


def test_broken_text_does_not_end_the_following(log: Path) -> None:
    log.write_bytes(b"\xff\xfe\nfine\n")
    assert follow(log) == ["\ufffd\ufffd", "fine"]


def test_a_loaded_model_is_recognised() -> None:
    assert loaded_model(LOADED) == "render"
    assert loaded_model(FAILED) is None


def test_a_failed_model_is_recognised_with_its_reason_in_one_line() -> None:
    assert failed_model(FAILED) == ("encode", "OSError: no such model")
    assert failed_model(LOADED) is None


def test_a_stage_that_died_while_loading_is_called_so() -> None:
    assert failed_model(DIED) == ("encode", "its process died (Stub process 'encode_0_0' is not healthy.)")


@pytest.mark.parametrize(
    "line",
    [
        LOADED,
        "",
        "  ",
        "+----+----+",
        "| a  | b  |",
        'W1130 12:00:00.1 42 pinned_memory_manager.cc:273] "Unable to allocate: CUDA driver version is insufficient for it"',
        'E1130 12:00:00.1 42 server.cc:241] "CudaDriverHelper has not been initialized."',
    ],
)
def test_tables_information_and_words_about_a_missing_gpu_stay_in_the_file(line: str) -> None:
    assert interesting(line) is None


def test_errors_of_triton_are_shown_in_readable_lines() -> None:
    shown = interesting(FAILED)
    assert shown is not None
    assert shown.splitlines()[0] == "failed to load 'encode' version 1: Internal: OSError: no such model"
    assert shown.splitlines()[-1] == "  /somewhere/model.py(3): initialize"


def test_what_a_stage_prints_is_shown() -> None:
    assert interesting("encode: 12 tensors loaded") == "encode: 12 tensors loaded"
