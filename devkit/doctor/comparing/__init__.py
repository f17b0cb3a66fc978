"""What differs between the reports of many machines, which machine is the odd one out, and which check it matters to.

A report is cut into leaves (`facts_leaves`, `report_leaves`), the leaves are counted without keeping the reports
(`tally`, `gathered`), and only machines that stand out are read again and judged (`weighing`).
"""
