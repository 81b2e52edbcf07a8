"""What services import that show the pages of an application. The names are those of the plugin."""

from penstock.plugins.operate.console.pages import console_app

__all__ = ["console_app"]
