"""Files on disk -> tensors under the model's own names: strict reading, strict loading, and the synthetic sets."""
