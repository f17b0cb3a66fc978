"""The machine: operating system, environment, resources, programs, Python."""
