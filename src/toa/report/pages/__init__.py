"""Pages of fitted estimators: one HTML file each, which needs no other file.

    toa.report.page(forecaster, "forecast.html", table)
    toa.report.page(detector, "events.html", rows, labels)
    toa.report.page(classifier, "classes.html", cases, labels)

`parts` has what all pages share; `forecast`, `events` and `cases` have a page each. They read the frozen values of the
estimators, and import them: pages are above the estimators, and what an estimator's own `page` calls is this function.
"""

from functools import singledispatch
from pathlib import Path
from typing import Any

from toa.report.pages.cases import cases_page
from toa.report.pages.events import events_page
from toa.report.pages.forecast import forecast_page


@singledispatch
def page(estimator: object, path: str | Path, data: Any, *labels: Any, **options: Any) -> Path:
    """Write the page of a fitted estimator; arguments and options are those of its method `page`.

    Raises:
        TypeError: If it is no estimator of `toa`.
    """
    raise TypeError(
        f"estimator must be a fitted Forecaster, AnomalyDetector or Classifier, got {type(estimator).__name__}."
    )


page.register(forecast_page)
page.register(events_page)
page.register(cases_page)
