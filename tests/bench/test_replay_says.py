"""What `weir bench replay` says of servers and options with which its figures would mislead or be lost.

usage: test_replay_says.py PATH_OF_weir [unittest arguments]
"""
import http.server
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

WEIR = sys.argv[1]
# What llama.cpp's server of release 0.5.0 says of itself, less what says nothing here.
LLAMA = {"/v1/models": {"models": [{"name": "k3.gguf", "model": "k3.gguf", "type": "model", "capabilities": ["completion"]}],
                        "object": "list",
                        "data": [{"id": "k3.gguf", "aliases": ["k3.gguf"], "tags": [], "object": "model", "created": 1796092192,
                                  "owned_by": "llamacpp",
                                  "meta": {"vocab_type": 2, "n_vocab": 2816, "n_ctx": 5120, "n_ctx_train": 8192, "n_embd": 256,
                                           "n_params": 10267536, "size": 13766208, "ftype": "MXFP4 MoE"}}]},
         "/props": {"default_generation_settings": {"params": {"n_predict": -1, "ignore_eos": False}, "n_ctx": 5120},
                    "total_slots": 4, "model_alias": "k3.gguf", "build_info": "b1-0ad4a86", "endpoint_metrics": True}}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, **how):
        super().__init__(("127.0.0.1", how.get("port", 0)), Handler)
        self.gone = threading.Event()
        self.how = {"per_chunk": 1, "usage": True, "share": 1.0, "tail": 0, "status": 200, "finish": True, "prompt": 0,
                    "models": 200, "context": 100000, "delay": 0, "detail": "slow down", "times": 1, "odd": {},
                    "endless": None, "metrics": None, "hang": False, "loading": 0, "llama": False, **how}
        self.ready = time.monotonic() + self.how["loading"]
        self.ids = set()
        self.posts = 0
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    url = property(lambda self: "http://127.0.0.1:%d" % self.server_address[1])

    def handle_error(self, request, client_address):
        pass  # clients go away

    def __exit__(self, *why):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0

    def log_message(self, *args):
        pass

    def plain(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        how = self.server.how
        if time.monotonic() < self.server.ready:
            self.plain(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
        elif how["llama"] and self.path in LLAMA:
            self.plain(200, LLAMA[self.path])
        elif self.path == "/v1/models":
            self.plain(how["models"], {"data": [{"id": how.get("model", "m"), "max_model_len": how["context"]}]})
        elif self.path == "/metrics" and how["metrics"] is not None:
            self.server.looks = getattr(self.server, "looks", 0) + 1
            if self.server.looks > 1 and how["hang"]:
                time.sleep(6)
            text = how["metrics"] if self.server.looks > 1 else "vllm:kv_cache_usage_perc 0.5\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())
        else:
            self.plain(404, {})

    def event(self, text):
        data = b"data: " + text.encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def answer_as_llama_cpp(self, prompt, want):
        """Its release 0.5.0: usage beside the finish reason, in a piece without text."""
        object = {"created": 1796091753, "model": "k3.gguf", "system_fingerprint": "b1-0ad4a86", "object": "text_completion",
                  "id": "chatcmpl-JEhUV3e4SmNHdQ1qs5lDyyWeCxvaM4rj"}
        self.wfile.write(HEAD)
        for i in range(want):
            self.event(json.dumps({"choices": [{"text": " the", "index": 0, "logprobs": None, "finish_reason": None}], **object}))
        usage = {"completion_tokens": want, "prompt_tokens": prompt, "total_tokens": prompt + want,
                 "prompt_tokens_details": {"cached_tokens": prompt // 4}}
        self.event(json.dumps({"choices": [{"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}], **object,
                               "usage": usage, "timings": {"cache_n": prompt // 4, "prompt_n": prompt - prompt // 4}}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self):
        how = self.server.how
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts += 1
        self.server.ids.update(body.get("prompt") or [])
        if how["llama"]:
            return self.answer_as_llama_cpp(len(body["prompt"]), body["max_tokens"])
        if how["status"] != 200 and self.server.posts > how.get("good", 0):
            return self.plain(how["status"], {"error": {"message": how["detail"]}})
        if self.server.posts == how.get("once"):  # no new connection is taken; this one has its answer
            self.server.shutdown()
            self.server.server_close()
            self.server.gone.set()
        time.sleep(how["delay"])
        want = int(body["max_tokens"] * how["share"])
        prompt = how["prompt"] or how["times"] * len(body.get("prompt") or [])
        self.wfile.write(HEAD)
        while how["endless"]:
            try:
                self.wfile.write(b"%x\r\n%s\n\n\r\n" % (len(how["endless"]) + 2, how["endless"]))
            except OSError:
                self.close_connection = True
                return
        for i in range(0, want, how["per_chunk"]):
            if i:
                time.sleep(0.001)
            self.event(json.dumps({"choices": [{"index": 0, "text": "a" * how["per_chunk"]}]}))
        time.sleep(how["tail"])
        if how["finish"]:
            last = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
            if how["usage"]:
                last["usage"] = {"prompt_tokens": prompt, "completion_tokens": want, **how["odd"]}
            self.event(json.dumps(last))
            self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


class Says(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.out = os.path.join(self.dir.name, "out")

    def tearDown(self):
        self.dir.cleanup()

    def weir(self, url, *args, status=0, random=True, command="replay", out=None):
        lengths = ["--random-input-len", "64", "--random-output-len", "40", "--num-prompts", "12"] if random else []
        env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
        out = out or self.out + ("-sweep" if command == "sweep" else "")  # they share none
        done = subprocess.run([WEIR, "bench", command, "--url", url, "--out", out, "--no-history", *lengths, *args],
                              capture_output=True, text=True, timeout=60, env=env)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.err = [line for line in done.stderr.splitlines() if line.startswith("weir: ")]
        return done.stdout

    def written(self):
        with open(os.path.join(self.out, "run.json")) as f:
            return json.load(f)

    def test_chunks_taken_for_tokens_are_said_and_not_valid(self):
        with Server(per_chunk=4, usage=False) as s:
            said = self.weir(s.url)
        self.assertIn("one token a chunk", said)
        self.assertIn("--tokenizer", said)
        self.assertIn("10.0 tokens where 40.0 were asked for", said)
        self.assertIn("Valid: no", said)
        run = self.written()
        self.assertEqual(run["calls"]["length_missed"], 12)
        self.assertTrue(any(r.startswith("answer_tokens_assumed") for r in run["validity"]["submission_invalid_reasons"]))
        with Server(per_chunk=4) as s:
            said = self.weir(s.url)
        self.assertNotIn("answer_tokens_assumed", said)
        self.assertNotIn("one token a chunk", said)

    def test_time_behind_the_last_text_is_said(self):
        with Server(tail=0.05) as s:
            said = self.weir(s.url)
        self.assertIn("full-response ITL", said)
        self.assertIn("passed behind their last text", said)
        with Server() as s:
            self.assertNotIn("passed behind their last text", self.weir(s.url, "--random-output-len", "100"))

    def test_prompts_of_another_length_are_said_and_recorded(self):
        with Server(prompt=334) as s:
            said = self.weir(s.url, "--endpoint", "chat", "--server", "vllm")
        self.assertIn("334.0 tokens by the server's count where 64.0", said)
        self.assertIn("--tokenizer", said)
        self.assertEqual(self.written()["isl"], 334)

    def test_half_answers_are_said_and_make_a_run_invalid(self):
        with Server(share=0.5) as s:
            said = self.weir(s.url)
        self.assertIn("12 answers had another length: 20.0 tokens where 40.0", said)
        self.assertIn("answer_lengths: 12 of 12 answers had another length than was asked for, together 50.0 %", said)

    def test_ids_that_were_sent_are_counted_here(self):
        for times in (10, 2**47):
            with Server(times=times) as s:
                said = self.weir(s.url)
            self.assertIn("12 answers reported another prompt length than can have been sent", said)
            with open(os.path.join(self.out, "profile_export.jsonl")) as f:
                for line in f:
                    self.assertEqual(json.loads(line)["metrics"]["input_sequence_length"]["value"], 64)
        with Server(prompt=100000) as s:  # of words, more tokens than bytes were sent
            self.assertIn("another prompt length", self.weir(s.url, "--endpoint", "chat", "--server", "vllm"))
        self.assertEqual(self.written()["isl"], 64)

    def test_counts_that_are_none_are_said(self):
        for odd in (-5, 200.5, "200"):
            with Server(odd={"prompt_tokens": odd}) as s:
                self.assertIn("12 answers reported counts of tokens that are no whole numbers", self.weir(s.url))

    def test_an_answer_without_an_end_is_ended(self):
        piece = b"data: " + json.dumps({"choices": [{"index": 0, "text": "a"}]}).encode()
        for what, said in ((piece, "pieces where 40 tokens were asked for"), (b": " + b"x" * 60000, "bytes where 40")):
            begun = time.monotonic()
            with Server(endless=what) as s:
                self.weir(s.url, "--num-prompts", "2", status=1)
            self.assertIn(said, self.err[0])
            self.assertLess(time.monotonic() - begun, 20)

    def test_metrics_that_tell_nothing_are_said(self):
        for text, words in (("garbage\n", "found no name that vllm is known to have"),
                            ("vllm:kv_cache_usage_perc 500\n", "a cache fuller than full"),
                            ("x" * (17 << 20), "failed or had no answer")):
            with Server(metrics=text, delay=0.03) as s:
                self.assertIn(words, self.weir(s.url))
        with Server(metrics="vllm:kv_cache_usage_perc 0.1\n", hang=True) as s:
            self.assertIn("failed or had no answer", self.weir(s.url))

    def test_cached_tokens_of_fresh_prompts_are_said(self):
        with Server(odd={"prompt_tokens_details": {"cached_tokens": 64}}) as s:
            self.assertIn("report 100.0 % of the prompts' tokens as cached where the workload shares 0.0 %",
                          self.weir(s.url))

    def test_a_place_that_cannot_be_written_is_found_before_the_first_call(self):
        path = os.path.join(self.dir.name, "file")
        open(path, "w").close()
        for out in (path, "/proc/weir", path + "/below"):
            for command in ("replay", "sweep"):
                with Server() as s:
                    self.weir(s.url, out=out, status=1, command=command)
                    self.assertEqual(s.posts, 0)
                self.assertEqual(len(self.err), 1)
                self.assertIn(out.split("/")[1], self.err[0])

    def begin(self, url, *args, limit=None):
        """A replay that is left running, once three records lie in its directory."""
        def prepare():
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which weir heeds
            if limit:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        line = [WEIR, "bench", "replay", "--url", url, "--out", self.out, "--no-history", "--random-input-len", "64",
                "--random-output-len", "40", "--num-prompts", "400", *args]
        run = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=prepare)
        end = time.monotonic() + 30
        while not limit and run.poll() is None and not self.is_under_way() and time.monotonic() < end:
            time.sleep(0.02)
        return run

    def is_under_way(self):
        try:
            return "unfinished" in (self.written()["abort_reason"] or "") and len(self.lines()) >= 3
        except (FileNotFoundError, ValueError):
            return False

    def lines(self):
        try:
            with open(os.path.join(self.out, "profile_export.jsonl")) as f:
                return [json.loads(line) for line in f if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def test_a_run_that_is_killed_leaves_its_records(self):
        page = os.path.join(self.dir.name, "page.html")
        with Server() as s:
            run = self.begin(s.url)
            self.weir(s.url, status=1)  # its directory is taken
            self.assertIn("another run is being written into it", self.err[0])
            run.kill()
            run.communicate()
            self.assertGreaterEqual(len(self.lines()), 3)
            self.assertTrue(self.written()["abort_reason"].startswith("unfinished"))
            subprocess.run([WEIR, "report", self.out, "--out", page], check=True, timeout=60)
            with open(page) as f:
                self.assertIn("unfinished: the program ended before the run did", f.read())
            self.weir(s.url)  # and the next one is whole
        self.assertEqual(len(self.lines()), 12)
        self.assertIsNone(self.written()["abort_reason"])
        self.assertEqual([name for name in os.listdir(self.out) if name.endswith(".before")], [])

    def test_a_terminal_that_goes_away_ends_a_run_in_order(self):
        with Server() as s:
            run = self.begin(s.url)
            run.send_signal(signal.SIGHUP)
            said = run.communicate()[1]
        self.assertEqual(run.returncode, 1)
        self.assertIn("cancelled after", said)
        self.assertTrue(self.written()["was_cancelled"])

    def test_an_older_run_is_no_part_of_a_new_one(self):
        with Server() as s:
            self.weir(s.url)
            before = self.written()
            self.weir("http://127.0.0.1:1", status=1)  # nothing was measured: it stays
            self.assertEqual(self.written(), before)
            self.assertEqual(len(self.lines()), 12)
            run = self.begin(s.url)
            self.assertFalse(os.path.exists(os.path.join(self.out, "inferencex.json")))
            run.kill()
            run.communicate()
            again = self.begin(s.url)  # the whole one outlives several that were not
            again.kill()
            again.communicate()
        with open(os.path.join(self.out, "run.json.before")) as f:
            self.assertEqual(json.load(f), before)
        self.weir("http://127.0.0.1:1", status=1, out=self.out + "-new")
        self.assertFalse(os.path.exists(self.out + "-new"))

    def test_a_run_and_a_sweep_share_no_directory(self):
        def files():
            return {os.path.join(at, name): os.stat(os.path.join(at, name)).st_mtime_ns
                    for at, _, names in os.walk(self.out) for name in names}
        with Server() as s:
            self.weir(s.url)
            before, posts = files(), s.posts
            self.weir(s.url, "--concurrency", "1,2", command="sweep", status=1, out=self.out)
            self.assertEqual((files(), s.posts), (before, posts))
            self.assertEqual(self.err, ["weir: %s: holds a run already (profile_export.jsonl), and a sweep beside it would not "
                                        "be read; give the sweep a directory of its own" % self.out])
            self.weir(s.url, "--concurrency", "1,2", command="sweep")
            self.out += "-sweep"
            for there in ("sweep.json", "c1"):
                before, posts = files(), s.posts
                self.weir(s.url, status=1)
                self.assertEqual((files(), s.posts), (before, posts))
                self.assertEqual(len(self.err), 1)
                self.assertIn("%s: holds runs of a sweep or of other replays (%s), " % (self.out, there), self.err[0])
                if there == "sweep.json":  # without it: a sweep that was ended within its first point
                    os.unlink(os.path.join(self.out, "sweep.json"))
            self.weir(s.url, "--concurrency", "1,2", command="sweep", out=self.out)  # a sweep again is welcome
            self.weir(s.url, out=os.path.join(self.out, "c1"))  # and so is a run in place of its point

    def sweep(self, url, *args):
        """A sweep of 1, 2 and 4 lanes that is left running."""
        line = [WEIR, "bench", "sweep", "--url", url, "--out", self.out, "--no-history", "--random-input-len", "64",
                "--random-output-len", "40", "--num-prompts", "12", "--concurrency", "1,2,4", *args]
        env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    def listed(self):
        with open(os.path.join(self.out, "sweep.json")) as f:
            table = json.load(f)
        return [p["concurrency"] for p in table["points"]], table["left_out"]

    def test_a_sweep_outlives_a_server_that_is_started_anew(self):
        with Server(once=12) as s:  # it is gone as soon as the first point has its answers
            run = self.sweep(s.url)
            self.assertTrue(s.gone.wait(30))
        time.sleep(1)
        with Server(port=s.server_address[1], loading=1):
            said, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 0, said + err)
        self.assertEqual(self.listed(), ([1, 2, 4], []))

    def test_points_without_a_server_are_left_out_and_named(self):
        with Server(once=12) as s:
            run = self.sweep(s.url, "--connect-timeout", "0.5", "--json")
            self.assertTrue(s.gone.wait(30))
        said, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 1, said + err)
        points, left_out = self.listed()
        self.assertEqual((points, [p["concurrency"] for p in left_out]), ([1], [2, 4]))
        self.assertEqual(json.loads(said)["left_out"], left_out)
        lines = [line for line in err.splitlines() if line.startswith("weir: ")]
        self.assertEqual(lines, ["weir: bench sweep: concurrency %d: left out: %s" % (p["concurrency"], p["reason"]) for p in left_out])
        for p in left_out:
            self.assertIn("--url: the server does not answer", p["reason"])
        page = subprocess.run([WEIR, "frontier", self.out], capture_output=True, text=True, timeout=60)
        self.assertEqual(page.returncode, 0, page.stderr)
        self.out += "-none"
        run = self.sweep(s.url)  # of the first point it is a matter of --url, and said at once
        begun = time.monotonic()
        self.assertEqual(run.communicate(timeout=60)[1].count("weir: "), 1)
        self.assertEqual(run.returncode, 1)
        self.assertLess(time.monotonic() - begun, 10)

    def test_a_disk_that_is_full_is_found_at_once(self):
        with Server() as s:
            run = self.begin(s.url, limit=100)
            self.assertIn("cannot be written: File too large", run.communicate()[1])
            self.assertEqual((run.returncode, s.posts), (1, 0))
            run = self.begin(s.url, limit=16000)
            said = run.communicate()[1]
            self.assertEqual(run.returncode, 1)
            self.assertIn("profile_export", said)
            self.assertLess(s.posts, 60)
        self.assertGreaterEqual(len(self.lines()), 3)
        self.assertIn("unfinished", self.written()["abort_reason"])

    def test_a_run_that_the_history_lacks_is_no_success(self):
        for command in ("replay", "sweep"):
            with Server() as s:
                self.weir(s.url, "--concurrency", "1", "--no-history=false", "--history", "/proc/none/runs.db",
                          status=1, command=command)
            self.assertIn("not in the history: /proc/none", self.err[-1])

    def test_runs_without_figures_fail_and_say_why(self):
        with Server(context=70) as s:
            self.weir(s.url, status=2)  # before the first call
            self.assertEqual(s.posts, 0)
        self.assertIn("--max-context: no call of the trace fits into 70 tokens", self.err[0])
        with Server(finish=False) as s:
            self.weir(s.url, status=1)
        self.assertIn("12 of 12 calls failed", self.err[0])
        self.assertIn("without a finish reason", self.err[0])
        with Server(status=503, good=8) as s:
            said = self.weir(s.url, "--request-rate", "200", status=1)
        self.assertIn("4 of 12 calls failed", self.err[0])
        self.assertIn("http 503", said)
        with Server(status=503, good=11) as s:  # one of twelve is below the threshold
            self.weir(s.url)
        self.assertEqual(self.err, [])
        with Server(finish=False) as s:
            said = self.weir(s.url, "--concurrency", "1,2", status=1, command="sweep")
        self.assertEqual(len(self.err), 2)
        self.assertNotIn("nan", said)
        self.assertRegex(said, r"\n +1( +-){6} +\d+ +no\n")
        points = [self.out + "-sweep/c" + n for n in "12"]
        gate = subprocess.run([WEIR, "bench", "gate", "--baseline", points[0], "--candidate", points[1], "--no-history"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(gate.returncode, 1, gate.stdout + gate.stderr)
        self.assertNotIn("nan", gate.stdout)
        self.assertRegex(gate.stdout, r"\ntput_per_gpu +tok/s/GPU +- +- +- +none ")

    def test_sessions_that_end_in_the_warm_up_are_said(self):
        trace = os.path.join(self.dir.name, "two.jsonl")
        with open(trace, "w") as f:
            for name in "ab":
                call = {"t": 0, "type": "s", "in": 64, "out": 4, "hash_ids": [1], "api_time": 1}
                f.write(json.dumps({"id": name, "requests": [call]}) + "\n")
        with Server() as s:
            self.weir(s.url, "--trace", trace, "--once", "--unsafe-override", random=False, status=1)
        self.assertIn("ended in the warm-up", self.err[0])
        self.assertIn("--no-warmup", self.err[0])

    def test_small_things_are_said_plainly(self):
        with Server(status=429, good=0) as s:
            self.weir(s.url, status=1)
            self.assertIn("the first: http 429: slow down", self.err[0])
            self.weir(s.url, "--num-prompts", "200", status=1)
            self.assertIn("the last one with http 429: slow down", self.err[0])
        with Server(usage=False, share=0.5) as s:
            self.assertIn("1 answer had no usage", self.weir(s.url, "--num-prompts", "1"))
            said = self.weir(s.url, "--concurrency", "1, 2", command="sweep")
        self.assertIn("not valid: answer_lengths", said)
        self.assertIn("warning: 12 answers had no usage", said)
        with Server(context=70) as s:
            self.weir(s.url, status=2)
            self.assertIn("the shortest has 104 with its answer; --length-scale", self.err[0])
            self.weir(s.url, "--token-low", "999999999", status=2)
            self.assertIn("--token-low", self.err[0])
        with Server() as s:
            self.assertIn("only 12 of 100000 lanes had anything to play", self.weir(s.url, "--concurrency", "100000"))
        with Server(model="m\x1b[31m\x07red\n") as s:
            done = subprocess.run([WEIR, "bench", "replay", "--url", s.url, "--out", self.out, "--no-history",
                                   "--random-input-len", "64", "--num-prompts", "2"], capture_output=True, timeout=60)
        self.assertIn(b"m?[31m?red? on openai", done.stderr)
        self.assertNotIn(b"\x1b", done.stderr + done.stdout)
        sweep = subprocess.run([WEIR, "cost", "--run", self.dir.name, "--price", "2"], capture_output=True, text=True, timeout=60)
        self.assertIn("is a directory of several runs", sweep.stderr)

    def test_reasons_are_stored_whole(self):
        words = " ".join("word%02d" % i for i in range(16))
        with Server(status=500, detail=words) as s:
            self.weir(s.url, "--num-prompts", "200", status=1)
        run = self.written()
        self.assertIn(words, run["abort_reason"])
        self.assertIn("aborted: " + run["abort_reason"], run["validity"]["submission_invalid_reasons"])
        self.assertIn(run["abort_reason"], self.err[0])
        with Server(status=500, detail="x" * 500) as s:
            self.weir(s.url, status=1)
        self.assertTrue(self.err[0].endswith("x..."), self.err[0])

    def test_the_open_loop_is_named_and_its_limit_told_from_lateness(self):
        with Server(delay=0.03) as s:
            said = self.weir(s.url, "--request-rate", "400", "--max-concurrency", "1", "--json")
            self.weir(s.url, "--request-rate", "400", "--concurrency", "3", status=2)
            self.assertIn("--max-concurrency", self.err[0])
        client = self.written()["client"]
        self.assertGreater(client["held_ms"]["max"], 200)
        self.assertLess(client["late_us"]["p50"], 20000)
        with Server() as s:
            said = self.weir(s.url, "--request-rate", "400", "--max-concurrency", "5")
            self.assertIn("open loop, poisson arrivals, 400 calls/s, at most 5 in flight", said)
            self.assertIn("held by the limit", said)
            self.assertNotIn("concurrency 0", said)
            said = self.weir(s.url, "--request-rate", "inf")
            self.assertIn("open loop, poisson arrivals, all at once", said)

    def test_a_run_can_be_made_again(self):
        with Server() as s:
            self.weir(s.url)
            salt = self.written()["salt"]
            self.assertGreater(salt, 0)
            self.weir(s.url, "--salt", str(salt))
        run = self.written()
        self.assertEqual(run["salt"], salt)
        self.assertEqual(run["config"]["format"], "random")

    def test_llama_cpp_is_asked_in_its_own_vocabulary(self):
        with Server(llama=True) as s:
            for kind in "auto", "llama.cpp":
                self.weir(s.url, "--server", kind)
                run = self.written()
                self.assertEqual(run["subject"]["framework"], "llama.cpp")
                self.assertEqual(run["subject"]["framework_version"], "b1-0ad4a86")
                self.assertEqual((run["max_context"], run["cached_share"], run["calls"]["length_missed"]), (5120, 0.25, 0))
        self.assertEqual(s.posts, 24)
        self.assertLess(max(s.ids), 2816)
        self.assertGreater(min(s.ids), 0)

    def test_a_server_that_still_loads_is_not_measured(self):
        with Server(loading=3600) as s:
            for kind in "auto", "vllm":
                self.weir(s.url, "--server", kind, status=1)
                self.assertEqual(self.err, ["weir: --url: the server is up but not ready: status 503 at /v1/models"])
            self.assertEqual(s.posts, 0)

    def test_what_is_wrong_with_url_key_or_format_is_named(self):
        with Server(models=401) as s:
            self.weir(s.url, status=2)
            self.assertIn("none was given", self.err[0])
            self.weir(s.url, "--api-key", "k", status=2)
            self.assertIn("refuses it", self.err[0])
            self.weir(s.url.replace("http", "https"), status=1)
            self.assertIn("try http://", self.err[0])
            self.weir(s.url, "--ca", "/nowhere.pem", status=1)
            self.assertTrue(self.err[0].startswith("weir: --ca: "), self.err[0])
        csv = os.path.join(self.dir.name, "a.csv")
        with open(csv, "w") as f:
            f.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        self.weir("http://127.0.0.1:1", "--trace", csv, random=False, status=1)
        self.assertIn("read as weka; --format", self.err[0])

    def test_phases_are_said_where_there_is_no_terminal(self):
        with Server() as s:
            done = subprocess.run([WEIR, "bench", "replay", "--base-url", s.url, "--out", self.out, "--no-history",
                                   "--random-input-len", "64", "--random-output-len", "40", "--num-prompts", "4"],
                                  capture_output=True, text=True, timeout=60)
        self.assertIn("m on openai: profiling", done.stderr)
        self.assertLess(len(done.stderr.splitlines()), 4)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
