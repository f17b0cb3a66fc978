"""The checks: a module or package for each prefix of their codes."""
