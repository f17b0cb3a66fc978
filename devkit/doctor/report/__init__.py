"""The report of the doctor: as a JSON document, text, Markdown and SARIF, and its stack of layers."""
