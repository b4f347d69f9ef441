"""What goes wrong with a picture, before it is known which part of the request it belongs to."""


class BadMedia(Exception):
    """A picture cannot be had or read. The message is for the client."""
