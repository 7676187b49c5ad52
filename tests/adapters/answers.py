"""Reads what report.json says."""


def rows(report, table):
    """Returns the rows of a table of the report, as dicts by the keys of its columns; [] if it has no such table."""
    for one in report["details"]:
        if one["id"] == table:
            return [dict(zip((column["key"] for column in one["columns"]), row)) for row in one["rows"]]
    return []
