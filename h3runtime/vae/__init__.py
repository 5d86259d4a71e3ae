"""The two VAEs: video (tiles in space, chunks in time) and audio."""
