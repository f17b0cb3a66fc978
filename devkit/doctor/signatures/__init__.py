"""Known errors: the failure catalog, and the search for its error texts in what users paste."""
