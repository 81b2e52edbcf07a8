"""Renderers: a program as text, as data, or as a drawing; may import core."""

from __future__ import annotations

from penstock import Components, hookimpl


@hookimpl
def penstock_renderers() -> Components:
    """Return the renderers that come with penstock."""
    return {
        "text": "penstock.plugins.describe.text:to_text",
        "mermaid": "penstock.plugins.describe.shapes:to_mermaid",
        "dot": "penstock.plugins.describe.shapes:to_dot",
        "svg": "penstock.plugins.describe.svg:to_svg",
        "json": "penstock.plugins.describe.data:to_json",
    }
