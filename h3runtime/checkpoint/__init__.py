"""Files on disk -> tensors under the model's own names: strict reading, strict loading; `synthetic` makes some up."""
