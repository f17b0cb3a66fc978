"""Checks of the NVIDIA driver on the host (DRV)."""
