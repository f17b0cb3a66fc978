"""Turns a plan into files in memory; `write.py` alone touches the disk."""
