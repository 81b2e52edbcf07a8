"""Schemes of URLs: of a location that is a path or a URL."""

from __future__ import annotations


def url_scheme(location: str) -> str:
    """Return the scheme of a URL in small letters, since case does not matter in it (RFC 3986, 3.1); "" for a path."""
    scheme, mark, _ = location.partition("://")
    return scheme.lower() if mark else ""


def with_small_scheme(location: str) -> str:
    """Return a URL with its scheme in small letters, and a path as it is.

    >>> with_small_scheme("S3://Bucket/State"), with_small_scheme("State")
    ('s3://Bucket/State', 'State')
    """
    scheme = url_scheme(location)
    return scheme + location[len(scheme) :]
