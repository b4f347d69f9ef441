"""Reads pictures and videos from the one folder that the operator opened for requests: `file://` URLs, and nothing outside of it.

A path is judged twice: by its name before anything is opened, and then by the file that was really opened, so that a link
that changes in between leads nowhere.
"""

import os
import stat
from urllib.parse import unquote_to_bytes, urlsplit

from triton_renderer.render.bad_media import BadMedia
from triton_renderer.settings import SettingsError

SCHEME = "file:"
_HOSTS = ("", "localhost")


class LocalFiles:
    """Files below a folder. Safe to use from several threads."""

    def __init__(self, folder: str | None) -> None:
        """`folder` None: no file is read. Raises SettingsError where it is no absolute path of a folder."""
        self._root: bytes | None = None
        if folder is not None:
            # Bytes, since a stage's interpreter may take names for ASCII.
            path = os.fsencode(folder)
            if not os.path.isabs(path) or not os.path.isdir(path):
                raise SettingsError(f"ALLOWED_LOCAL_MEDIA_PATH={folder!r}: the absolute path of a folder is expected")
            self._root = os.path.realpath(path)

    def read(self, url: str, max_bytes: int) -> bytes:
        """The file behind a file URL, of at most `max_bytes`.

        Raises BadMedia where no files are read, or this one is not below the folder, not a plain file, or too large. The
        message says nothing of what is where on this machine.
        """
        if self._root is None:
            raise BadMedia("this server reads no files of its own: it has no ALLOWED_LOCAL_MEDIA_PATH")
        path = os.path.realpath(_path_of(url))
        self._check(path)
        try:
            # A pipe without a writer would hold up the opening.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise BadMedia("there is no such file in the folder that this server reads media from") from error
        try:
            self._check(os.readlink(f"/proc/self/fd/{descriptor}".encode()))
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BadMedia("the URL names something else than a file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(max_bytes + 1)
        finally:
            os.close(descriptor)
        if len(data) > max_bytes:
            raise BadMedia(f"the file is larger than {max_bytes} bytes")
        return data

    def _check(self, path: bytes) -> None:
        if self._root is None or os.path.commonpath([self._root, path]) != self._root:
            raise BadMedia("the file is not in the folder that this server reads media from")


def _path_of(url: str) -> bytes:
    try:
        target = urlsplit(url)
        host, path = target.hostname or "", unquote_to_bytes(target.path)
    except ValueError as error:
        raise BadMedia("the URL is not well formed") from error
    if host not in _HOSTS:
        raise BadMedia("a file URL names no host: file:///path/of/the/file")
    if not os.path.isabs(path) or b"\0" in path:
        raise BadMedia("a file URL holds an absolute path: file:///path/of/the/file")
    return path
