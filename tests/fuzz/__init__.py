"""Every parser on texts that nobody would write, and on those that somebody nearly wrote."""
