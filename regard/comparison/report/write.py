"""A comparison's report and its figures, as files."""

import json
from pathlib import Path
from typing import Any

from regard.comparison.report.page import page
from regard.comparison.report.summary import summary
from regard.comparison.results import Comparison
from regard.storage import write_together

REPORT, FIGURES = "report.html", "report.json"


def figures(comparison: Comparison) -> dict[str, Any]:
    """All that the report says."""
    return {"summary": summary(comparison), **comparison.figures()}


def write_report(comparison: Comparison, out: Path) -> None:
    """The report and all its figures, both or neither."""
    content = json.dumps(figures(comparison), indent=2, allow_nan=False)
    write_together({out / REPORT: page(comparison), out / FIGURES: content + "\n"})
