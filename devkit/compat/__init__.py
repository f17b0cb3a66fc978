"""Version knowledge as data: tables with their sources, and typed rows over them."""
