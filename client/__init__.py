"""What stands in front of Triton: the HTTP shim, and examples of clients."""
