"""Everything around the server: assembling the Triton runtime, starting, watching and stopping its processes."""
