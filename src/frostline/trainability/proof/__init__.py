"""The proof of a run: gradients, movement, forwards and the frozen part, looked at while the model trains."""
