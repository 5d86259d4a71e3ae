"""What operators see: logs, metrics, memory, timing. Plain numbers only: no torch, nothing of the other packages."""
