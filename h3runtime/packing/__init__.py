"""Geometry, segment order, rotary positions, modality tags: numpy and integers, runs anywhere."""
