"""What may be known about a machine. Pure data: nothing here reads the machine."""
