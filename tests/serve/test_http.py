"""Black-box tests of the HTTP transport: raw sockets against http_toy.

usage: test_http.py PATH_OF_http_toy [unittest arguments]
"""
import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TOY = None
SANITIZED = False


def flat(test, grown, limit, note=None):
    """Memory must not have grown by `limit` KiB; not asked of sanitizers, which keep freed memory."""
    if not SANITIZED:
        test.assertLess(grown, limit, note)


class Server:
    """One toy server; options are NAME=VALUE strings."""

    def __init__(self, *options):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([TOY, *options], stdout=subprocess.PIPE, stderr=self.log)
        line = self.process.stdout.readline().decode()
        if not line.startswith("ready: "):
            self.process.wait()
            raise AssertionError("no ready line: " + self.log_text())
        self.port = int(line.rsplit(":", 1)[1])

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode()

    def connect(self, timeout=10):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def counters(self):
        return get(self, "/health").json()

    def rss_kib(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        code = self.process.returncode
        text = self.log_text()
        self.log.close()
        return code, text


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


class Reader:
    """Reads answers off a socket, strictly."""

    def __init__(self, sock):
        self.sock, self.buffer = sock, b""

    def more(self):
        piece = self.sock.recv(65536)
        if not piece:
            raise EOFError(self.buffer[:200])
        self.buffer += piece

    def line(self):
        while b"\r\n" not in self.buffer:
            self.more()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line.decode("latin-1")

    def exactly(self, n):
        while len(self.buffer) < n:
            self.more()
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def head(self):
        first = self.line()
        match = re.fullmatch(r"HTTP/1\.1 (\d{3}) ([A-Za-z ]+)", first)
        assert match, first
        headers = {}
        while True:
            line = self.line()
            if not line:
                break
            name, value = line.split(": ", 1)
            headers[name.lower()] = value
        return int(match.group(1)), headers

    def chunk(self):
        n = int(self.line(), 16)
        data = self.exactly(n)
        assert self.exactly(2) == b"\r\n"
        return data

    def answer(self, head_only=False):
        status, headers = self.head()
        if status == 100:
            return Answer(status, headers, b"")
        body = b""
        if head_only or status in (204, 304):
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while True:
                piece = self.chunk()
                if not piece:
                    break
                body += piece
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        return Answer(status, headers, body)

    def rest(self):
        try:
            while True:
                self.more()
        except (EOFError, ConnectionResetError):
            data, self.buffer = self.buffer, b""
            return data


def request(method, target, body=None, *fields, version="HTTP/1.1", host=True):
    lines = [f"{method} {target} {version}"]
    if host:
        lines.append("Host: x")
    lines += fields
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


def exchange(server, data, pieces=None, head_only=False):
    with server.connect() as s:
        for piece in pieces or [data]:
            s.sendall(piece)
        return Reader(s).answer(head_only)


def get(server, target, *fields):
    return exchange(server, request("GET", target, None, *fields))


def post(server, target, body=b"{}", *fields):
    return exchange(server, request("POST", target, body, *fields))


def events(body):
    assert body.endswith(b"\n\n"), body[-40:]
    return [e for e in body.decode().split("\n\n") if e]


def wait_for(check, seconds=5):
    end = time.monotonic() + (20 * seconds if SANITIZED else seconds)
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return False


class Case(unittest.TestCase):
    options = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.options)

    @classmethod
    def tearDownClass(cls):
        code, text = cls.server.stop()
        if code != 0:
            raise AssertionError(f"server ended with {code}: {text[-4000:]}")

    def assert_error(self, answer, status, kind="BadRequestError", param=None):
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(answer.headers["content-type"], "application/json")
        self.assertIn("x-request-id", answer.headers)
        error = answer.json()["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual((error["type"], error["code"], error["param"]), (kind, status, param))
        self.assertLess(len(answer.body), 8192)
        return error["message"]

    def assert_alive(self):
        self.assertEqual(post(self.server, "/v1/echo", b"{}").status, 200)


class Framing(Case):
    options = ("max_body_bytes=1000000",)

    def test_a_request_is_answered_and_the_connection_stays_open(self):
        with self.server.connect() as s:
            reader = Reader(s)
            for i in range(5):
                s.sendall(request("POST", "/v1/echo", b"a" * i))
                answer = reader.answer()
                self.assertEqual(answer.status, 200)
                self.assertEqual(answer.json()["bytes"], i)
                self.assertNotIn("connection", answer.headers)

    def test_any_cut_of_the_bytes_gives_the_same_answer(self):
        body = b'{"a": 1}'
        plain = request("POST", "/v1/echo", body, "X-Request-Id: cut")
        chunked = (b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: cut\r\n"
                   b"Transfer-Encoding: chunked\r\n\r\n"
                   b'3;note="x"\r\n{"a\r\n05\r\n": 1}\r\n0\r\nTrailer: y\r\n\r\n')
        for data in (plain, chunked):
            whole = exchange(self.server, data).body
            self.assertEqual(json.loads(whole)["bytes"], 8)
            with self.server.connect() as s:
                reader = Reader(s)
                for i in range(len(data)):
                    s.sendall(data[i:i + 1])
                    if i % 16 == 0:
                        time.sleep(0.0005)
                self.assertEqual(reader.answer().body, whole)
                for cut in range(1, len(data), 7):
                    s.sendall(data[:cut])
                    time.sleep(0.0005)
                    s.sendall(data[cut:])
                    self.assertEqual(reader.answer().body, whole)

    def test_pipelined_requests_are_answered_in_their_order(self):
        late = request("POST", "/v1/late?ms=150", b"{}")
        data = late + b"".join(request("GET", f"/v1/echo/{i}") for i in range(50)) + \
            request("POST", "/v1/stream?events=2", b"{}") + request("GET", "/v1/echo/last")
        with self.server.connect() as s:
            reader = Reader(s)
            s.sendall(data)
            self.assertTrue(reader.answer().json()["late"])
            for i in range(50):
                self.assertEqual(reader.answer().json()["rest"], str(i))
            self.assertEqual(events(reader.answer().body)[-1], "data: [DONE]")
            self.assertEqual(reader.answer().json()["rest"], "last")

    def test_expect_continue_is_answered_before_the_body(self):
        with self.server.connect() as s:
            reader = Reader(s)
            s.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                      b"Content-Length: 4\r\n\r\n")
            self.assertEqual(reader.answer().status, 100)
            s.sendall(b"abcd")
            self.assertEqual(reader.answer().json()["bytes"], 4)
            # A refusal takes the place of 100.
            s.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                      b"Content-Length: 4\r\n\r\n")
            self.assert_error(reader.answer(), 404, "NotFoundError")

    def test_http_1_0_closes_unless_asked_to_stay(self):
        with self.server.connect() as s:
            s.sendall(request("GET", "/health", version="HTTP/1.0", host=False))
            reader = Reader(s)
            answer = reader.answer()
            self.assertEqual((answer.status, answer.headers["connection"]), (200, "close"))
            self.assertEqual(reader.rest(), b"")
        with self.server.connect() as s:
            reader = Reader(s)
            for _ in range(2):
                s.sendall(request("GET", "/health", None, "Connection: Keep-Alive",
                                  version="HTTP/1.0"))
                self.assertEqual(reader.answer().headers["connection"], "keep-alive")

    def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection(self):
        answer = exchange(self.server, request("POST", "/v1/stream?events=2", b"{}",
                                               version="HTTP/1.0"))
        self.assertNotIn("transfer-encoding", answer.headers)
        self.assertEqual(len(events(answer.body)), 3)

    def test_connection_close_is_honoured(self):
        with self.server.connect() as s:
            s.sendall(request("GET", "/health", None, "Connection: foo, Close"))
            reader = Reader(s)
            self.assertEqual(reader.answer().headers["connection"], "close")
            self.assertEqual(reader.rest(), b"")

    def test_head_has_the_length_but_no_body(self):
        with self.server.connect() as s:
            reader = Reader(s)
            for _ in range(2):
                s.sendall(request("HEAD", "/v1/echo/x"))
                answer = reader.answer(head_only=True)
                self.assertEqual(answer.status, 200)
                self.assertGreater(int(answer.headers["content-length"]), 0)

    def test_absolute_form_and_odd_spellings_reach_the_same_route(self):
        for target in ("http://example.org/v1/echo/m", "HTTPS://h:1/v1/echo/m", "//v1//echo/m",
                       "/v1/./echo/m/", "/x/../v1/echo/m", "/%76%31/echo/%6d", "/v1/echo/n/../m",
                       "/../../v1/echo/m?q=1", "/v1/echo%2Fm"):
            answer = get(self.server, target)
            self.assertEqual(answer.status, 200, target)
            self.assertEqual(answer.json()["rest"], "m", target)

    def test_a_rest_may_hold_slashes(self):
        self.assertEqual(get(self.server, "/v1/echo/org/model").json()["rest"], "org/model")
        self.assertEqual(get(self.server, "/v1/echo/").status, 405)

    def test_a_blank_line_before_a_request_is_skipped(self):
        self.assertEqual(exchange(self.server, b"\r\n\r\n" + request("GET", "/health")).status, 200)

    def test_unknown_paths_and_methods(self):
        self.assert_error(get(self.server, "/v1/embeddings"), 404, "NotFoundError")
        self.assert_error(get(self.server, "/V1/ECHO"), 404, "NotFoundError")
        answer = get(self.server, "/v1/echo")
        self.assert_error(answer, 405)
        self.assertEqual(answer.headers["allow"], "POST, OPTIONS")
        answer = exchange(self.server, request("BREW", "/health"))
        self.assert_error(answer, 405)
        self.assertEqual(answer.headers["allow"], "GET, HEAD, OPTIONS")

    def test_content_types(self):
        for good in ("application/json", "Application/JSON; charset=utf-8", ""):
            self.assertEqual(post(self.server, "/v1/echo", b"{}", "Content-Type: " + good).status,
                             200, good)
        for bad in ("text/plain", "application/x-www-form-urlencoded", "application/json2"):
            self.assert_error(post(self.server, "/v1/echo", b"{}", "Content-Type: " + bad), 415)
        self.assert_error(post(self.server, "/v1/echo", b"{}", "Content-Encoding: gzip"), 415)

    def test_request_ids(self):
        answer = post(self.server, "/v1/echo", b"{}", "X-Request-Id: mine-1")
        self.assertEqual(answer.headers["x-request-id"], "mine-1")
        self.assertEqual(answer.json()["id"], "mine-1")
        random = [post(self.server, "/v1/echo").headers["x-request-id"] for _ in range(3)]
        self.assertEqual(len(set(random)), 3)
        for bad in ("x" * 129, "caf\u00e9", "", "a b", "x 200 1.0 ms id=y", "a\tb"):
            got = post(self.server, "/v1/echo", b"{}", "X-Request-Id: " + bad)
            self.assertRegex(got.headers["x-request-id"], "^[0-9a-f]{32}$")
        self.assertEqual(get(self.server, "/nowhere", "X-Request-Id: e").headers["x-request-id"],
                         "e")
        with self.server.connect() as s:
            s.sendall(request("POST", "/v1/late?ms=300", b"{}", "X-Request-Id: twin"))
            time.sleep(0.1)
            twin = post(self.server, "/v1/echo", b"{}", "X-Request-Id: twin")
            self.assertEqual(twin.headers["x-request-id"], "twin-2")
            self.assertEqual(Reader(s).answer().headers["x-request-id"], "twin")

    def test_many_equal_request_ids_stay_unique_and_short(self):
        held = [self.server.connect() for _ in range(300)]
        for s in held:
            s.sendall(request("POST", "/v1/late?ms=3000", b"{}", "X-Request-Id: " + "t" * 128))
        ids = [Reader(s).answer().headers["x-request-id"] for s in held]
        for s in held:
            s.close()
        self.assertEqual(len(set(ids)), 300)
        numbered = [i for i in ids if re.fullmatch("t{128}(-[2-4])?", i)]
        self.assertEqual(len(numbered), 4)
        for i in set(ids) - set(numbered):
            self.assertRegex(i, "^t{128}-[0-9a-f]{16}$")

    def test_an_error_message_is_cut_and_made_valid_utf8(self):
        answer = post(self.server, "/v1/fault", b"\xff\xed\xa0\x80\xc3(" + b'"\\\n' + b"\x01" * 5000)
        message = self.assert_error(answer, 400, param="messages.0")
        self.assertIn("\ufffd", message)
        answer = post(self.server, "/v1/fault", "\u4f60".encode() * 3000)
        self.assertTrue(set(self.assert_error(answer, 400, param="messages.0")) == {"\u4f60"})

    def test_options_needs_no_body_and_names_the_methods(self):
        answer = exchange(self.server, request("OPTIONS", "/v1/echo"))
        self.assertEqual((answer.status, answer.headers["allow"]), (204, "POST, OPTIONS"))
        self.assertNotIn("access-control-allow-origin", answer.headers)
        self.assertEqual(exchange(self.server, request("OPTIONS", "*")).status, 204)

    def test_big_bodies_come_through_whole(self):
        body = os.urandom(900000)
        self.assertEqual(post(self.server, "/v1/work", body).json()["sum"], sum(body))
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 4001]), body[i:i + 4001])
                          for i in range(0, len(body), 4001))
        data = (b"POST /v1/work HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
                chunks + b"0\r\n\r\n")
        self.assertEqual(exchange(self.server, data).json()["sum"], sum(body))

    # ---- refusals ----

    def refuse(self, data, status, pieces=None):
        with self.server.connect() as s:
            for piece in pieces or [data]:
                s.sendall(piece)
            reader = Reader(s)
            answer = reader.answer()
            message = self.assert_error(answer, status)
            self.assertEqual(answer.headers["connection"], "close")
            self.assertEqual(reader.rest(), b"", "a second answer to one refused request")
        return message

    def test_two_readings_of_one_request_are_refused(self):
        tail = b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        for fields in (
                "Content-Length: 5\r\nTransfer-Encoding: chunked",
                "Transfer-Encoding: chunked\r\nContent-Length: 5",
                "Content-Length: 5\r\nContent-Length: 6",
                "Content-Length: 5\r\nContent-Length: 5",
                "Content-Length: 5, 5", "Content-Length: +5", "Content-Length: -1",
                "Content-Length: 0x5", "Content-Length: 5 5", "Content-Length:",
                "Content-Length: 18446744073709551621",
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: identity",
                "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: xchunked",
                "Transfer-Encoding: \x0bchunked", "Transfer-Encoding : chunked",
                "Transfer-Encoding\t: chunked", " Transfer-Encoding: chunked",
                "X: y\r\n Transfer-Encoding: chunked", "X: y\r\n\tz", "X\x00: y", "X: y\x00z",
                "X: y\rZ: z", "X: y\nZ: z", ": y", "X", "X y: z", "(X): y", "X: y\x7f",
                "Host: other"):
            data = (b"POST /v1/echo HTTP/1.1\r\nHost: x\r\n" + fields.encode("latin-1") +
                    b"\r\n\r\n" + tail)
            with self.subTest(fields=fields):
                self.refuse(data, 400)
        self.assert_alive()

    def test_request_lines_that_are_none(self):
        for line in (b"GET  /health HTTP/1.1", b"GET /health  HTTP/1.1", b"GET /health HTTP/1.1 ",
                     b" GET /health HTTP/1.1", b"GET\t/health HTTP/1.1", b"GET /health",
                     b"GET /health HTTP/2.0", b"GET /health http/1.1", b"GET /health HTTP/1.10",
                     b"GET health HTTP/1.1", b"GET * HTTP/1.1", b"CONNECT a:1 HTTP/1.1",
                     b"GET /a#b HTTP/1.1", b"GET /%zz HTTP/1.1", b"GET /%0 HTTP/1.1",
                     b"GET /%00 HTTP/1.1", b"GET /\xc3\xa9 HTTP/1.1", b"G(T / HTTP/1.1",
                     b"GET http:///x HTTP/1.1", b"\x16\x03\x01\x02\x00\x01", b"A" * 33 + b" / HTTP/1.1",
                     b"PRI * HTTP/2.0"):
            with self.subTest(line=line):
                self.refuse(line + b"\r\nHost: x\r\n\r\n", 400)
        self.refuse(b"GET / HTTP/1.1\r\n\r\n", 400)
        self.refuse(b"GET / HTTP/1.1\nHost: x\n\n", 400)
        self.refuse(b"\r\n" * 9, 400)
        self.refuse(b"POST /v1/echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400)
        self.refuse(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nExpect: 200\r\n\r\n", 417)
        self.assert_alive()

    def test_chunks_that_are_none(self):
        for chunks in (b"g\r\n", b"-1\r\nx", b" 1\r\nx\r\n", b"1 \r\nx\r\n", b"0x1\r\nx\r\n",
                       b"1\nx\r\n", b"1\r\nxy\r\n", b"1\r\nx\n", b"\r\n", b"00000000000000001\r\nx",
                       b"1;\x00\r\nx\r\n", b"1;" + b"e" * 70000, b"0\r\nno colon\r\n\r\n",
                       b"0\r\n folded: x\r\n\r\n", b"0\r\n: x\r\n\r\n", b"0\r\nx: \x01\r\n\r\n"):
            with self.subTest(chunks=chunks[:20]):
                self.refuse(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                            b"\r\n" + chunks, 400)
        self.assert_alive()

    def test_F080_giant_headers_are_431_and_memory_stays_flat(self):
        many = b"".join(b"X%d: y\r\n" % i for i in range(10000))
        sizes = []
        for _ in range(5):
            self.refuse(b"GET /" + b"a" * (1 << 20), 431)
            self.refuse(b"GET / HTTP/1.1\r\nX: " + b"a" * (1 << 20), 431)
            self.refuse(b"GET / HTTP/1.1\r\nHost: x\r\n" + many, 431)
            for _ in range(200):
                with self.server.connect() as s:
                    s.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 60000)
            self.assertTrue(wait_for(lambda: self.server.counters()["connections"] == 1))
            sizes.append(self.server.rss_kib())
        # What the two last rounds held is 24 MB; an allocator under load keeps some of it back.
        flat(self, max(sizes[3:]) - max(sizes[:3]), 8192, sizes)
        self.assert_alive()

    def test_F080_the_limits_are_exact(self):
        line = "/health?" + "a" * (8192 - len("GET /health? HTTP/1.1"))
        self.assertEqual(get(self.server, line).status, 200)
        self.refuse(request("GET", line + "a"), 431)
        fields = [f"X{i}: y" for i in range(99)]
        self.assertEqual(get(self.server, "/health", *fields).status, 200)
        self.refuse(request("GET", "/health", None, *fields, "Y: z"), 431)
        room = 65536 - len("Host: x\r\n\r\n") - len("A: \r\n")
        self.assertEqual(get(self.server, "/health", "A: " + "b" * room).status, 200)
        self.refuse(request("GET", "/health", None, "A: " + "b" * (room + 1)), 431)
        self.assertEqual(post(self.server, "/v1/echo", b"x" * 1000000).json()["bytes"], 1000000)
        self.refuse(request("POST", "/v1/echo", b"x" * 1000001), 413)

    def test_F080_announced_and_chunked_bodies_over_the_limit(self):
        self.refuse(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001\r\n\r\n", 413)
        self.refuse(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n",
                    413)
        head = b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.refuse(head + b"fffffffffffffff0\r\n", 413)
        self.refuse(head + (b"1000\r\n" + b"y" * 4096 + b"\r\n") * 300, 413)
        self.assert_alive()

    def test_F080_a_refusal_reaches_a_client_that_sends_50_MB(self):
        for head in (b"Content-Length: 50000000", b"X: y\r\nContent-Length: 50000000"):
            with self.server.connect() as s:
                s.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" +
                          b"x" * 50000000)
                self.assert_error(Reader(s).answer(), 413)

    def test_F080_a_lying_content_length_waits_and_is_forgotten(self):
        before = self.server.rss_kib()
        holders = [self.server.connect() for _ in range(50)]
        for s in holders:
            s.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\nabc")
        self.assert_alive()
        flat(self, self.server.rss_kib() - before, 4096, "an announcement took memory")
        for s in holders:
            s.close()
        self.assertTrue(wait_for(lambda: self.server.counters()["connections"] == 1))

    def test_F078_random_bytes_close_their_own_connection_only(self):
        with self.server.connect() as other:
            other.sendall(request("POST", "/v1/late?ms=500", b"{}"))
            for seed in range(8):
                with self.server.connect() as s:
                    try:
                        s.sendall(os.urandom(1 << 20))
                        Reader(s).rest()
                    except (BrokenPipeError, ConnectionResetError):
                        pass
            self.assertTrue(Reader(other).answer().json()["late"])
        self.assert_alive()


class Timing(Case):
    options = ("header_seconds=1", "body_seconds=1", "idle_seconds=2", "ping_seconds=0.2")

    def test_F080_a_slow_header_is_408_whatever_trickles_in(self):
        with self.server.connect() as s:
            start = time.monotonic()
            reader = Reader(s)
            s.settimeout(0.1)
            answer = None
            for byte in b"GET /health HTTP/1.1\r\nX-Slow: " + b"a" * 100:
                try:
                    s.sendall(bytes([byte]))
                    reader.more()
                except socket.timeout:
                    continue
                except (BrokenPipeError, ConnectionResetError):
                    break
                s.settimeout(5)
                answer = reader.answer()
                break
            self.assert_error(answer, 408)
            self.assertLess(time.monotonic() - start, 3)
            self.assertEqual(get(self.server, "/health").status, 200)

    def test_F080_a_body_that_stops_is_408(self):
        for data in (b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
                     b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                     b"3\r\nabc\r\n"):
            with self.server.connect() as s:
                s.sendall(data)
                reader = Reader(s)
                self.assert_error(reader.answer(), 408)
                self.assertEqual(reader.rest(), b"")

    def test_a_body_that_flows_may_take_longer_than_the_time_limit(self):
        with self.server.connect() as s:
            s.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 655360\r\n\r\n")
            for _ in range(10):
                s.sendall(b"x" * 65536)
                time.sleep(0.2)
            self.assertEqual(Reader(s).answer().json()["bytes"], 655360)

    def test_idle_connections_are_closed_silently(self):
        with self.server.connect() as fresh, self.server.connect() as used:
            used.sendall(request("GET", "/health"))
            reader = Reader(used)
            reader.answer()
            self.assertEqual(Reader(fresh).rest(), b"")
            self.assertEqual(reader.rest(), b"")

    def test_an_answer_on_its_way_over_a_slow_link_is_not_idle(self):
        with self.server.connect() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            size = 16 << 20  # more than the sockets hold, queued at once
            s.sendall(request("POST", f"/v1/stream?events=1&size={size}", b"{}"))
            time.sleep(3)  # longer than the idle time
            start = time.monotonic()
            pieces = []
            while data := s.recv(1 << 20):
                pieces.append(data)
                if data.endswith(b"\r\n0\r\n\r\n"):
                    start = time.monotonic()
            body = b"".join(pieces)
            self.assertGreater(len(body), size)
            self.assertTrue(body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), body[-40:])
            self.assertGreater(time.monotonic() - start, 1)  # idle time begins at the end

    def test_a_running_request_is_not_idle(self):
        self.assertTrue(post(self.server, "/v1/late?ms=2500").json()["late"])

    def test_a_quiet_stream_gets_comments(self):
        answer = post(self.server, "/v1/stream?events=2&ms=900")
        self.assertGreaterEqual(answer.body.count(b": keep-alive\n\n"), 3)
        data = [e for e in events(answer.body) if e.startswith("data: ")]
        self.assertEqual(len(data), 3)


class Streams(Case):
    options = ("stall_seconds=2", "drain_seconds=1")

    def test_a_stream_has_its_headers_events_and_done(self):
        answer = post(self.server, "/v1/stream?events=3&ms=10")
        self.assertEqual(answer.headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertEqual(answer.headers["cache-control"], "no-cache")
        self.assertEqual(answer.headers["x-accel-buffering"], "no")
        got = events(answer.body)
        self.assertEqual(got[-1], "data: [DONE]")
        self.assertEqual([json.loads(e[6:])["left"] for e in got[:-1]], [3, 2, 1])

    def test_every_event_leaves_at_once(self):
        with self.server.connect() as s:
            s.sendall(request("POST", "/v1/stream?events=4&ms=200", b"{}"))
            reader = Reader(s)
            reader.head()
            times = []
            for _ in range(4):
                reader.chunk()
                times.append(time.monotonic())
            self.assertGreater(times[-1] - times[0], 0.3)  # of 0.6: nothing waited for the end

    def test_a_failure_before_and_after_the_first_byte(self):
        self.assert_error(post(self.server, "/v1/breaks"), 500, "InternalServerError")
        with self.server.connect() as s:
            s.sendall(request("POST", "/v1/breaks?started=1", b"{}"))
            reader = Reader(s)
            answer = reader.answer()
            self.assertEqual(answer.status, 200)
            last = events(answer.body)[-1]
            self.assertEqual(json.loads(last[6:])["error"]["code"], 500)
            self.assertNotIn("[DONE]", answer.body.decode())
            self.assertEqual(reader.rest(), b"")

    def test_a_slow_reader_blocks_nobody_and_gets_everything(self):
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", self.server.port))
        before, memory = self.server.counters()["drained"], self.server.rss_kib()
        slow.sendall(request("POST", "/v1/stream?events=30000&size=1000", b"{}"))
        time.sleep(0.3)
        for _ in range(20):
            start = time.monotonic()
            self.assertEqual(len(events(post(self.server, "/v1/stream?events=50").body)), 51)
            self.assertLess(time.monotonic() - start, 5)  # the slow one reads only after this
        # 30 MB wait for the reader, but not in our memory.
        flat(self, self.server.rss_kib() - memory, 8192)
        slow.settimeout(20)
        reader = Reader(slow)
        self.assertEqual(reader.head()[0], 200)
        n = 0
        while True:
            piece = reader.chunk()
            if not piece:
                break
            n += piece.count(b"\n\n")
        self.assertEqual(n, 30001)
        slow.close()
        self.assertGreater(self.server.counters()["drained"], before)

    def test_a_reader_that_takes_nothing_is_dropped_after_a_while(self):
        before = self.server.counters()["closed"]
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.server.port))
        s.sendall(request("POST", "/v1/stream?events=30000&size=1000", b"{}"))
        self.assertTrue(wait_for(lambda: self.server.counters()["closed"] == before + 1, 8))
        s.close()

    def test_F031_a_client_that_goes_ends_its_request_within_a_second(self):
        def close(s):
            s.close()

        def reset(s):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.close()

        def half(s):
            s.shutdown(socket.SHUT_WR)

        for target in ("/v1/hold", "/v1/stream?events=100000&ms=5"):
            for leave in (close, reset, half):
                for more in (b"", b"G", b"x" * 100000):  # bytes of a next request, or too many
                    with self.subTest(target=target, leave=leave.__name__, more=len(more)):
                        before = self.server.counters()
                        s = self.server.connect()
                        s.sendall(request("POST", target, b"{}"))
                        self.assertTrue(
                            wait_for(lambda: self.server.counters()["in_flight"] == 1))
                        s.setblocking(False)
                        try:
                            s.send(more)
                        except BlockingIOError:
                            pass
                        time.sleep(0.05)
                        leave(s)
                        self.assertTrue(wait_for(lambda: self.server.counters()["closed"] ==
                                                 before["closed"] + 1, 1))
                        self.assertEqual(self.server.counters()["in_flight"], 0)
                        s.close()

    def test_clients_that_leave_answers_unread_leave_no_connection(self):
        for _ in range(600):
            s = self.server.connect()
            s.sendall(request("POST", "/v1/stream?events=300&size=300", b"{}"))
            s.recv(1)
            s.close()
        self.assertTrue(wait_for(lambda: self.server.counters()["connections"] == 1))

    def test_an_answer_reaches_a_client_that_has_shut_its_side(self):
        with self.server.connect() as s:
            s.sendall(request("GET", "/health"))
            s.shutdown(socket.SHUT_WR)
            self.assertEqual(Reader(s).answer().status, 200)

    def test_a_client_may_go_while_a_worker_has_its_body(self):
        before = self.server.counters()
        for _ in range(20):
            with self.server.connect() as s:
                s.sendall(request("POST", "/v1/work", b"z" * 3000000))
        self.assertTrue(wait_for(lambda: self.server.counters()["in_flight"] == 0))
        self.assertTrue(wait_for(lambda: self.server.counters()["connections"] == 1))
        self.assertGreater(self.server.counters()["worked"], before["worked"])
        self.assertGreater(self.server.counters()["wakes"], before["wakes"])

    def test_abort_by_id(self):
        for extra, check in (("", lambda a: self.assert_error(a, 400)),
                             ("?abortable=1", lambda a: self.assertTrue(a.json()["aborted"]))):
            with self.server.connect() as s:
                s.sendall(request("POST", "/v1/hold" + extra, b"{}", "X-Request-Id: victim"))
                self.assertTrue(wait_for(lambda: self.server.counters()["in_flight"] == 1))
                self.assertEqual(post(self.server, "/abort", b"nobody").status, 200)
                self.assertEqual(post(self.server, "/abort", b"victim").status, 200)
                check(Reader(s).answer())
        self.assertEqual(self.server.counters()["in_flight"], 0)

    def test_many_streams_at_once(self):
        failures = []

        def client(i):
            try:
                answer = post(self.server, f"/v1/stream?events=40&ms={1 + i % 5}&size={i}")
                if len(events(answer.body)) != 41:
                    failures.append(i)
            except Exception as e:  # noqa: BLE001 - reported below
                failures.append(repr(e))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(64)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])


class Keys(Case):
    options = ("api_key=secret-one", "api_key=secret-two", "admin_key=root-key",
               "cors_origin=http://page.example")

    def test_keys_open_what_they_should(self):
        bearer = "Authorization: Bearer "
        for field in (bearer + "secret-one", "authorization: bearer secret-two",
                      "AUTHORIZATION:BEARER   secret-two", bearer + "root-key"):
            self.assertEqual(post(self.server, "/v1/echo", b"{}", field).status, 200, field)
        for field in ("X: y", bearer, bearer + "secret-on", bearer + "secret-onee",
                      "Authorization: Basic secret-one", "Authorization: secret-one",
                      bearer + "secret-one,secret-two"):
            answer = post(self.server, "/v1/echo", b"{}", field)
            self.assert_error(answer, 401, "AuthenticationError")
            self.assertEqual(answer.headers["www-authenticate"], "Bearer")

    def test_no_spelling_of_a_path_gets_around_the_key(self):
        for target in ("/v1/echo/x", "//v1/echo/x", "/v1/../v1/echo/x", "/health/../v1/echo/x",
                       "/%76%31/echo/x", "/v1%2fecho/x", "/V1/echo/x", "/health/", "/health%20",
                       "/nowhere", "/", "http://h/v1/echo/x", "/v1/echo/x?/health",
                       "/v1/echo/x;/health", "/v1/echo/../echo/x", "/.%2e/v1/echo/x"):
            with self.subTest(target=target):
                answer = get(self.server, target)
                if target == "/health/":  # the same path as /health
                    self.assertEqual(answer.status, 200)
                else:
                    self.assert_error(answer, 401, "AuthenticationError")

    def test_open_paths_need_none(self):
        self.assertEqual(get(self.server, "/health").status, 200)
        self.assert_error(post(self.server, "/health"), 405)

    def test_a_wrong_method_needs_a_key_too(self):
        self.assert_error(get(self.server, "/v1/echo"), 401, "AuthenticationError")

    def test_admin_needs_the_admin_key(self):
        self.assert_error(post(self.server, "/admin"), 401, "AuthenticationError")
        self.assert_error(post(self.server, "/admin", b"{}", "Authorization: Bearer secret-one"),
                          403, "PermissionDeniedError")
        self.assertEqual(
            post(self.server, "/admin", b"{}", "Authorization: Bearer root-key").status, 200)

    def test_a_refusal_comes_before_the_body(self):
        with self.server.connect() as s:
            s.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n")
            self.assert_error(Reader(s).answer(), 401, "AuthenticationError")

    def test_a_refusal_reaches_a_client_that_sends_on(self):
        for _ in range(5):
            with self.server.connect() as s:
                s.sendall(request("POST", "/v1/echo", b"x" * 700000))
                self.assert_error(Reader(s).answer(), 401, "AuthenticationError")

    def test_only_the_owner_or_an_admin_aborts(self):
        one, two, root = (f"Authorization: Bearer {k}"
                          for k in ("secret-one", "secret-two", "root-key"))
        for who, ends in ((two, False), (one, True), (root, True)):
            with self.server.connect() as s:
                s.sendall(request("POST", "/v1/hold", b"{}", one, "X-Request-Id: victim"))
                self.assertTrue(wait_for(lambda: self.server.counters()["in_flight"] == 1))
                self.assertEqual(post(self.server, "/abort", b"victim", who).status, 200)
                self.assertEqual(self.server.counters()["in_flight"], 0 if ends else 1)
            self.assertTrue(wait_for(lambda: self.server.counters()["in_flight"] == 0))

    def test_cors_answers_the_allowed_origin_only(self):
        answer = exchange(self.server, request(
            "OPTIONS", "/v1/echo", None, "Origin: http://page.example",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization, x-stainless-os"))
        self.assertEqual(answer.status, 204)
        self.assertEqual(answer.headers["access-control-allow-origin"], "http://page.example")
        self.assertEqual(answer.headers["access-control-allow-headers"],
                         "authorization, x-stainless-os")
        self.assertIn("POST", answer.headers["access-control-allow-methods"])
        answer = get(self.server, "/v1/echo/x", "Origin: http://page.example")
        self.assertEqual(answer.status, 401)
        self.assertIn("access-control-allow-origin", answer.headers)
        answer = get(self.server, "/health", "Origin: http://evil.example")
        self.assertNotIn("access-control-allow-origin", answer.headers)
        self.assertEqual(answer.headers["vary"], "Origin")

    def test_zz_no_key_is_in_the_log(self):
        post(self.server, "/v1/echo?key=secret-one", b"{}", "Authorization: Bearer secret-one")
        self.assertIn("POST /v1/echo 200", self.server.log_text())
        for key in ("secret-one", "secret-two", "root-key"):
            self.assertNotIn(key, self.server.log_text())


class Crowd(unittest.TestCase):
    def test_4000_idle_connections_and_traffic(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 4000
        if hard != resource.RLIM_INFINITY and hard < wanted + 200:
            self.skipTest(f"the hard limit of open files is {hard}, 4200 are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 200), hard))
        server = Server()
        try:
            before = server.rss_kib()
            idle = [server.connect() for _ in range(wanted)]
            self.assertTrue(wait_for(lambda: server.counters()["connections"] == wanted + 1))
            print(f"idle connection: {(server.rss_kib() - before) / wanted:.2f} KiB resident",
                  file=sys.stderr)
            for i in range(50):
                self.assertEqual(len(events(post(server, "/v1/stream?events=10").body)), 11)
            for s in idle[::97]:
                s.sendall(request("GET", "/health"))
                self.assertEqual(Reader(s).answer().status, 200)
            for s in idle:
                s.close()
            self.assertTrue(wait_for(lambda: server.counters()["connections"] == 1))
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_at_the_limit_the_longest_idle_connection_makes_room(self):
        server = Server("max_connections=20")
        try:
            busy = [server.connect() for _ in range(10)]
            for s in busy:
                s.sendall(request("POST", "/v1/late?ms=1500", b"{}"))
            crowd = [server.connect() for _ in range(100)]
            self.assertEqual(get(server, "/health").status, 200)
            for s in busy:
                self.assertTrue(Reader(s).answer().json()["late"])
            for s in busy + crowd:
                s.close()
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_out_of_descriptors_the_server_pauses_and_recovers(self):
        server = Server()
        try:
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (40, 40))
            crowd = []
            for _ in range(60):
                crowd.append(server.connect())
                crowd[-1].sendall(request("POST", "/v1/hold", b"{}"))
            cpu = os.times()
            time.sleep(1)
            with open(f"/proc/{server.process.pid}/stat") as f:
                ticks = sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:13])
            self.assertLess(ticks / os.sysconf("SC_CLK_TCK"), 0.8, "busy loop while out of files")
            for s in crowd:
                s.close()
            self.assertTrue(wait_for(lambda: server.counters()["in_flight"] == 0))
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_bodies_share_one_budget(self):
        server = Server("max_buffered_bytes=3000000")
        try:
            holders = []
            for _ in range(2):
                s = server.connect()
                s.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1200001\r\n\r\n" +
                          b"x" * 1200000)
                holders.append(s)
            time.sleep(0.2)
            answer = post(server, "/v1/echo", b"y" * 1200000)
            self.assertEqual(answer.status, 503)
            self.assertEqual(answer.headers["retry-after"], "1")
            holders[0].sendall(b"x")
            self.assertEqual(Reader(holders[0]).answer().status, 200)
            self.assertEqual(post(server, "/v1/echo", b"y" * 1200000).status, 200)
            for s in holders:
                s.close()
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_a_full_budget_shuts_no_small_body_out(self):
        server = Server("max_buffered_bytes=2900100")
        try:
            with server.connect() as holder:
                holder.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2900001"
                               b"\r\n\r\n" + b"x" * 2900000)
                time.sleep(0.5)  # all of it is there before somebody else asks for room
                self.assertEqual(post(server, "/v1/echo", b"y" * 200000).status, 503)
                for size in (1, 4096, 65536):
                    answer = post(server, "/v1/echo", b"y" * size)
                    self.assertEqual((answer.status, answer.json()["bytes"]), (200, size))
                self.assertEqual(post(server, "/v1/echo", b"y" * 200000).status, 503)
            self.assertTrue(wait_for(
                lambda: post(server, "/v1/echo", b"y" * 200000).status == 200))
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_bodies_of_clients_that_went_count_until_their_jobs_are_done(self):
        server = Server("max_buffered_bytes=3000000", "workers=1")
        try:
            body = b"y" * 2000000
            with server.connect() as s:
                s.sendall(request("POST", "/v1/work?ms=2000", body))
                self.assertTrue(wait_for(lambda: server.counters()["in_flight"] == 1))
                time.sleep(0.2)  # the worker has it
            self.assertTrue(wait_for(lambda: server.counters()["in_flight"] == 0))
            self.assertEqual(post(server, "/v1/work", body).status, 503)
            self.assertEqual(server.counters()["worked"], 0)
            self.assertTrue(wait_for(lambda: server.counters()["worked"] == 1))
            self.assertEqual(post(server, "/v1/work", body).json()["sum"], sum(body))
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_waiting_jobs_are_bounded_and_end_with_their_clients(self):
        server = Server("max_waiting_bodies=3", "workers=1")
        try:
            first = server.connect(30)
            first.sendall(request("POST", "/v1/work?ms=4000", b"y" * 100000))
            self.assertTrue(wait_for(lambda: server.counters()["in_flight"] == 1))
            time.sleep(0.2)  # the worker has it
            for done in (3, 6):
                waiting = [server.connect() for _ in range(3)]
                for s in waiting:
                    s.sendall(request("POST", "/v1/work?ms=60000", b"y" * 100000))
                self.assertTrue(wait_for(lambda: server.counters()["in_flight"] == 4))
                refused = post(server, "/v1/work", b"y" * 100000)
                self.assertEqual((refused.status, refused.headers["retry-after"]), (503, "1"))
                for s in waiting:
                    s.close()
                # Done without work, which would take minutes, and while the worker is busy.
                self.assertTrue(wait_for(lambda: server.counters()["worked"] == done))
            self.assertEqual(Reader(first).answer().status, 200)
            first.close()
            self.assertEqual(post(server, "/v1/work", b"y" * 100000).status, 200)
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_F084_memory_stays_flat_over_20000_requests(self):
        server = Server()
        try:
            def burst(n):
                with server.connect() as s:
                    reader = Reader(s)
                    for i in range(n):
                        kind = i % 4
                        target = ("/v1/echo", "/v1/stream?events=5", "/v1/fault", "/nowhere")[kind]
                        body = None if kind == 3 else b'{"a": 1}'
                        s.sendall(request("POST", target, body))
                        reader.answer()
            burst(2000)
            early = server.rss_kib()
            burst(18000)
            flat(self, server.rss_kib() - early, early * 0.02 + 1024)
        finally:
            self.assertEqual(server.stop()[0], 0)


class Ending(unittest.TestCase):
    def test_F083_sigterm_lets_requests_finish_and_refuses_new_ones(self):
        server = Server()
        running, stream, idle = server.connect(), server.connect(), server.connect()
        running.sendall(request("POST", "/v1/late?ms=1000", b"{}"))
        stream.sendall(request("POST", "/v1/stream?events=10&ms=100", b"{}"))
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        answer = post(server, "/v1/echo")
        self.assertEqual(answer.status, 503)
        self.assertEqual(answer.json()["error"]["type"], "ServiceUnavailableError")
        self.assertIn("retry-after", answer.headers)
        self.assertEqual(get(server, "/health").status, 200)
        self.assertTrue(Reader(running).answer().json()["late"])
        self.assertEqual(len(events(Reader(stream).answer().body)), 11)
        self.assertEqual(server.process.wait(5), 0)
        for s in (running, stream, idle):
            s.close()
        server.stop()

    def test_F083_after_the_drain_time_the_rest_gets_an_error(self):
        server = Server("drain_seconds=0.3")
        held, stream = server.connect(), server.connect()
        held.sendall(request("POST", "/v1/hold", b"{}"))
        stream.sendall(request("POST", "/v1/stream?events=1000&ms=50", b"{}"))
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        answer = Reader(held).answer()
        self.assertEqual((answer.status, answer.json()["error"]["code"]), (503, 503))
        last = events(Reader(stream).answer().body)[-1]
        self.assertEqual(json.loads(last[6:])["error"]["type"], "ServiceUnavailableError")
        self.assertEqual(server.process.wait(5), 0)
        held.close()
        stream.close()
        server.stop()

    def test_F083_a_second_signal_ends_at_once(self):
        for first, second, code in ((signal.SIGTERM, signal.SIGTERM, 143),
                                    (signal.SIGINT, signal.SIGINT, 130)):
            server = Server()
            with server.connect() as s:
                s.sendall(request("POST", "/v1/hold", b"{}"))
                time.sleep(0.2)
                server.process.send_signal(first)
                time.sleep(0.2)
                self.assertIsNone(server.process.poll())
                server.process.send_signal(second)
                self.assertEqual(server.process.wait(10), code)
            server.stop()

    def test_an_idle_server_ends_at_once(self):
        server = Server()
        with server.connect():
            start = time.monotonic()
            self.assertEqual(server.stop()[0], 0)
            self.assertLess(time.monotonic() - start, 2)

    def test_a_taken_port_is_one_clear_line(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("# no key\n\n")
            keys.flush()
            for options, text in (((f"api_file={keys.name}",), "holds no key"),
                                  (("api_key=",), "must not be empty"),
                                  (("cert=/nonexistent", "tkey=/nonexistent"), "no usable"),
                                  (("cert=/nonexistent",), "--tls-key")):
                run = subprocess.run([TOY, *options], capture_output=True, text=True)
                self.assertEqual(run.returncode, 1)
                self.assertIn(text, run.stderr)
                self.assertEqual(run.stderr.count("\n"), 1)


class Tls(unittest.TestCase):
    def test_requests_streams_and_closes_over_tls(self):
        with tempfile.TemporaryDirectory() as d:
            made = subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                 "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost", "-days", "2",
                 "-keyout", f"{d}/k.pem", "-out", f"{d}/c.pem"], capture_output=True)
            self.assertEqual(made.returncode, 0, made.stderr)
            server = Server(f"cert={d}/c.pem", f"tkey={d}/k.pem", "header_seconds=1")
            context = ssl.create_default_context(cafile=f"{d}/c.pem")
            context.check_hostname = False
            plain = server.connect

            def connect(timeout=10):
                return context.wrap_socket(plain(timeout))

            server.connect = connect
            try:
                self.assertEqual(get(server, "/health").status, 200)
                body = os.urandom(500000)
                self.assertEqual(post(server, "/v1/work", body).json()["sum"], sum(body))
                self.assertEqual(len(events(post(server, "/v1/stream?events=2000&size=500").body)),
                                 2001)
                with connect() as s:
                    reader = Reader(s)
                    for _ in range(5):
                        s.sendall(request("POST", "/v1/stream?events=3&ms=5", b"{}"))
                        self.assertEqual(len(events(reader.answer().body)), 4)
                    s.sendall(request("GET", "/health", None, "Connection: close"))
                    reader.answer()
                    self.assertEqual(reader.rest(), b"")
                s = connect()
                s.sendall(request("POST", "/v1/hold", b"{}"))
                self.assertTrue(wait_for(lambda: server.counters()["in_flight"] == 1))
                s.close()
                self.assertTrue(wait_for(lambda: server.counters()["closed"] == 1, 1))
                with plain() as silent, plain() as garbage:
                    garbage.sendall(request("GET", "/health"))
                    Reader(garbage).rest()  # an alert, or nothing
                    start = time.monotonic()
                    self.assertEqual(silent.recv(1), b"")
                    self.assertLess(time.monotonic() - start, 4)
                self.assertEqual(get(server, "/health").status, 200)
            finally:
                self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    TOY = os.path.abspath(sys.argv.pop(1))
    with open(TOY, "rb") as program:
        code = program.read()
    SANITIZED = b"__asan_init" in code or b"__tsan_init" in code
    unittest.main()
