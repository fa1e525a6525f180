"""All built-in layouts, most specific first."""

from __future__ import annotations

from collections.abc import Mapping

from convertkit.layouts.drafters import DRAFTERS
from convertkit.layouts.layout import Layout
from convertkit.layouts.models import CAUSAL_LM, MULTIMODAL_LM, UNKNOWN

LAYOUTS: tuple[Layout, ...] = (*DRAFTERS, CAUSAL_LM, MULTIMODAL_LM, UNKNOWN)

LAYOUTS_BY_NAME: Mapping[str, Layout] = {layout.name: layout for layout in LAYOUTS}
