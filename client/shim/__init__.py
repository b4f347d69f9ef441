"""The HTTP server: OpenAI and renderer requests in, tensors to Triton's models, documents out. No model code."""
