"""A project's own requirements, by the package manager that it uses."""
