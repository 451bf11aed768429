"""Black-box tests of `weir serve` as a server: endpoints about itself, keys, metrics, clients that go,
stopping. What answers say is the business of the API's own tests.

usage: test_server.py PATH_OF_weir MODEL_DIRECTORY [unittest arguments]
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from test_http import Reader, Server, events, get, post, request, wait_for
import test_http

WEIR = MODEL = None
# Devices have no exact column: WEIR_DEVICE=cuda runs these tests on one.
COMPUTE = "exact" if os.environ.get("WEIR_DEVICE", "cpu") == "cpu" else "fast"
JSON = "Content-Type: application/json"


class Weir(Server):
    def __init__(self, *options, model=None):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [WEIR, "serve", "--model", model or MODEL, "--port", "0", "--access-log", *options],
            stdout=subprocess.PIPE, stderr=self.log)
        line = self.process.stdout.readline().decode()
        if not line.startswith("ready: "):
            self.process.wait()
            raise AssertionError("no ready line: " + self.log_text())
        self.port = int(line.rsplit(":", 1)[1])

    def metrics(self, *fields):
        return parse(get(self, "/metrics", *fields).body.decode())


LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parse(text):
    """Strict reader of the text format: {name: {labels: value}}; types must come first and once."""
    assert text.endswith("\n")
    values, types, current = {}, {}, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in types, "two families " + current
            types[current] = kind
            continue
        match = LINE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        assert name == current or (types[current] == "histogram" and
                                   name in (current + s for s in ("_bucket", "_sum", "_count")))
        labels = labels or ""
        assert "".join(m.group(0) for m in LABEL.finditer(labels)) == labels, labels
        series = values.setdefault(name, {})
        assert labels not in series, line
        series[labels] = float(value)
    for name, kind in types.items():
        assert kind != "counter" or name.endswith("_total"), name
    return values


def total(values, name, part=""):
    return sum(v for labels, v in values[name].items() if part in labels)


def completion(**fields):
    return json.dumps({"prompt": "one two", "max_tokens": 4, **fields}).encode()


class Case(unittest.TestCase):
    options = ("--compute", "null")

    @classmethod
    def setUpClass(cls):
        cls.server = Weir(*cls.options)

    @classmethod
    def tearDownClass(cls):
        code, text = cls.server.stop()
        if code != 0:
            raise AssertionError(f"server ended with {code}: {text[-4000:]}")

    def complete(self, *fields, **body):
        return post(self.server, "/v1/completions", completion(**body), JSON, *fields)


class Endpoints(Case):
    options = ("--compute", "null", "--served-model-name", "org/first",
               "--served-model-name", "second")

    def test_health(self):
        for target in ("/health", "/ping"):
            answer = get(self.server, target)
            self.assertEqual((answer.status, answer.body), (200, b""))
        self.assertEqual(post(self.server, "/ping", b"").status, 200)
        self.assertEqual(get(self.server, "/ready").status, 200)
        self.assertEqual(get(self.server, "/health_generate").status, 200)
        self.assertEqual(get(self.server, "/load").json(), {"server_load": 0})
        self.assertRegex(get(self.server, "/version").json()["version"], r"^\d+\.\d+")

    def test_models(self):
        listed = get(self.server, "/v1/models").json()
        self.assertEqual([m["id"] for m in listed["data"]], ["org/first", "second"])
        for m in listed["data"]:
            self.assertEqual(m["object"], "model")
            self.assertEqual(m["root"], "org/first")
            self.assertLess(abs(m["created"] - time.time()), 600)
            self.assertGreater(m["max_model_len"], 0)
            self.assertEqual(get(self.server, "/v1/models/" + m["id"]).json(), m)
        self.assertEqual(get(self.server, "/v1/models/org%2Ffirst").status, 200)
        answer = get(self.server, "/v1/models/third")
        self.assertEqual((answer.status, answer.json()["error"]["param"]), (404, "model"))
        self.assertEqual(get(self.server, "/get_model_info").json()["model_path"], "org/first")
        self.assertEqual(get(self.server, "/get_server_info").json()["max_model_len"],
                         listed["data"][0]["max_model_len"])

    def test_unknown_services_are_404_with_the_error_object(self):
        for target in ("/v1/embeddings", "/v1/responses", "/v1/audio/speech", "/v1/files"):
            answer = post(self.server, target, b"{}", JSON)
            self.assertEqual((answer.status, answer.json()["error"]["type"]),
                             (404, "NotFoundError"))

    def test_the_page(self):
        answer = get(self.server, "/")
        self.assertEqual(answer.status, 200)
        self.assertTrue(answer.body.startswith(b"<!doctype html>"))
        self.assertEqual(answer.headers["content-type"], "text/html; charset=utf-8")
        self.assertEqual(answer.headers["x-content-type-options"], "nosniff")
        policy = answer.headers["content-security-policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertIn("frame-ancestors 'none'", policy)
        self.assertNotRegex(policy, r"script-src[^;]*unsafe")
        again = get(self.server, "/index.html", "If-None-Match: " + answer.headers["etag"])
        self.assertEqual((again.status, again.body), (304, b""))
        self.assertEqual(get(self.server, "/", 'If-None-Match: "old"').status, 200)

    def test_requests_without_reading_do_not_fill_memory(self):
        before = self.server.rss_kib()
        with self.server.connect(30) as s:
            s.sendall(request("GET", "/") * 700)  # 35 KB that ask for 200 MB
            time.sleep(0.3)
            test_http.flat(self, self.server.rss_kib() - before, 8192)
            self.assertEqual(get(self.server, "/health").status, 200)
            reader = Reader(s)
            for _ in range(700):
                self.assertEqual(len(reader.answer().body), len(self.page()))

    def page(self):
        if not hasattr(self, "text"):
            self.text = get(self.server, "/").body
        return self.text

    def test_admin_endpoints_do_not_exist_without_an_admin_key(self):
        for target in ("/reset_prefix_cache", "/flush_cache"):
            self.assertEqual(post(self.server, target, b"").status, 404)

    def test_F078_only_the_api_port_listens(self):
        inodes = set()
        for fd in os.listdir(f"/proc/{self.server.process.pid}/fd"):
            try:
                link = os.readlink(f"/proc/{self.server.process.pid}/fd/{fd}")
            except FileNotFoundError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
        ports = set()
        for table in ("tcp", "tcp6", "udp", "udp6"):
            with open(f"/proc/net/{table}") as f:
                for line in f.readlines()[1:]:
                    fields = line.split()
                    listens = fields[3] == "0A" or table.startswith("udp")
                    if fields[9] in inodes and listens:
                        ports.add((table, int(fields[1].rsplit(":", 1)[1], 16)))
        self.assertEqual(ports, {("tcp", self.server.port)})


class Keys(Case):
    options = ("--compute", "null", "--api-key", "k-one", "--api-key", "k-two", "--admin-key",
               "k-root")

    def test_every_endpoint_but_the_open_ones_needs_a_key(self):
        for target in ("/health", "/ready", "/ping", "/version", "/"):
            self.assertEqual(get(self.server, target).status, 200, target)
        for target in ("/v1/models", "/metrics", "/load", "/health_generate", "/get_server_info",
                       "/v1/nowhere", "/docs"):
            self.assertEqual(get(self.server, target).status, 401, target)
        for target in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize",
                       "/v1/tokenize", "/abort_request", "/reset_prefix_cache"):
            self.assertEqual(post(self.server, target, b"{}", JSON).status, 401, target)
        key = "Authorization: Bearer k-two"
        self.assertEqual(get(self.server, "/metrics", key).status, 200)
        self.assertEqual(self.complete(key).status, 200)

    def test_admin_endpoints(self):
        for target in ("/reset_prefix_cache", "/flush_cache"):
            self.assertEqual(post(self.server, target, b"", "Authorization: Bearer k-one").status,
                             403)
            answer = post(self.server, target, b"", "Authorization: Bearer k-root")
            self.assertEqual((answer.status, answer.json()["success"]), (200, True))

    def test_a_reset_says_what_it_dropped(self):
        key, root = "Authorization: Bearer k-one", "Authorization: Bearer k-root"

        def cached():
            reply = self.complete(key, prompt=list(range(1, 600))).json()
            return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

        self.assertEqual(post(self.server, "/reset_prefix_cache", b"", root).status, 200)
        self.assertEqual(cached(), 0)
        self.assertEqual(cached(), 576)
        reply = post(self.server, "/reset_prefix_cache", b"", root).json()
        self.assertTrue(reply["success"])
        self.assertEqual(reply["dropped"]["pages"], 9)
        self.assertGreater(reply["dropped"]["states"], 0)
        self.assertEqual(reply["in_use"], {"pages": 0, "states": 0})
        self.assertEqual(reply["records_dropped"], {"host": 0, "disk": 0, "remote": 0})
        self.assertEqual(reply["records_left"], {"host": 0, "disk": 0, "remote": 0})
        self.assertEqual(cached(), 0)
        for query, said in (
                ("reset_externl=false", "no parameter reset_externl, only reset_external and"),
                ("reset_external=maybe", "reset_external must be true or false, not 'maybe'"),
                ("reset_external", "reset_external must be true or false, not ''"),
                ("reset_external=1&reset_running_requests=true", "running requests are never")):
            reply = post(self.server, "/reset_prefix_cache?" + query, b"", root)
            self.assertEqual(reply.status, 400, query)
            self.assertIn(said, reply.json()["error"]["message"])
        for query in ("reset_external=True", "reset_external=False", "reset_external=1&",
                      "reset_running_requests=false&reset_external=0"):
            reply = post(self.server, "/reset_prefix_cache?" + query, b"", root)
            self.assertEqual(reply.status, 200, reply.body)
        self.assertEqual(cached(), 0)
        again = post(self.server, "/reset_prefix_cache?reset_external=false", b"", root).json()
        self.assertEqual(again["dropped"]["pages"], 9)

    def test_zz_no_key_and_no_salt_is_logged(self):
        self.complete("Authorization: Bearer k-one", cache_salt="salt-of-mine")
        text = self.server.log_text()
        self.assertIn("/v1/completions 200", text)
        for secret in ("k-one", "k-two", "k-root", "salt-of-mine"):
            self.assertNotIn(secret, text)


class OpenMetrics(Case):
    options = ("--compute", "null", "--api-key", "k", "--open-metrics")

    def test_metrics_may_be_open(self):
        self.assertEqual(get(self.server, "/metrics").status, 200)
        self.assertEqual(get(self.server, "/v1/models").status, 401)


class Metrics(Case):
    def test_F086_counters_count_what_was_sent(self):
        before = self.server.metrics()
        for _ in range(5):
            self.assertEqual(self.complete(max_tokens=3, ignore_eos=True).status, 200)
        self.assertEqual(self.complete(max_tokens=7, ignore_eos=True, n=2).status, 200)
        self.assertEqual(post(self.server, "/v1/completions", b"{", JSON).status, 400)
        # Until the step comes back that was under way when the last answer ended.
        self.assertTrue(wait_for(
            lambda: total(self.server.metrics(), "vllm:kv_cache_usage_perc") == 0))
        after = self.server.metrics()

        def grown(name, part=""):
            return total(after, name, part) - total(before, name, part)

        self.assertEqual(grown("vllm:request_success_total", 'finished_reason="length"'), 6)
        self.assertEqual(grown("vllm:request_success_total"), 6)
        self.assertEqual(grown("vllm:generation_tokens_total"), 5 * 3 + 2 * 7)
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds",
                     "request_queue_time_seconds", "request_decode_time_seconds",
                     "request_prompt_tokens", "request_params_max_tokens"):
            self.assertEqual(grown(f"vllm:{name}_count"), 6, name)
        self.assertEqual(grown("vllm:request_generation_tokens_sum"), 5 * 3 + 2 * 7)
        self.assertEqual(grown("vllm:request_max_num_generation_tokens_sum"), 5 * 3 + 7)
        self.assertEqual(grown("vllm:request_params_n_sum"), 7)
        self.assertEqual(grown("vllm:inter_token_latency_seconds_count"), 5 * 2 + 2 * 6)
        self.assertGreater(grown("vllm:iteration_tokens_total_count"), 0)
        self.assertEqual(grown("vllm:iteration_tokens_total_sum"), grown("weir_step_tokens_total"))
        self.assertGreater(grown("vllm:prefix_cache_queries_total"), 0)
        self.assertEqual(total(after, "vllm:num_requests_running"), 0)
        self.assertEqual(total(after, "vllm:kv_cache_usage_perc"), 0)
        handler = 'method="POST",handler="/v1/completions",status="%d"'
        self.assertEqual(grown("http_requests_total", handler % 200), 6)
        self.assertEqual(total(after, "http_requests_total", handler % 400), 1)

    def test_every_bucket_row_rises_to_its_count(self):
        self.complete()
        values = self.server.metrics()
        for name in [n[:-7] for n in values if n.endswith("_bucket")]:
            rows = {}
            for labels, v in values[name + "_bucket"].items():
                rest, edge = re.fullmatch(r'(.*?),?le="([^"]+)"', labels).groups()
                rows.setdefault(rest, []).append((float(edge.replace("+Inf", "inf")), v))
            for rest, row in rows.items():
                self.assertEqual(row, sorted(row), name)
                self.assertEqual([v for _, v in row], sorted(v for _, v in row), name)
                self.assertEqual(row[-1], (float("inf"), values[name + "_count"][rest]))


class Abandoned(unittest.TestCase):
    """Needs a model that takes its time: the exact column with one thread."""

    @classmethod
    def setUpClass(cls):
        cls.server = Weir("--compute", COMPUTE, "--threads", "1", "--max-num-seqs", "2")

    @classmethod
    def tearDownClass(cls):
        code, text = cls.server.stop()
        if code != 0:
            raise AssertionError(f"server ended with {code}: {text[-4000:]}")

    def running(self):
        v = self.server.metrics()
        return total(v, "vllm:num_requests_running") + total(v, "vllm:num_requests_waiting")

    def all_free(self):
        v = self.server.metrics()
        return self.running() == 0 and total(v, "vllm:kv_cache_usage_perc") == 0 and \
            total(v, "weir_state_slots_used") == 0

    def aborts(self):
        return total(self.server.metrics(), "vllm:request_success_total",
                     'finished_reason="abort"')

    def start(self, **fields):
        s = self.server.connect()
        body = completion(max_tokens=7000, ignore_eos=True, **fields)
        s.sendall(request("POST", "/v1/completions", body, JSON))
        return s

    def test_F031_a_client_that_goes_frees_its_request(self):
        for fields in ({}, {"stream": True}, {"n": 2}, {"stream": True, "n": 2}):
            with self.subTest(fields=fields):
                aborts = self.aborts()
                s = self.start(**fields)
                self.assertTrue(wait_for(lambda: self.running() == fields.get("n", 1)))
                time.sleep(0.1)
                s.close()
                start = time.monotonic()
                # Pages go when no step in flight names them any more.
                self.assertTrue(wait_for(self.all_free, 2))
                if not test_http.SANITIZED:
                    self.assertLess(time.monotonic() - start, 1)
                self.assertEqual(self.aborts(), aborts + 1)
                tokens = total(self.server.metrics(), "vllm:generation_tokens_total")
                time.sleep(0.2)
                self.assertEqual(total(self.server.metrics(), "vllm:generation_tokens_total"),
                                 tokens)

    def test_F031_a_queued_request_is_freed_too(self):
        first = [self.start() for _ in range(2)]
        self.assertTrue(wait_for(
            lambda: total(self.server.metrics(), "vllm:num_requests_running") == 2))
        queued = self.start()
        self.assertTrue(wait_for(
            lambda: total(self.server.metrics(), "vllm:num_requests_waiting") == 1))
        queued.close()
        self.assertTrue(wait_for(
            lambda: total(self.server.metrics(), "vllm:num_requests_waiting") == 0, 1))
        self.assertEqual(self.running(), 2)
        for s in first:
            s.close()
        self.assertTrue(wait_for(lambda: self.running() == 0, 1))

    def test_abort_request_by_the_id_of_the_answer(self):
        for name in ("request_id", "rid"):
            s = self.start(stream=True)
            reader = Reader(s)
            reader.head()
            first = json.loads(reader.chunk().split(b"\n\n")[0][6:])
            answer = post(self.server, "/abort_request",
                          json.dumps({name: first["id"]}).encode(), JSON)
            self.assertEqual(answer.status, 200)
            data = b""
            while True:
                piece = reader.chunk()
                if not piece:
                    break
                data += piece
            self.assertIn("abort", data.decode())
            self.assertTrue(wait_for(lambda: self.running() == 0, 1))
            s.close()
        for body, param in ((b"{}", "request_id"), (b'{"rid": 1}', "rid"), (b"[]", None)):
            answer = post(self.server, "/abort_request", body, JSON)
            self.assertEqual((answer.status, answer.json()["error"]["param"]), (400, param))
        self.assertEqual(
            post(self.server, "/abort_request", b'{"rid": "nobody"}', JSON).status, 200)

    def test_a_large_body_of_abort_request_is_refused(self):
        start, end = b'{"rid": "nobody", "x": "', b'"}'
        for size, status in ((4096, 200), (4097, 413), (1 << 20, 413)):
            body = start + b"x" * (size - len(start + end)) + end
            answer = post(self.server, "/abort_request", body, JSON)
            self.assertEqual(answer.status, status)

    def test_health_answers_while_the_engine_works(self):
        s = self.start()
        self.assertTrue(wait_for(lambda: self.running() == 1))
        for _ in range(20):
            start = time.monotonic()
            self.assertEqual(get(self.server, "/health").status, 200)
            self.assertLess(time.monotonic() - start, 0.5)
        s.close()


class Stuck(Case):
    options = ("--compute", COMPUTE, "--threads", "1", "--stuck-timeout", "0")

    def test_health_is_503_while_there_is_work_without_progress(self):
        # With no patience at all every running step counts as stuck, and an idle engine never.
        self.assertEqual(get(self.server, "/health").status, 200)
        s = self.server.connect()
        s.sendall(request("POST", "/v1/completions", completion(max_tokens=7000, ignore_eos=True),
                          JSON))
        self.assertTrue(wait_for(lambda: get(self.server, "/health").status == 503))
        answer = get(self.server, "/ready")
        if answer.status == 503:
            self.assertIn("no progress", answer.json()["error"]["message"])
        s.close()
        self.assertTrue(wait_for(lambda: get(self.server, "/health").status == 200))


class Ending(unittest.TestCase):
    def stream(self, server, tokens):
        s = server.connect()
        body = completion(max_tokens=tokens, ignore_eos=True, stream=True)
        s.sendall(request("POST", "/v1/completions", body, JSON))
        reader = Reader(s)
        reader.head()
        return s, reader

    def test_F083_sigterm_under_load_drains(self):
        server = Weir("--compute", COMPUTE, "--threads", "1", "--drain-timeout", "300")
        s, reader = self.stream(server, 15 if test_http.SANITIZED else 500)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        answer = post(server, "/v1/completions", completion(), JSON)
        self.assertEqual(answer.status, 503)
        self.assertIn("retry-after", answer.headers)
        self.assertEqual(get(server, "/ready").status, 503)
        self.assertEqual(get(server, "/health").status, 200)
        data = b""
        while True:
            piece = reader.chunk()
            if not piece:
                break
            data += piece
        self.assertEqual(events(data)[-1], "data: [DONE]")
        self.assertEqual(server.process.wait(60), 0)
        s.close()
        server.stop()

    def test_F083_after_the_drain_time_streams_end_with_an_error_event(self):
        server = Weir("--compute", COMPUTE, "--threads", "1", "--drain-timeout", "0.2")
        s, reader = self.stream(server, 7000)
        server.process.send_signal(signal.SIGINT)
        data = b""
        while True:
            piece = reader.chunk()
            if not piece:
                break
            data += piece
        self.assertEqual(json.loads(events(data)[-1][6:])["error"]["code"], 503)
        self.assertNotIn("[DONE]", data.decode())
        self.assertEqual(server.process.wait(10), 0)
        s.close()
        server.stop()

    def test_F083_a_second_signal_ends_at_once(self):
        server = Weir("--compute", COMPUTE, "--threads", "1")
        s, _ = self.stream(server, 7000)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGINT)
        self.assertEqual(server.process.wait(2), 130)
        s.close()
        server.stop()

    def test_a_bad_checkpoint_or_port_is_one_line_and_no_ready(self):
        with tempfile.TemporaryDirectory() as d, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            for model, options, words in ((d, (), "config.json"),
                                          (MODEL, ("--port", port), "in use"),
                                          (MODEL, ("--host", "256.1.1.1"), "256.1.1.1"),
                                          (MODEL, ("--api-key-file", d + "/none"), "none")):
                env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}  # of the tests, no options
                run = subprocess.run([WEIR, "serve", "--model", model, "--port", "0", *options],
                                     capture_output=True, text=True, timeout=60, env=env)
                self.assertIn(run.returncode, (1, 2), run.stderr)
                self.assertEqual(run.stdout, "")
                self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
                self.assertIn(words, run.stderr)


class Long(unittest.TestCase):
    def test_F084_memory_stays_flat_over_20000_requests(self):
        server = Weir("--compute", "null")
        tools = [{"type": "function",
                  "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
        chat = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8,
                           "tools": tools}).encode()
        kinds = [("/v1/completions", completion()), ("/v1/completions", completion(stream=True)),
                 ("/v1/completions", completion(n=4)), ("/v1/chat/completions", chat),
                 ("/v1/completions", completion(temperature="x")),
                 ("/v1/completions", completion(max_tokens=500, ignore_eos=True, stream=True))]

        def burst(n):
            s = server.connect()
            reader = Reader(s)
            for i in range(n):
                target, body = kinds[i % len(kinds)]
                s.sendall(request("POST", target, body, JSON))
                if i % len(kinds) == 5:  # walk away in the middle
                    reader.head()
                    s.close()
                    s = server.connect()
                    reader = Reader(s)
                else:
                    status = reader.answer().status
                    self.assertEqual(status, 400 if i % len(kinds) == 4 else 200)
            s.close()

        def crowd(n):
            failures = []

            def one():
                try:
                    burst(n // 4)
                except Exception as e:  # noqa: BLE001 - reported below
                    failures.append(repr(e))

            threads = [threading.Thread(target=one) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(failures, [])

        try:
            crowd(2000)
            early = server.rss_kib()
            crowd(18000)
            late = server.rss_kib()
            print(f"resident: {early} KiB after 2000 requests, {late} KiB after 20000",
                  file=sys.stderr)
            # 1 MiB beside the 2 %: 57 bytes a request would show, the crowd's chance peaks do not.
            test_http.flat(self, late - early, early * 0.02 + 1024)
            for name in "vllm:num_requests_running", "weir_state_slots_used":
                self.assertTrue(wait_for(lambda: total(server.metrics(), name) == 0), name)
            values = server.metrics()
            self.assertEqual(total(values, "weir_kv_pages_used"), 0)
            self.assertEqual(total(values, "weir_state_slots_used"), 0)
            self.assertEqual(total(values, "weir_http_requests_in_flight"), 0)
            received = total(values, "http_requests_total", 'handler="/v1/c') - \
                total(values, "http_requests_total", 'status="400"')
            self.assertEqual(total(values, "vllm:request_success_total"), received)
        finally:
            code, text = server.stop()
            self.assertEqual(code, 0, text[-3000:])


class Cache(Case):
    options = ("--compute", "null", "--log-cache", "--kv-cache-bytes", "10M", "--max-checkpoints", "3")

    def test_the_cache_log_names_answer_and_choice_and_agrees_with_usage_and_metrics(self):
        body = completion(prompt=list(range(300, 500)), n=3, max_tokens=1)
        first = post(self.server, "/v1/completions", body, JSON).json()
        again = post(self.server, "/v1/completions", body, JSON).json()
        lines = [line for line in self.server.log_text().splitlines() if "cache: request" in line]
        self.assertEqual(len(lines), 6)
        for answer, at in ((first, 0), (again, 3)):
            for choice in range(3):
                name = f"cache: request {answer['id'].split('-', 1)[1]} choice {choice}: prompt 200, "
                self.assertTrue(any(name in line for line in lines[at:at + 3]), lines)
        usage = [x["usage"] for x in (first, again)]
        cached = [u["prompt_tokens_details"]["cached_tokens"] for u in usage]
        self.assertEqual(cached, [0, 192])
        metrics = self.server.metrics()
        for name, value in (("vllm:prefix_cache_queries_total", 400), ("vllm:prefix_cache_hits_total", 192),
                            ("vllm:prompt_tokens_total", 400)):
            self.assertEqual(total(metrics, name), value, name)

    def test_sizes_and_policy_of_the_cache_are_told_at_the_start_and_by_server_info(self):
        info = get(self.server, "/get_server_info").json()
        self.assertEqual(info["max_checkpoints"], 3)
        self.assertEqual(info["state_slots"], info["max_num_seqs"] + 3)
        self.assertEqual(info["tiers"], {})
        self.assertTrue(info["prefix_caching"])
        self.assertLessEqual(info["kv_cache_bytes"], 10 << 20)
        line = (f"cache: {64 * info['kv_pages']} tokens of history, {info['max_num_seqs']} sequences at once and "
                f"3 kept states, in {info['kv_cache_bytes']} bytes; policy {info['checkpoint_policy']}; no tiers")
        self.assertIn(line, self.server.log_text())


if __name__ == "__main__":
    WEIR, MODEL = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    with open(WEIR, "rb") as program:
        code = program.read()
    test_http.SANITIZED = b"__asan_init" in code or b"__tsan_init" in code
    unittest.main()
