"""Interchangeable implementations of attention and linear layers."""
