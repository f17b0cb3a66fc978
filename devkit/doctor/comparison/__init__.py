"""The comparison of many machines' reports: leaves are counted without keeping the reports, and only outliers are read again."""
