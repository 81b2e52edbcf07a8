"""The HTTP server of queries: JSON over starlette and uvicorn, which the extra `serve` installs."""
