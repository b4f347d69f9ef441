"""The Anthropic Messages API: its request as a chat request, the chat answer as its answer. Pure translation."""
