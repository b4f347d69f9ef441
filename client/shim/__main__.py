"""`python -m client.shim`: serves the app with the settings of the environment, until SIGTERM or SIGINT."""

import asyncio
import logging
import socket
import sys
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

from client.shim.app import create_app
from triton_renderer.settings import Settings, SettingsError, load_settings

FINISH_S = 3
"""After the signal requests may finish for this long; then they fail with a clear error."""
STOP_S = 5
"""What is still there this long after the signal is cut off."""


class Server(uvicorn.Server):
    """uvicorn, but open requests are told that the server stops before their connections are cut."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.shim_port,
            loop="uvloop",
            http="httptools",  # with uvloop half of what a small request costs in pure Python
            log_config=None,
            access_log=settings.log_level == "debug",
            timeout_graceful_shutdown=STOP_S,
            ws="none",
            server_header=False,
        )
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        open_requests = self._app.state.shim.open_requests
        timer = asyncio.get_running_loop().call_later(FINISH_S, open_requests.interrupt_all, "the server is shutting down")
        await super().shutdown(sockets)
        timer.cancel()


def main() -> int:
    """The process's exit status: 2 for an unusable setting."""
    try:
        settings = load_settings()
    except SettingsError as error:
        print(f"shim: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        stream=sys.stderr, level=settings.log_level.upper(), format="%(asctime)s shim %(levelname)s %(message)s", force=True
    )
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again, after everything has ended
        Server(create_app(settings), settings).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
