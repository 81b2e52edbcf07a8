"""As much of S3 on loopback as pyarrow asks of it, with every request counted."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class S3Server:
    """Buckets in memory. `objects` maps "bucket/key" to (bytes, when it was written)."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.requests: Counter[str] = Counter()
        self.refuse: str | None = None
        """The kind of request that is answered with "access denied" (PUT, GET, ...)."""
        self._uploads: dict[str, dict[int, bytes]] = {}
        handler = type("Handler", (_Handler,), {"s3": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def uri(self, path: str) -> str:
        """Return the URL of `path`, which starts with a bucket's name."""
        where = f"127.0.0.1:{self._server.server_port}"
        return f"s3://key:secret@{path}?region=us-east-1&scheme=http&endpoint_override={where}"

    def __enter__(self) -> S3Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(
        self, method: str, path: str, query: dict[str, str], body: bytes, copied: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        bucket, _, key = path.partition("/")
        if method == "GET" and not key:
            self.requests["LIST"] += 1
            return 200, {}, self._listing(bucket, query)
        self.requests[method] += 1
        if method == self.refuse:
            return 403, {}, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        now = datetime.now(UTC)
        if method == "POST" and "uploads" in query:
            upload = f"upload-{len(self._uploads)}"
            self._uploads[upload] = {}
            return 200, {}, f"<R><UploadId>{upload}</UploadId></R>".encode()
        if method == "POST":
            parts = self._uploads.pop(query["uploadId"])
            self.objects[path] = b"".join(parts[number] for number in sorted(parts)), now
            return 200, {}, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
        if method == "PUT" and "partNumber" in query:
            self._uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, {"ETag": '"x"'}, b""
        if method == "PUT" and copied is not None:
            self.objects[path] = self.objects[copied.lstrip("/")][0], now
            return 200, {}, b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>"
        if method == "PUT":
            self.objects[path] = body, now
            return 200, {"ETag": '"x"'}, b""
        if method == "DELETE":
            self.objects.pop(path, None)
            return 204, {}, b""
        if not key:
            return 200, {}, b""
        if path not in self.objects:
            return 404, {}, b"" if method == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>"
        data, written = self.objects[path]
        return 200, {"Last-Modified": format_datetime(written, usegmt=True), "ETag": '"x"'}, data

    def _listing(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        contents, common = [], set()
        for path, (data, written) in sorted(self.objects.items()):
            of, _, key = path.partition("/")
            if of != bucket or not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                common.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>"
                f"<LastModified>{written.strftime('%Y-%m-%dT%H:%M:%S.%fZ')}</LastModified></Contents>"
            )
        folders = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(common)
        )
        count = len(contents) + len(common)
        return (
            f"<ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{''.join(contents)}{folders}</ListBucketResult>"
        ).encode()


class _Handler(BaseHTTPRequestHandler):
    s3: S3Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def handle_expect_100(self) -> bool:
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        copied = self.headers.get("x-amz-copy-source")
        status, headers, data = self.s3.answer(
            self.command,
            unquote(url.path).lstrip("/"),
            query,
            self._body(),
            None if copied is None else unquote(copied),
        )
        wanted = self.headers.get("Range")
        if status == 200 and wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            whole, data = len(data), data[int(first) : int(last) + 1 if last else None]
            status, headers["Content-Range"] = 206, f"bytes {first}-{int(first) + len(data) - 1}/{whole}"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return self._unchunked(self._chunks())
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return self._unchunked(data)

    def _chunks(self) -> bytes:
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def _unchunked(self, data: bytes) -> bytes:
        """Take off the framing that newer S3 clients put around a body to send its checksum after it."""
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        pieces = []
        while data:
            head, _, data = data.partition(b"\r\n")
            size = int(head.split(b";")[0], 16)
            if not size:
                break
            pieces.append(data[:size])
            data = data[size + 2 :]
        return b"".join(pieces)
