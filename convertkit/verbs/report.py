"""``report``: the reports of a folder as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path

from convertkit.errors import refusal
from convertkit.release.page import render_page
from convertkit.release.paths import PAGE
from convertkit.release.summary import View, read_view, reports_blamed


def report(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    compare: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> View:
    """Write the page of a folder with reports to ``out`` (``REPORT.html`` in the working directory if None).

    No weight is read: the page is as true as the reports. ``compare`` is a second folder that is shown beside it.

    Raises:
        ConvertError: E_NO_REPORTS, E_OUT_EXISTS, E_WRITE, reports that are none.
    """
    folders = [Path(folder), *([] if compare is None else [Path(compare)])]
    with reports_blamed(folders):
        views = [read_view(place) for place in folders]
        data = render_page(views[0], views[1] if len(views) > 1 else None)
    place = Path(PAGE if out is None else out)
    try:
        with place.open("wb" if force else "xb") as stream:
            stream.write(data)
    except FileExistsError:
        raise refusal("E_OUT_EXISTS", "the page exists", file=place.name, fix="use --force") from None
    except OSError as error:
        raise refusal("E_WRITE", f"cannot write: {error.strerror}", file=place.name) from None
    return views[0]
