"""Judge facts: checks, findings, and the one root cause. Pure."""
