"""Conditioning: prompt and media -> text and vision features, through our own Qwen3-VL cut at its last kept layer."""
