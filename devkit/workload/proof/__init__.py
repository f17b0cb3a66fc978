"""The proof: its stages, the models and runs that they share, and the program that runs them."""
