"""What a ViT does between its matrix products: `base` is the interface, one file per implementation."""
