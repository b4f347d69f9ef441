"""Clients of the HTTP API, each a program of its own."""
