"""Fused producers: `base` is the interface, one file per implementation, chosen once with a reason."""
