"""``convertkit schema [NAME]``: the JSON Schema of a report or document, as this installation validates against it."""

from __future__ import annotations

import click

from convertkit.cli.common import shared_options
from convertkit.cli.runner import Outcome, Shared, document_of, json_text, run


@click.command("schema")
@click.argument("name", required=False)
@shared_options
def command(name: str | None, shared: Shared) -> int:
    """Print the JSON Schema of the report or document NAME; without NAME list them all."""
    from convertkit.release.schemas import load_schema, schema_names

    def work(progress: object) -> Outcome:
        names = schema_names()
        if name is None:
            return Outcome(document_of("schemas", {"schemas": names}), "\n".join(names))
        if name not in names:
            raise click.BadArgumentUsage(f"no schema is named {name!r}; there are: {', '.join(names)}")
        schema = load_schema(name)
        return Outcome(schema, json_text(schema))

    return run(shared, work)
