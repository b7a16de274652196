"""The report: tables, figures for print and a page to look at, from the records of runs alone."""
