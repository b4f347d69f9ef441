"""What ends a start: one line for the person at the terminal. (`triton_renderer.errors` is for clients.)"""


class LaunchError(Exception):
    """The server cannot be started, or has ended by itself. The message is one line that says what to do."""
