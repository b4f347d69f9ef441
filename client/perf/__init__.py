"""Measurements of a running server."""
