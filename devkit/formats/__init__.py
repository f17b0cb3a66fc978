"""Formats that several parts of devkit read and edit: JSON with comments, and shell commands. Pure functions of text."""
