"""What a causal CNN does between its convolutions: `base` is the interface, one file per implementation."""
