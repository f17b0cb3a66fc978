"""Turns a request and facts into a plan with reasons, or into a conflict. Pure."""
