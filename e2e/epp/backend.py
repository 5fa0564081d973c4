# SPDX-License-Identifier: Apache-2.0
"""A model server that answers with what it saw of a request.

The path's query steers it: status=N, sse=N (events) with gap=SECONDS between them and
held=N (that many events, then the rest once the test says so), size=N (bytes of answer),
trailer=1 (answer with a trailer), wait=SECONDS before a whole answer.
"""
import hashlib
import json
import socket
import socketserver
import threading
import time
import urllib.parse


class Backend(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, request_queue_size = True, True, 128

    def __init__(self, addr, model):
        host, port = addr.rsplit(":", 1)
        super().__init__((host, int(port)), Handler)
        self.addr, self.model = addr, model
        self.requests, self.left = [], []  # what was asked, and of which the client left
        self.open = set()
        self.metrics_fail = False
        self.go_on = threading.Event()  # what is held goes on
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def close(self):
        """Dies: the port is closed and every connection cut."""
        self.shutdown()
        self.server_close()
        for s in list(self.open):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.server.open.add(self.request)

    def finish(self):
        self.server.open.discard(self.request)
        try:
            super().finish()
        except OSError:
            pass

    def handle(self):
        try:
            while (line := self.rfile.readline().decode("latin1")).strip():
                self.one(*line.split()[:2])
        except (ConnectionError, TimeoutError):
            return

    def one(self, method, target):
        headers = []
        while (h := self.rfile.readline().decode("latin1").strip()):
            k, _, v = h.partition(":")
            headers.append((k.lower(), v.strip()))
        path, _, query = target.partition("?")
        ask = {k: v[0] for k, v in urllib.parse.parse_qs(query).items()}
        if path == "/metrics" and self.server.metrics_fail:
            return self.answer(500, b"", "text/plain")
        if method == "GET":
            body = {"/v1/models": json.dumps({"object": "list", "data": [{"id": self.server.model, "object": "model"}]}),
                    "/metrics": 'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\n'}.get(path, "")
            return self.answer(200, body.encode(), "text/plain")
        h = dict(headers)
        digest, n, start, trailers = hashlib.sha256(), 0, b"", {}
        for part in self.body(h, trailers):
            digest.update(part)
            n += len(part)
            if len(start) < 4096:
                start += part[:4096]
        seen = {"sha256": digest.hexdigest(), "bytes": n, "headers": headers, "trailers": trailers, "server": self.server.addr,
                "start": start.decode("utf8", "replace"), "path": path}
        self.server.requests.append(seen)
        try:
            if "sse" in ask:
                self.stream(int(ask["sse"]), float(ask.get("gap", 0.01)), int(ask.get("held", -1)))
            elif "size" in ask:
                self.answer(200, b"x" * int(ask["size"]), "application/octet-stream")
            elif "trailer" in ask:
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n"
                                 b"5\r\nhello\r\n0\r\nx-sum: 42\r\n\r\n")
            else:
                time.sleep(float(ask.get("wait", 0)))
                self.answer(int(ask.get("status", 200)), json.dumps(seen).encode(), "application/json")
        except OSError:
            self.server.left.append(seen)
            raise ConnectionError from None

    def body(self, h, trailers):
        if "chunked" not in h.get("transfer-encoding", ""):
            left = int(h.get("content-length", 0))
            while left > 0:
                b = self.rfile.read(min(left, 1 << 16))
                if not b:
                    raise ConnectionError
                left -= len(b)
                yield b
            return
        while True:
            line = self.rfile.readline()
            if not line:
                raise ConnectionError
            n = int(line, 16)
            if n == 0:
                break
            while n > 0:
                b = self.rfile.read(min(n, 1 << 16))
                if not b:
                    raise ConnectionError
                n -= len(b)
                yield b
            self.rfile.readline()
        while (t := self.rfile.readline().decode().strip()):
            k, _, v = t.partition(":")
            trailers[k.lower()] = v.strip()

    def answer(self, status, body, kind):
        self.wfile.write(f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        self.wfile.write(body)

    def stream(self, events, gap, held):
        self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for i in range(events):
            if i == held:
                self.server.go_on.wait(60)
            self.event('{"choices":[{"index":0,"delta":{"content":"tok%d"}}]}' % i)
            time.sleep(gap)
        self.event('{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
        self.event('{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":%d}}' % events)
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        b = b"data: " + data.encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(b), b))
