"""What services import that show the pages of an application. The names are those of `penstock.plugins.console`."""

from penstock.plugins.console.pages import console_app

__all__ = ["console_app"]
