"""Pictures from a folder of this machine: what is inside, however it is spelled, and nothing else, whatever leads out."""

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.unit.render.helpers import chat, image_part, png, settings, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.render import Renderer
from triton_renderer.render import local_files as module
from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.local_files import LocalFiles
from triton_renderer.settings import SettingsError

PICTURE = png()
LIMIT = 10**6
OUTSIDE = "not in the folder"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`open`, the folder that is allowed, with neighbours that are not."""
    for name in ("open", "open/below", "open-too", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(PICTURE)
    (tmp_path / "open" / "a b#ü?.png").write_bytes(PICTURE)
    return tmp_path / "open"


def url(path: Path | str) -> str:
    return f"file://{quote(os.fsencode(path))}"


def read(folder: Path, address: str, limit: int = LIMIT) -> bytes:
    return LocalFiles(str(folder)).read(address, limit)


def test_files_of_the_folder_and_below_are_read(folder: Path) -> None:
    for name in ("x.png", "below/x.png", "below/../x.png", "a b#ü?.png"):
        assert read(folder, url(folder / name)) == PICTURE
    assert read(folder, f"FILE://localhost{folder}/x.png") == PICTURE
    assert read(folder, f"file:{folder}/x.png") == PICTURE
    assert read(folder, url(folder / "%78.png").replace("%25", "%")) == PICTURE


def test_a_folder_behind_a_link_is_itself(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    for address in (url(link / "x.png"), url(folder / "x.png")):
        assert read(link, address) == PICTURE


@pytest.mark.parametrize("path", ["../closed/x.png", "../open-too/x.png", "below/../../closed/x.png", "..", "../missing"])
def test_what_is_outside_is_refused_whether_it_is_there_or_not(folder: Path, path: str) -> None:
    for spelled in (path, quote(path, safe=""), path.replace("..", "%2e%2E")):
        with pytest.raises(BadMedia, match=OUTSIDE):
            read(folder, f"file://{folder}/{spelled}")


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ", "/", "/dev/zero", "/no/such/file"])
def test_other_places_of_the_machine_are_refused(folder: Path, path: str) -> None:
    with pytest.raises(BadMedia, match=OUTSIDE):
        read(folder, f"file://{path}")


def test_links_lead_nowhere_outside(folder: Path) -> None:
    (folder / "file.png").symlink_to(folder.parent / "closed" / "x.png")
    (folder / "way").symlink_to(folder.parent / "closed")
    (folder / "passwd").symlink_to("/etc/passwd")
    for name in ("file.png", "way/x.png", "passwd"):
        with pytest.raises(BadMedia, match=OUTSIDE):
            read(folder, url(folder / name))
    (folder / "inside.png").symlink_to(folder / "below" / "x.png")
    assert read(folder, url(folder / "inside.png")) == PICTURE


def test_a_file_that_becomes_a_link_after_it_was_judged_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def swap(path: bytes, flags: int) -> int:
        os.unlink(path)
        os.symlink(folder.parent / "closed" / "x.png", path)
        return real_open(path, flags)

    monkeypatch.setattr(module.os, "open", swap)
    with pytest.raises(BadMedia, match=OUTSIDE):
        read(folder, url(folder / "x.png"))


@pytest.mark.timeout(10)
def test_only_plain_files_are_read(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for name in ("pipe", "below"):
        with pytest.raises(BadMedia, match=r"something else than a file|no such file"):
            read(folder, url(folder / name))
    with pytest.raises(BadMedia, match="no such file"):
        read(folder, url(folder / "missing.png"))


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("file://elsewhere/x.png", "names no host"),
        ("file://127.0.0.1/x.png", "names no host"),
        ("file:x.png", "absolute path"),
        ("file:", "absolute path"),
        ("file:///x%00.png", "absolute path"),
        ("file://[/x.png", "not well formed"),
    ],
)
def test_other_file_urls_are_refused(folder: Path, address: str, reason: str) -> None:
    with pytest.raises(BadMedia, match=reason):
        read(folder, address)


def test_the_size_is_limited(folder: Path) -> None:
    address = url(folder / "x.png")
    assert read(folder, address, len(PICTURE)) == PICTURE
    with pytest.raises(BadMedia, match=f"larger than {len(PICTURE) - 1} bytes"):
        read(folder, address, len(PICTURE) - 1)


def test_a_setting_that_is_no_folder_is_refused(folder: Path) -> None:
    for wrong in ("open", str(folder / "x.png"), str(folder / "missing"), ""):
        with pytest.raises(SettingsError, match=r"^ALLOWED_LOCAL_MEDIA_PATH="):
            LocalFiles(wrong)


def test_a_request_names_a_file_like_any_other_picture(folder: Path) -> None:
    renderer = Renderer.load(settings(allowed_local_media_path=str(folder)))
    named = chat(renderer, user({"type": "image_url", "image_url": {"url": url(folder / "x.png")}}))
    assert named.items == chat(renderer, user(image_part(PICTURE))).items
    with pytest.raises(InvalidRequest, match=OUTSIDE) as caught:
        chat(renderer, user({"type": "image_url", "image_url": {"url": url(folder / "../closed/x.png")}}))
    assert caught.value.param == "messages.0.content.0"
    assert caught.value.status == 400
    assert str(folder.parent) not in caught.value.message


def test_all_that_a_requests_urls_bring_together_is_limited(folder: Path) -> None:
    renderer = Renderer.load(settings(allowed_local_media_path=str(folder), max_request_bytes=2 * len(PICTURE) + 10))
    part = {"type": "image_url", "image_url": {"url": url(folder / "x.png")}}
    assert len(chat(renderer, user(part, part)).items) == 4
    with pytest.raises(InvalidRequest, match="larger than 10 bytes") as caught:
        chat(renderer, user(part, part, part))
    assert caught.value.param == "messages.0.content.2"
