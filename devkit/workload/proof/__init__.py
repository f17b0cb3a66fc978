"""TODO proof."""
