"""Reports: tables, figures and pages from records. Nothing here trains."""
